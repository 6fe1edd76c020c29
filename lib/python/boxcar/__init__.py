# SPDX-License-Identifier: MIT
"""Workers on one host call each other's functions through shared memory.

    import boxcar

    def add(a, b):
        return a + b

    boxcar.init()                           # BX_JOB, BX_RANK, BX_WORLD_SIZE, BX_NAME
    boxcar.call("worker1", add, (1, 2))     # 3, computed by worker1
    boxcar.shutdown()                       # all leave together

Functions travel by reference: each worker imports the module that has them. Arguments and results are pickled; buffers
of 4 KiB or more (numpy arrays) are copied beside the pickle. An exception arrives as its type, and its __cause__ and,
if that is text, its first argument have the traceback of the worker that raised it. Handlers run on threads of a pool,
at most `pool_threads` at a time, so a function that is called must be safe to run beside the rest of the program.

Times are in seconds; None is the default of `init`. boxcar.rpc has the names of torch.distributed.rpc.
"""
import _thread
import atexit
import os
import threading
import weakref
from collections import namedtuple

from . import _boxcar, _gpus
from ._batches import batch
from ._errors import (ArenaFull, Busy, Cancelled, Corrupt, Error, NoObject, NoSpace, NoWorker, OnLoan, PeerDead,
                      RankMissing, RemoteTraceback, Shutdown, Timeout, TooLarge, WorkerFailed, WouldDeadlock)
from ._futures import Future, wait_for
from ._messages import (Failure, dumps, enable_grad, find, get_context, join_context, loads, name_of, nanoseconds,
                        request, set_context)
from ._references import Ref
from ._spawn import spawn

__all__ = ["ArenaFull", "Busy", "Cancelled", "Corrupt", "Error", "Future", "Loans", "NoObject", "NoSpace", "NoWorker",
           "OnLoan", "PeerDead", "RankMissing", "Ref", "RemoteTraceback", "Shutdown", "Timeout", "TooLarge",
           "WorkerFailed", "WouldDeadlock", "async_function", "batch", "call", "call_async", "counter", "empty", "init",
           "is_alive", "leave", "loans", "map_gpus", "name", "rank", "ref", "remote", "shutdown", "spawn",
           "worker_name", "worker_rank", "world_size"]

__version__ = _boxcar.version

CALL, MAKE, OBJECT = range(3)

_job = None             # the job of this process, from init to shutdown
_making = threading.Lock()      # while init makes it
_runners = set()        # the threads that run callbacks of the job: one, and those whose callback waits
_named = set()          # of (kind, name): the functions that have a name in the engine
_answers = weakref.WeakKeyDictionary()      # of futures that are not done: the engine's that are to get the value
_answers_lock = threading.Lock()


class _Here(threading.local):
    in_handler = False      # this thread runs a handler
    callbacks_of = None     # the job whose callbacks this thread runs
    kept = None             # while this thread forks


_here = _Here()


# ---- The job -------------------------------------------------------------------------------------------------------

def _running():
    if _job is None:
        raise Shutdown("boxcar.init has not been called in this process, or boxcar.shutdown has")
    return _job


def _start_runner(job):
    runners = _runners
    thread = threading.Thread(target=_run_callbacks, args=(job, runners), name="boxcar callbacks", daemon=True)
    runners.add(thread)
    try:
        thread.start()
    except RuntimeError:                # none can be made
        runners.discard(thread)
        raise


def _before_wait():
    """If this thread, which is about to wait, runs callbacks, another one runs those that come: it may wait for one."""
    job = _here.callbacks_of
    if job is None or job is not _job:
        return
    try:
        _start_runner(job)
    except RuntimeError:                # those that come are run behind this one
        return
    _here.callbacks_of = None


def _run_callbacks(job, runners):
    _here.callbacks_of = job
    while _here.callbacks_of is not None:
        work = job.next()
        if work is None:
            break
        enable_grad()
        try:
            work[0](work[1])
        except BaseException as error:      # SystemExit too: without this thread no future is ever done
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__,
                                                           threading.current_thread())))
        del work                            # and with it the future, and what its callbacks refer to
    runners.discard(threading.current_thread())


def _uninterrupted(job, wait, joins=True):
    """Runs `wait` on a thread of its own, so that Ctrl-C ends the wait of this one. joins: job.interrupt ends it."""
    outcome = Future()

    def run():
        try:
            outcome.set_result(wait())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="boxcar waits", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.05)
    except BaseException:
        if joins:
            job.interrupt(True)
            thread.join()
        raise
    return outcome.result()


