# SPDX-License-Identifier: MIT
"""Futures: of calls, and those that a program makes itself."""
import concurrent.futures
import functools
import threading
import weakref

import boxcar

from ._boxcar import Queue
from ._errors import Error, Shutdown, Timeout
from ._messages import FOREVER, Failure, has_torch, loads

SOON = 1000000          # ns: a wait that takes no longer is no reason for another thread

_DONE = ("FINISHED", "CANCELLED", "CANCELLED_AND_NOTIFIED")     # states of concurrent.futures


def settle(engine, worker, function):
    """(value, None) or (None, exception) of an engine's future that is done."""
    try:
        value = loads(engine.result())
    except KeyboardInterrupt:               # of this thread
        raise
    except BaseException as error:          # of the engine, or of the pickle
        return None, error._of(worker, function) if isinstance(error, Error) else error
    return (None, value.to_raise(worker)) if isinstance(value, Failure) else (value, None)


def wait_for(engine, worker, function):
    """The value of an engine's future, when that is done; raises its exception."""
    try:
        if not engine.wait(SOON):
            boxcar._before_wait()
            engine.wait(FOREVER)
    except Error as error:
        raise error._of(worker, function)
    value, error = settle(engine, worker, function)
    try:
        if error is not None:
            raise error
        return value
    finally:
        del error                           # else it and this frame, which it has, keep each other and the arguments


_queues = weakref.WeakKeyDictionary()       # of event loops: what the engine tells them


def _queue_of(loop):
    queue = _queues.get(loop)
    if queue is None:
        for other in [ref() for ref in _queues.keyrefs()]:      # items() fails if another thread adds its loop
            if other is not None and other.is_closed():         # nobody reads what came since, which keeps the loop
                _queues[other].take()
        queue = _queues[loop] = Queue()
        loop.add_reader(queue.fileno(), _run_queue, queue)
    return queue


def _run_queue(queue):
    for done, engine in queue.take():
        done(engine)


class Future(concurrent.futures.Future):
    """A value that is set once, or an exception. A program makes one with Future() and completes it with set_result or
    set_exception; calls return others. result() raises Timeout when the time is over. Callbacks run on a thread of
    Boxcar's own, or at once if the future is done. `await` works in any event loop."""

    _engine = None      # of a call: the engine's future, which may be ahead of this one
    _armed = False      # the engine tells when it is done

    # What the base class has. Of a call's future its condition and lists, which take 1 us, are made when they are used.
    _state, _result, _exception = "PENDING", None, None
    _made = None        # the condition
    _done_callbacks = _list_of_waiters = ()
    _lock = threading.Lock()

    @property
    def _condition(self):
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._done_callbacks, self._list_of_waiters = [], []
                    self._made = threading.Condition()
        return self._made

    @_condition.setter
    def _condition(self, condition):
        self._made = condition

    @staticmethod
    def _of(engine, worker, function):
        of_type = _future_type(has_torch())
        future = of_type.__new__(of_type)       # not of_type(): it makes all of it
        future._engine = engine
        future._worker = worker
        future._function = function
        return future

    def _pending(self):
        """The engine's future, if that is not done; what it has is taken if it is."""
        engine = self._engine
        if engine is None or self._state in _DONE:
            return None
        if not engine.done():
            return engine
        self._take(engine)
        return None

    def _take(self, engine):
        value, error = settle(engine, self._worker, self._function)
        with self._lock:
            is_alone = self._made is None and self._state == "PENDING"      # nobody waits, no callback is there
            if is_alone:
                self._result, self._exception = value, error
                self._state = "FINISHED"
        if not is_alone:
            try:
                if error is not None:
                    self.set_exception(error)
                else:
                    self.set_result(value)
            except concurrent.futures.InvalidStateError:    # another thread was faster
                pass
        self._engine = None                     # and the reply's memory

    def _arm(self):
        """Has _complete called when the engine's future is done; not on this thread."""
        engine = self._engine
        if engine is None or self._armed or self._state != "PENDING":
            return
        self._armed = True
        try:
            engine.on_done(self._complete)
        except Shutdown:                        # of the job: it has no thread for callbacks any more
            threading.Thread(target=self._complete, args=(engine,), daemon=True).start()

    def _complete(self, engine):
        if self._state not in _DONE:
            self._take(engine)
        super()._invoke_callbacks()

    def _invoke_callbacks(self):
        """Not those of a call, on the thread that takes its value: that may hold a lock that one of them needs."""
        if not self._armed:
            super()._invoke_callbacks()

    @property
    def _waiters(self):
        """Of concurrent.futures.wait and as_completed, which ask nothing else of a future."""
        if self._state in ("PENDING", "RUNNING"):       # set_result asks too
            self._arm()
            boxcar._before_wait()
        return self._list_of_waiters

    @_waiters.setter
    def _waiters(self, waiters):
        self._list_of_waiters = waiters

    def _wait(self, timeout):
        engine = self._pending()
        if engine is None:
            if self._state not in _DONE:
                boxcar._before_wait()
            if timeout is not None and self._state not in _DONE and not concurrent.futures.wait(
                    [self], min(timeout, threading.TIMEOUT_MAX)).done:
                raise Timeout(f"the future was not done within {timeout} s")
            return
        left = FOREVER if timeout is None else max(1, int(min(timeout, 1e9) * 1e9))
        done = engine.wait(min(left, SOON))
        if not done and left > SOON:
            boxcar._before_wait()
            done = engine.wait(left - SOON)
        if not done:
            raise Timeout(f"no answer within {timeout} s")._of(self._worker, self._function)
        self._take(engine)

    def done(self):
        self._pending()
        return self._state in _DONE

    def result(self, timeout=None):
        try:
            if self._state != "FINISHED":
                self._wait(timeout)
            if self._state == "FINISHED" and self._exception is None:       # in this order
                return self._result
            return super().result(timeout)
        finally:
            self = None                         # as in concurrent.futures: the exception has this frame

    def exception(self, timeout=None):
        self._wait(timeout)
        return super().exception(timeout)

    def cancel(self):
        """A request that still waits at the callee is not run. False: the future was done."""
        engine = self._pending()
        return engine.cancel() if engine is not None else super().cancel()

    def add_done_callback(self, fn):
        if self._pending() is not None:
            self._arm()
        super().add_done_callback(fn)

    def then(self, fn):
        """A future of fn(self), which runs when this one is done."""
        if not callable(fn):
            raise TypeError(f"a callback must be callable, not {fn!r}")
        made = type(self)()

        def run(future):
            try:
                made.set_result(fn(future))
            except BaseException as error:
                made.set_exception(error)

        self.add_done_callback(run)
        return made

    def wait(self):
        """result(), by torch's name."""
        try:
            return self.result()
        finally:
            self = None

    value = wait

    def __await__(self):
        import asyncio          # takes as long as all of boxcar
        engine = self._pending()
        if engine is not None or self._state not in _DONE:
            boxcar._before_wait()
        if engine is not None:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            try:
                engine.on_done(lambda engine: waiter.done() or waiter.set_result(None), _queue_of(loop))
            except Shutdown:
                engine = None
        if engine is None:
            return (yield from asyncio.wrap_future(self).__await__())
        try:
            yield from waiter
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.result()


@functools.lru_cache
def _future_type(torch_is_there):
    """Of futures of calls."""
    if not torch_is_there:
        return Future
    from ._torch_future import TorchFuture
    return TorchFuture
