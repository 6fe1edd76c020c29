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
# refs: those of the message that this thread writes or reads; context: of autograd, for what this thread calls and
# answers; tensor: what the context returned for the last one of the message that is written
_now = threading.local()


def put_ref(ref):
    """Adds a reference to the message that is being written; its index. None: no message is."""
    refs = getattr(_now, "refs", None)
    if refs is None:
        return None
    refs.append(ref)
    return len(refs) - 1


def get_ref(index):
    return _now.refs[index]


def get_context():
    """The autograd context that this thread is in, or None."""
    context = getattr(_now, "context", None)
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
    _now.tensor = context.send(tensor, _now.tensor)
    return _now.tensor


def has_torch():
    """Whether the program has imported torch."""
    return sys.modules.get("torch") is not None     # None: it forbids the import


def _dump(pickler, value, put_buffer):
    if has_torch():
        from ._tensors import with_tensors
        pickler = with_tensors(pickler)
    file = io.BytesIO()
    pickler(file, 5, buffer_callback=put_buffer).dump(value)
    return file.getvalue()


def dumps(value):
    """(payload, buffers, refs) of a value."""
    if type(value) in ATOMS:
        return pickle.dumps(value, 5), [], []
    buffers, refs = [], []

    def put_buffer(buffer):
        try:
            raw = buffer.raw()
        except BufferError:             # it has gaps
            return True
        if raw.nbytes < OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    before, _now.refs, _now.tensor = getattr(_now, "refs", None), refs, None
    try:
        try:
            return _dump(pickle.Pickler, value, put_buffer), buffers, refs
        except (pickle.PicklingError, AttributeError) as error:     # a lambda, a local function
            try:
                import cloudpickle
            except ImportError:
                raise error from None
        buffers.clear()
        refs.clear()
        return _dump(cloudpickle.CloudPickler, value, put_buffer), buffers, refs
    finally:
        _now.refs = before


def loads(message):
    payload, buffers, refs = message
    before, _now.refs = getattr(_now, "refs", None), refs
    try:
        return pickle.loads(payload, buffers=buffers)
    finally:
        _now.refs = before


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


def _dump_request(value):
    fn, args, kwargs, _ = value
    if type(fn) in (types.FunctionType, str) and not kwargs and ATOMS.issuperset(map(type, args)):
        try:
            return pickle.dumps(value, 5), [], []
        except (pickle.PicklingError, AttributeError):      # as in dumps
            pass
    return dumps(value)


def request(to, fn, args, kwargs, timeout):
    """(payload, buffers, refs, timeout_ns, name): what each call of the engine is given. No callee has a name for a
    function that was never called."""
    context = get_context()
    context_id = None if context is None else context.carry_to(to)
    name = name_of(fn)
    if name not in _called:
        _called.add(name)
        name = ""
    return (*_dump_request((fn, tuple(args), kwargs or {}, context_id)), nanoseconds(timeout), name)


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
        """The exception for a caller here."""
        text = f"On {worker}:\n{self.text}"
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