def init(job=None, *, name=None, rank=0, world_size=0, start_timeout=None, call_timeout=None, pool_threads=0,
         log=None):
    """Joins the job and returns when all its workers are there.

    Without world_size, job, name, rank and world size come from the environment (BX_JOB, BX_NAME, BX_RANK,
    BX_WORLD_SIZE). start_timeout: 30 s by default; call_timeout: 60 s, math.inf for none. After shutdown it may be
    called again. world_size=1 needs no job: this process calls itself. log(level, line) gets what no call reports, like
    the death of a worker, on the thread of the callbacks; level 0: an error, 1: a warning, 2: information. Raises
    RankMissing, Error; RuntimeError: this process is in a job already.
    """
    global _job
    if job is None and world_size == 1:
        job = f"alone-{os.getpid()}"
    with _making:
        if _job is not None:
            raise RuntimeError("this process is in a job already; boxcar.shutdown leaves it")
        _named.clear()
        _gpus.forget()
        started = _boxcar.Job(_dispatch, job, name, rank, world_size, nanoseconds(start_timeout),
                              nanoseconds(call_timeout), pool_threads, log and (lambda line: log(*line)))
        _job = started          # a handler may run, and call, before start has returned
    try:
        _start_runner(started)
        _uninterrupted(started, started.start)
    except BaseException:
        leave()
        raise


def shutdown(timeout=None):
    """Leaves the job together with the others: returns when no call is under way in any worker.

    timeout: 30 s by default; Timeout names the worker that did not come, and this worker has left all the same. After
    Ctrl-C this process is in no job, and the others see it leave when the timeout is over or it ends.
    """
    global _job, _runners
    job, timeout_ns, over = _running(), nanoseconds(timeout), threading.Event()
    if _here.in_handler:
        raise WouldDeadlock("boxcar.shutdown waits for this handler's end")

    def wait():
        try:
            job.shutdown(timeout_ns)
        finally:
            job.destroy()
            over.set()

    try:
        _uninterrupted(job, wait, joins=False)
    finally:
        if over.is_set():
            leave()
        else:               # nothing ends the engine's shutdown before its time: it is left to its thread
            _job, _runners = None, set()
            atexit.register(over.wait, 1)       # s: if the others leave too it is soon done, and removes its files


def leave():
    """Leaves at once: the other workers get Shutdown from calls to this one. Waits of other threads end."""
    global _job, _runners
    if _here.in_handler:
        raise WouldDeadlock("boxcar.leave waits for this handler's end")
    job, runners, _job, _runners = _job, _runners, None, set()
    if job is not None:
        job.destroy()
        if threading.current_thread() not in runners:
            for runner in list(runners):
                runner.join()


def _before_fork():
    """The child has the memory of `empty`, which multiprocessing drops here what it gives to a child."""
    memory = _boxcar.own_buffers()
    if memory:
        _here.kept = memory, *os.pipe()         # the child has the pipe's end until it ends, or executes a program


def _keep(memory, end):
    os.read(end, 1)
    os.close(end)


def _after_fork():
    if _here.kept is not None:
        memory, end, childs = _here.kept
        _here.kept = None
        os.close(childs)
        _thread.start_new_thread(_keep, (memory, end))      # threading.Thread waits for it to run: 1 ms and more


def _forget():
    global _job, _runners, _making, _answers_lock
    # Threads that are not here may have held them.
    _making, _answers_lock, Future._lock = threading.Lock(), threading.Lock(), threading.Lock()
    _boxcar.forget_buffers()
    if _here.kept is not None:
        os.close(_here.kept[1])
        _here.kept = None
    if _job is not None:
        _job.forget()
    _job, _runners = None, set()
    _here.in_handler, _here.callbacks_of = False, None      # the child of a fork in one of these has left it


atexit.register(leave)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget)


def rank():
    """The rank of this worker."""
    return _running().world()[0]


def world_size():
    """How many workers the job has, dead ones too."""
    return _running().world()[1]


def name():
    """The name of this worker."""
    job = _running()
    return job.name_of(job.world()[0])


def worker_name(rank):
    """The name of the worker of a rank."""
    return _running().name_of(rank)


def worker_rank(name):
    """The rank of the worker of a name. Raises NoWorker."""
    return _running().rank_of(name)


def _rank_of(worker):
    return worker if isinstance(worker, int) else worker_rank(worker)


def is_alive(worker):
    """Whether a worker, by its name or rank, has not died, left or been cut off."""
    return _running().is_alive(_rank_of(worker))


def counter(name):
    """A counter of this worker by its name: "calls_sent", "tensor_bytes_sent" and the like."""
    return _running().counter(name)


Loans = namedtuple("Loans", "leases bytes oldest granted returned taken_back borrowed")
Loans.__doc__ = """What a worker has lent to others: leases (one a message) and their bytes now, the age of the oldest
in seconds; leases since the start: granted, returned, taken_back from the dead; and how many it has borrowed now."""


def loans(worker=None):
    """The Loans of this worker to another one, by its name or rank, or to all."""
    return Loans(*_running().loans(-1 if worker is None else _rank_of(worker)))


# ---- Requests ------------------------------------------------------------------------------------------------------

def async_function(fn):
    """Marks a function whose result is a future: the caller gets its value, and no thread waits for it here."""
    fn._boxcar_async = True
    return fn


def _is_async(fn):
    return getattr(fn, "_boxcar_async", False) is True      # a mock has every attribute


def _value_of(future):
    return future.wait() if hasattr(future, "wait") else future.result()


