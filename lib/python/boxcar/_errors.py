# SPDX-License-Identifier: MIT
"""Errors of the engine as exceptions."""
from concurrent.futures import CancelledError

from . import _boxcar


class Error(RuntimeError):
    """What became of a job, a worker or a call. code: BX_E_* of boxcar.h, or -errno; name: of the code. worker and
    function: of the call that failed, or None."""

    def __init__(self, text, code=0, name=""):
        super().__init__(text)
        self.code = code
        self.name = name
        self.worker = None
        self.function = None

    def _of(self, worker, function):
        self.worker, self.function = worker, function
        return self

    def __reduce__(self):
        return type(self), (str(self), self.code, self.name)


class PeerDead(Error, ConnectionError):
    """The worker called has died."""


class Shutdown(Error):
    """The job or the worker is shutting down, or this process is in no job."""


class Timeout(Error, TimeoutError):
    """The deadline passed."""


class Cancelled(Error, CancelledError):
    """The call was cancelled."""


class NoWorker(Error, LookupError):
    """The job has no worker of that name."""


class NoObject(Error, LookupError):
    """The object of a reference is gone."""


class RankMissing(Error):
    """A rank did not come in time."""


class WouldDeadlock(Error):
    """Waiting here would stop the thread that completes the wait."""


class Busy(Error):
    """Every thread of the callee's pool is blocked in a wait."""


class TooLarge(Error):
    """The message is too large."""


class ArenaFull(Error, MemoryError):
    """The worker's arena is full."""


class NoSpace(Error, MemoryError):
    """/dev/shm is full."""


class OnLoan(Error):
    """As much is on loan to other workers as may be."""


class Corrupt(Error):
    """The peer's shared memory holds nonsense, it was cut off."""


class WorkerFailed(Error):
    """A worker of boxcar.spawn ended badly."""


class RemoteTraceback(Exception):
    """The cause of an exception that another worker raised: its traceback, as text."""

    def __str__(self):
        return f'\n"""\n{self.args[0]}"""'


_TYPES = {"BX_E_PEER_DEAD": PeerDead, "BX_E_SHUTDOWN": Shutdown, "BX_E_INTERRUPTED": Shutdown,
          "BX_E_TIMEOUT": Timeout, "BX_E_CANCELLED": Cancelled, "BX_E_NO_WORKER": NoWorker,
          "BX_E_NO_OBJECT": NoObject, "BX_E_RANK_MISSING": RankMissing,
          "BX_E_WOULD_DEADLOCK": WouldDeadlock, "BX_E_BUSY": Busy, "BX_E_TOO_LARGE": TooLarge,
          "BX_E_ARENA_FULL": ArenaFull, "BX_E_NO_SPACE": NoSpace, "BX_E_ON_LOAN": OnLoan, "BX_E_CORRUPT": Corrupt,
          "BX_E_WORKER_FAILED": WorkerFailed}


def _make(code, name, text):
    return ValueError(text) if name == "-EINVAL" else _TYPES.get(name, Error)(text, code, name)


_boxcar.set_make_error(_make)
