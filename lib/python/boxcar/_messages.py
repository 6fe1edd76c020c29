# SPDX-License-Identifier: MIT
"""Values as messages: a pickle, the large buffers beside it, and the references in it."""
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
    from .autograd import join
    return join(context_id)


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


def _dump(pickler, value, put_buffer):
    if has_torch():
        from ._tensors import with_tensors
        pickler = with_tensors(pickler)
    file = io.BytesIO()
    pickler(file, 5, buffer_callback=put_buffer).dump(value)
    return file.getvalue()


def _made(blocks):
    return [block() for block in blocks]


def dumps(value, to=None):
    """(payload, buffers, refs) of a value, for worker `to`."""
    if type(value) in ATOMS:
        return pickle.dumps(value, 5), [], []
    buffers, message = [], _Message([], [], to)

    def put_buffer(buffer):
        try:
            raw = buffer.raw()
        except BufferError:             # it has gaps
            return True
        if raw.nbytes < OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    before, _now.message = _now.message, message
    try:
        try:
            return _dump(pickle.Pickler, value, put_buffer), buffers + _made(message.blocks), message.refs
        except (pickle.PicklingError, AttributeError) as error:     # a lambda, a local function
            try:
                import cloudpickle
            except ImportError:
                raise error from None
        buffers.clear()
        _now.message = message = _Message([], [], to)
        return _dump(cloudpickle.CloudPickler, value, put_buffer), buffers + _made(message.blocks), message.refs
    finally:
        _now.message = before


def loads(message):
    payload, buffers, refs = message
    if not buffers and not refs:
        return pickle.loads(payload)
    before, _now.message = _now.message, _Message(refs, buffers, None)
    try:
        return pickle.loads(payload, buffers=buffers)
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
    return max(1, int(seconds * 1e9))


def name_of(fn):
    """By what inspectors show a function or the method of a name; "": by nothing."""
    name = fn if isinstance(fn, str) else getattr(fn, "__qualname__", "")
    return name if isinstance(name, str) else ""


def find(module, name):
    """The function that a module has by a name, as pickle finds it."""
    try:
        return getattr(sys.modules[module], name)
    except (KeyError, AttributeError):
        return pickle.loads(pickle.GLOBAL + f"{module}\n{name}\n".encode() + pickle.STOP, fix_imports=False)


def _dump_request(fn, args, kwargs, context_id, to):
    """A function that its module has by its name is given by these two, with what takes no tensor, reference or buffer:
    in half the time that the general pickler takes to look it up."""
    if not kwargs and ATOMS.issuperset(map(type, args)):
        if type(fn) is types.FunctionType and getattr(sys.modules.get(fn.__module__), fn.__qualname__, None) is fn:
            return pickle.dumps((fn.__module__, fn.__qualname__, args, kwargs, context_id), 5), [], []
        if type(fn) is str:
            return pickle.dumps((fn, args, kwargs, context_id), 5), [], []
    return dumps((fn, args, kwargs, context_id), to)


def request(to, fn, args, kwargs, timeout):
    """(payload, buffers, refs, timeout_ns, name): what each call of the engine is given. No callee has a name for a
    function that was never called."""
    context = get_context()
    context_id = None if context is None else context.carry_to(to)
    name = name_of(fn)
    if name not in _called:
        _called.add(name)
        name = ""
    return (*_dump_request(fn, tuple(args), kwargs or {}, context_id, to), nanoseconds(timeout), name)


class Failure:
    """An exception on its way to the worker that is to get it."""

    def __init__(self, error, text):
        self.error = error              # its pickle; None: it has none
        self.text = text

    @classmethod
    def of(cls, error):
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
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
