# SPDX-License-Identifier: MIT
"""spawn: a job whose workers are children of this process.

A worker executes the interpreter anew (the "spawn" of multiprocessing): after threads or torch a fork is not safe. It
has a pipe to this process. It sends the exception that ended it, and it ends when the pipe does, because this process
has closed it or has died.
"""
import contextlib
import glob
import itertools
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time

import boxcar

from ._errors import PeerDead, Shutdown, WorkerFailed
from ._messages import Failure

GRACE = 1       # s in which a worker ends in order when the pipe ends, and in which a failure's cause may come

_numbers = itertools.count()


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


def _work(pipe, job, rank, world_size, fn, args):
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C: the parent gets it too, and ends its workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_follow, args=(pipe, job), daemon=True).start()
    try:
        boxcar.init(job, rank=rank, world_size=world_size, start_timeout=math.inf)
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
    return WorkerFailed(f"{process.name} (pid {process.pid}) ended with status {status}" if status > 0 else
                        f"{process.name} (pid {process.pid}) was ended by {signal.Signals(-status).name}")


def _follows(error):
    """Whether another worker's end is behind an error."""
    return isinstance(error, (PeerDead, Shutdown))


def _wait(workers):
    """Returns when all have ended, and raises what the first raised that did not end because of another one."""
    first, until = None, math.inf
    while workers and (first is None or _follows(first)):
        ready = multiprocessing.connection.wait(workers, None if first is None else max(0, until - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            process = workers[pipe]
            try:
                error = pipe.recv().to_raise(process.name)
            except (EOFError, OSError):
                process.join()
                error = _how_it_ended(process)
                del workers[pipe]
            if error is not None and (first is None or _follows(first) and not _follows(error)):
                first, until = error, time.monotonic() + GRACE
    if first is not None:
        raise first


def spawn(fn, world_size, args=()):
    """Starts world_size workers, each of which is in a new job with its rank and calls fn(rank, *args), and waits until
    all have returned from it and left the job together.

    fn and args are pickled: each worker imports the module of fn; the program's own needs `if __name__ ==
    "__main__":` around the call of spawn. Raises what the first worker raised, as its type and with its traceback in
    the message, or WorkerFailed if it ended in another way; the other workers are ended within 2 s, and so they are on
    Ctrl-C, or if this process dies.
    """
    context = multiprocessing.get_context("spawn")
    job = f"python-{os.getpid()}-{next(_numbers)}"
    workers = {}
    processes = []
    try:
        for rank in range(world_size):
            mine, theirs = context.Pipe()
            workers[mine] = process = context.Process(target=_work, args=(theirs, job, rank, world_size, fn, args),
                                                      name=f"worker{rank}")
            with theirs:
                process.start()
            processes.append(process)
        _wait(dict(workers))
    finally:
        for pipe in workers:
            pipe.close()
        for process in processes:
            process.join(2 * GRACE)
            if process.exitcode is None:
                process.kill()
                process.join()
        _remove(job)
