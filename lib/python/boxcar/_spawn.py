# SPDX-License-Identifier: MIT
"""spawn: a job whose workers are children of this process.

A worker executes the interpreter anew (the "spawn" of multiprocessing): after threads or torch a fork is not safe. It
has a pipe to this process. It sends None when it is in the job, then the exception that ended it. It ends when the pipe
does, because this process has closed it or has died.
"""
import contextlib
import glob
import math
import os
import signal
import sys
import threading
import time

import boxcar

from ._errors import PeerDead, Shutdown, WorkerFailed
from ._messages import Failure

GRACE = 1       # s in which a worker ends in order when the pipe ends, and in which a failure's cause may come


def _remove(job):
    """Removes what workers left that were killed."""
    for path in glob.glob(f"/dev/shm/boxcar.{os.geteuid()}.{job}.*"):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass


# ---- A worker ------------------------------------------------------------------------------------------------------

def _follow(pipe, job):
    """Ends this worker when the pipe ends: by SystemExit in the main thread, or if that does not end it, at once."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    _remove(job)
    os._exit(1)


def _work(pipe, job, rank, world_size, rejoins, fn, args):
    if rejoins:
        os.environ["BX_REJOIN"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C: the parent gets it too, and ends its workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.register_at_fork(after_in_child=pipe.close)      # else it ends with the last child that was forked here
    threading.Thread(target=_follow, args=(pipe, job), daemon=True).start()
    try:
        boxcar.init(job, rank=rank, world_size=world_size, start_timeout=math.inf)
        pipe.send(None)
        fn(rank, *args)
        if boxcar._job is not None:
            boxcar.shutdown(math.inf)
    except Exception as error:
        with contextlib.suppress(OSError):              # the parent has gone, or knows enough
            pipe.send(Failure.of(error))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)   # it is leaving


# ---- The parent ----------------------------------------------------------------------------------------------------

def _how_it_ended(process):
    """None: well."""
    status = process.exitcode
    if status == 0:
        return None
    how = f"ended with status {status}"
    if status < 0:          # a real-time signal has no name
        how = "was ended by " + next((s.name for s in signal.Signals if s == -status), f"signal {-status}")
    return WorkerFailed(f"{process.name} (pid {process.pid}) {how}")


def _follows(error):
    """Whether another worker's end is behind an error."""
    return isinstance(error, (PeerDead, Shutdown))


class _Launch:
    def __init__(self, fn, world_size, args, restart):
        import multiprocessing.connection       # takes a third as long as all of boxcar
        self._connections = multiprocessing.connection
        self._context = multiprocessing.get_context("spawn")
        # _remove must not meet the files of another container, where a process has the same pid.
        self._job = f"python-{os.getpid()}-{os.urandom(4).hex()}"
        self._work = world_size, restart > 0, fn, args
        self._workers = {}              # those that have not ended: rank and process, by pipe
        self._left = [restart] * world_size
        self._away = set(range(world_size))     # ranks that are not in the job yet, or not again
        self._ends = False              # one has ended that is not started again

    def start(self, rank):
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._job, rank, *self._work),
                                        name=f"worker{rank}")
        with theirs:
            process.start()
        self._workers[mine] = rank, process

    def _restarts(self, rank, process):
        """Whether a worker that has ended is started again."""
        if process.exitcode >= 0 or rank in self._away or self._ends or self._left[rank] == 0:
            return False
        self._left[rank] -= 1
        self._away.add(rank)
        self.start(rank)
        return True

    def _hear(self, pipe):
        """Takes what has come from a worker. The error, or None."""
        rank, process = self._workers[pipe]
        try:
            failure = pipe.recv()
        except (EOFError, OSError):
            process.join()
            pipe.close()
            del self._workers[pipe]
            if self._restarts(rank, process):
                return None
            self._ends = True
            if process.exitcode == 0 and self._away:
                return WorkerFailed(f"worker{min(self._away)} was not in the job when {process.name} ended")
            return _how_it_ended(process)
        if failure is not None:
            return failure.to_raise(process.name)
        self._away.discard(rank)
        return None

    def wait(self):
        """Returns when all have ended, and raises what the first raised that did not end because of another one."""
        first, until = None, math.inf
        while self._workers and (first is None or _follows(first)):
            timeout = None if first is None else max(0, until - time.monotonic())
            ready = self._connections.wait(self._workers, timeout)
            if not ready:
                break
            for pipe in ready:
                error = self._hear(pipe)
                if error is not None and (first is None or _follows(first) and not _follows(error)):
                    first, until = error, time.monotonic() + GRACE
        if first is not None:
            raise first

    def end(self):
        for pipe in self._workers:
            pipe.close()
        for _, process in self._workers.values():
            process.join(2 * GRACE)
            if process.exitcode is None:
                process.kill()
                process.join()
        _remove(self._job)


def spawn(fn, world_size, args=(), *, restart=0):
    """Starts world_size workers, each of which is in a new job with its rank and calls fn(rank, *args), and waits until
    all have returned from it and left the job together.

    fn and args are pickled: each worker imports the module of fn; the program's own needs `if __name__ ==
    "__main__":` around the call of spawn. Raises what the first worker raised, as its type and with its traceback as
    __cause__, or WorkerFailed if it ended in another way; the other workers are ended within 2 s, and so they are on
    Ctrl-C, or if this process dies.

    restart: how often each worker is started again if a signal ends it while the others are in the job. It joins them
    and calls fn; their calls to it raise PeerDead until then.
    """
    launch = _Launch(fn, world_size, args, restart)
    try:
        for rank in range(world_size):
            launch.start(rank)
        launch.wait()
    finally:
        launch.end()
