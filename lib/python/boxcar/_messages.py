# SPDX-License-Identifier: MIT
"""Values as messages: a pickle, the large buffers beside it, and the references in it."""
import functools
import io
import pickle
import sys
import threading
import traceback
import types

from ._errors import RemoteTraceback

OUT_OF_BAND = 4096      # bytes: a smaller buffer costs less inside the pickle

FOREVER = 2**64 - 1     # nanoseconds, as the engine counts them

ATOMS = frozenset((type(None), bool, int, float, str, bytes))      # no reference, tensor or buffer is in one

_APART = b"A"           # before the pickle of a value of which parts are set apart: a pickle begins with 0x80
_reducers = dict.fromkeys(ATOMS)        # of the types of such parts; None: the value stays

_called = set()         # names of functions


class _Now(threading.local):
    message = None      # the _Message that this thread writes or reads
    context = None      # of autograd, for what this thread calls and answers


_now = _Now()


class _Message:
    """What is beside a pickle."""

    def __init__(self, refs, blocks, to):
        self.refs = refs
        self.blocks = blocks            # memory of GPUs: the last buffers, the first one last; what makes it, at first
        self.to = to                    # the worker that is to get it, by its name or rank
        self.tensor = None              # what the autograd context returned for the last one


def put_ref(ref):
    """Adds a reference to the message that is being written; its index. None: no message is."""
    message = _now.message
    if message is None:
        return None
    message.refs.append(ref)
    return len(message.refs) - 1


def get_ref(index):
    return _now.message.refs[index]


def blocks():
    """Of the message that is written or read: Blocks, the first one last; of one that is written, functions that make
    them when all else is there."""
    return _now.message.blocks


def destination():
    """The worker, by its name or rank, that is to get the message that is being written; None: no message is."""
    return None if _now.message is None else _now.message.to


def get_context():
    """The autograd context that this thread is in, or None."""
    context = _now.context
    return None if context is None or context.has_ended else context


def set_context(context):
    _now.context = context


def join_context(context_id):
    """The context that a request carries, or None."""
    if context_id is None:
        return None
    import boxcar.autograd
    return boxcar.autograd.join(context_id)


def put_tensor(tensor):
    """Adds a tensor that requires grad to the context that this thread is in. None: it is in none."""
    context = get_context()
    if context is None:
        return None
    message = _now.message
    message.tensor = context.send(tensor, message.tensor)
    return message.tensor


def has_torch():
    """Whether the program has imported torch."""
    return sys.modules.get("torch") is not None     # None: it forbids the import


def enable_grad():
    """Grad mode of torch on this thread: what ran on it before may have left that off."""
    torch = sys.modules.get("torch")
    is_enabled = getattr(torch, "is_grad_enabled", None)        # None: the program is importing torch
    if is_enabled is not None and not is_enabled():
        torch.set_grad_enabled(True)


def set_apart(type, reduce):
    """Has values of a type set apart where they are arguments or a result. reduce(value): (function, arguments) as of
    __reduce__, which plain pickle takes; None: the general pickler is to take this one."""
    _reducers[type] = reduce


def _dump_apart(value, put_buffer):
    """What is simple, alone or in a tuple, in half the time of the general pickler; None: the value is not."""
    values = list(value) if type(value) is tuple else [value]
    if not set(map(type, values)) <= _reducers.keys():
        return None
    apart, seen = [], set()
    for index, part in enumerate(values):
        reduce = _reducers[type(part)]
        if reduce is None:
            continue
        reduced = reduce(part) if id(part) not in seen else None        # one object is one in the message
        if reduced is None:
            return None
        seen.add(id(part))
        function, args = reduced
        apart.append((index, function.__module__, function.__name__, args))
        values[index] = None
    return _APART + pickle.dumps((type(value) is tuple, values, apart), 5, buffer_callback=put_buffer)


@functools.lru_cache                    # the import alone takes 2 us
def _with_tensors(pickler):
    from ._tensors import with_tensors
    return with_tensors(pickler)


def _dump_by(pickler, value, put_buffer):
    if has_torch():
        pickler = _with_tensors(pickler)
    file = io.BytesIO()
    pickler(file, 5, buffer_callback=put_buffer).dump(value)
    return file.getvalue()


def _dump(value, put_buffer):
    return _dump_by(pickle.Pickler, value, put_buffer)


def _dump_by_value(value, put_buffer):
    import cloudpickle
    return _dump_by(cloudpickle.CloudPickler, value, put_buffer)