def _answer(replies, future, caller):
    """Answers with the value of a future that is done: it is pickled and copied once, as it is now."""
    try:
        payload, buffers, refs = dumps(_value_of(future), caller)
        if len(replies) > 1:
            buffers = [_running().place(buffer) for buffer in buffers]
        while replies:
            replies[-1].set(payload, buffers, refs)
            replies.pop()
    except Shutdown:                    # nobody waits any more
        pass
    except BaseException as error:      # of the future, the pickle, or the engine: it is too large
        failure = dumps(Failure.of(error))
        for reply in replies:
            reply.set(*failure)


def _answer_later(future, caller):
    """The engine's future of a future of Python or torch. Requests that get one future share what is pickled, unless it
    may differ by the caller: by its context, or its GPUs."""
    reply, context = _boxcar.Future(_running()), get_context()
    if context is not None or _gpus.has_map(caller):
        replies = [reply]
    else:
        with _answers_lock:
            replies = _answers.get(future)
            if replies is not None:
                replies.append(reply)
                return reply
            replies = _answers[future] = [reply]

    def done(future):
        with _answers_lock:
            if _answers.get(future) is replies:
                del _answers[future]
        before = get_context()
        set_context(context)
        try:
            _answer(replies, future, caller)
        finally:
            set_context(before)

    future.add_done_callback(done)
    return reply


def _give_name(kind, fn):
    """Inspectors show later calls of the function by its name, if it is one of the first 125 here."""
    key = kind, name_of(fn)
    job = _job
    if key not in _named and job is not None:
        _named.add(key)
        job.register(*key)


def _dispatch(kind, caller, message, object):
    """On a thread of the engine's pool: what a request gets."""
    _here.in_handler = True
    enable_grad()
    try:
        module, fn, context_id, kwargs, *args = loads(message)
        if module is not None:
            fn = find(module, fn)
        set_context(join_context(context_id))
        _give_name(kind, fn)
        if kind == OBJECT:
            if isinstance(object, Failure):
                return dumps(object)
            if isinstance(fn, str):
                fn = getattr(object, fn)
            else:
                args.insert(0, object)
        result = fn(*args, **(kwargs or {}))
        if _is_async(fn):
            if not hasattr(result, "add_done_callback"):
                raise TypeError(f"{fn!r} is async, but it returned no future: {result!r}")
            if kind != MAKE:
                return _answer_later(result, caller)
            result = _value_of(result)
        return result if kind == MAKE else dumps(result, caller)
    except BaseException as error:
        failure = Failure.of(error)
        return failure if kind == MAKE else dumps(failure)
    finally:
        set_context(None)


# ---- Calls ---------------------------------------------------------------------------------------------------------

def _to(worker):
    return f"#{worker}" if isinstance(worker, int) else worker


def _begin(to, fn, args, kwargs, timeout):
    try:
        return _running().call(_to(to), *request(to, fn, args, kwargs, timeout))
    except Error as error:
        raise error._of(to, fn)


def call_async(to, fn, args=(), kwargs=None, timeout=None):
    """Calls fn(*args, **kwargs) in worker `to`, a name or rank, and returns a Future of its result."""
    return Future._of(_begin(to, fn, args, kwargs, timeout), to, fn)


def call(to, fn, args=(), kwargs=None, timeout=None):
    """Calls fn(*args, **kwargs) in worker `to`, a name or rank, and returns its result.

    Raises what fn raised, with the remote traceback as its __cause__; PeerDead, Timeout, NoWorker, Shutdown, TooLarge.
    """
    return wait_for(_begin(to, fn, args, kwargs, timeout), to, fn)


def remote(to, fn, args=(), kwargs=None, timeout=None):
    """Makes fn(*args, **kwargs) in worker `to` and keeps it there. Returns a Ref to it at once; what fn raised is
    raised by each use of the reference."""
    try:
        return Ref(_running().remote(_to(to), *request(to, fn, args, kwargs, timeout)))
    except Error as error:
        raise error._of(to, fn)


def map_gpus(to, gpus):
    """Tensors of torch on a GPU here that are sent to worker `to`, a name or rank, arrive on a GPU there: {GPU here:
    GPU there}, by the ordinals of CUDA. Those that it sends back take the way back, if it has not called this itself.

    Opens the GPUs, here and there; that takes up to seconds. Raises Error: there is no such GPU, or no driver.
    """
    _gpus.use(_rank_of(to), gpus, True)
    call(to, _gpus.use, (rank(), {there: here for here, there in gpus.items()}, False))


def empty(nbytes):
    """Memory in this worker's arena, as a writable memoryview: numpy.frombuffer and torch.frombuffer take it.

    Messages lend it and do not copy it, so write to it only before it is sent: receivers may see what is written later.
    So may the child of a fork, until it writes to a page itself, which nobody else sees. Raises ArenaFull, NoSpace.
    """
    return memoryview(_running().allocate(nbytes))


def ref(object):
    """A Ref to an object of this worker."""
    return Ref(_running().ref(object))