def _write(dump, value, to):
    """(payload, buffers, refs), or None."""
    buffers = []
    message = _now.message = _Message([], [], to)

    def put_buffer(buffer):
        try:
            raw = buffer.raw()
        except BufferError:             # it has gaps
            return True
        if raw.nbytes < OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    payload = dump(value, put_buffer)
    return payload and (payload, buffers + [block() for block in message.blocks], message.refs)


def dumps(value, to=None):
    """(payload, buffers, refs) of a value, for worker `to`."""
    if ATOMS.issuperset(map(type, value) if type(value) is tuple else (type(value),)):
        return pickle.dumps(value, 5), [], []
    before = _now.message
    try:
        try:
            return _write(_dump_apart, value, to) or _write(_dump, value, to)
        except (pickle.PicklingError, AttributeError) as error:     # a lambda, a local function
            try:
                return _write(_dump_by_value, value, to)
            except ImportError:
                raise error from None
    finally:
        _now.message = before


def _load(payload, buffers):
    if not payload.startswith(_APART):
        return pickle.loads(payload, buffers=buffers)
    is_tuple, values, apart = pickle.loads(payload[len(_APART):], buffers=buffers)
    for index, module, name, args in apart:
        values[index] = find(module, name)(*args)
    return tuple(values) if is_tuple else values[0]


def loads(message):
    payload, buffers, refs = message
    if not buffers and not refs:
        return _load(payload, None)
    before, _now.message = _now.message, _Message(refs, buffers, None)
    try:
        return _load(payload, buffers)
    finally:
        _now.message = before
        buffers.clear()                 # what nobody took is returned


def nanoseconds(seconds):
    if seconds is None:
        return 0
    if seconds == float("inf"):
        return FOREVER
    if seconds < 0:
        raise ValueError(f"a timeout of {seconds} seconds is negative")
    return min(max(1, int(seconds * 1e9)), FOREVER)     # the engine takes 64 bits of it


def name_of(fn):
    """By what inspectors show a function or the method of a name; "": by nothing."""
    name = fn if isinstance(fn, str) else getattr(fn, "__qualname__", "")
    return name if isinstance(name, str) else ""


def _look_up(module, name):
    """What a module of this process has by a name that may have dots."""
    found = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def find(module, name):
    """What a module has by a name, as pickle finds it."""
    try:
        return _look_up(module, name)
    except (KeyError, AttributeError):
        lines = "".join(f"V{text}\n" for text in (module, name)).encode("raw_unicode_escape")
        return pickle.loads(pickle.PROTO + b"\4" + lines + pickle.STACK_GLOBAL + pickle.STOP)


def _place(fn):
    """(module, name), by which pickle gives a function, or (None, what it is to pickle)."""
    if type(fn) is types.FunctionType:
        try:
            if _look_up(fn.__module__, fn.__qualname__) is fn:
                return fn.__module__, fn.__qualname__
        except (KeyError, AttributeError):
            pass
    return None, fn


def request(to, fn, args, kwargs, timeout):
    """(payload, buffers, refs, timeout_ns, name): what each call of the engine is given. No callee has a name for a
    function that was never called."""
    context = get_context()
    context_id = None if context is None else context.carry_to(to)
    name = name_of(fn)
    if name not in _called:
        _called.add(name)
        name = ""
    return *dumps((*_place(fn), context_id, kwargs or None, *args), to), nanoseconds(timeout), name


class Failure:
    """An exception on its way to the worker that is to get it."""

    def __init__(self, error, text):
        self.error = error              # its pickle; None: it has none
        self.text = text

    @classmethod
    def of(cls, error):
        try:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        except Exception:               # what its own __getattr__ raises
            text = f"{type(error).__qualname__}, whose traceback cannot be written\n"
        try:
            return cls(pickle.dumps(error), text)
        except BaseException:           # what a __reduce__ raises, SystemExit too
            return cls(None, text)

    def to_raise(self, worker):
        """The exception for a caller here. worker: a name or a rank. torch makes all of the text, and so an OSError
        without errno; here an argument that is no text stays."""
        text = f"On {worker if isinstance(worker, str) else f'worker {worker}'}:\n{self.text}"
        if self.error is None:
            return RuntimeError(text)
        try:
            error = pickle.loads(self.error)
            if error.args and isinstance(error.args[0], str):
                error.args = (f"{error.args[0]}\n\n{text}", *error.args[1:])
            elif not error.args:
                error.args = (text,)
            error.__cause__ = RemoteTraceback(text)
            return error if isinstance(error, BaseException) else RuntimeError(text)
        except (Exception, SystemExit):     # a constructor wants more than `args`, the type is not here, or is frozen
            return RuntimeError(text)
