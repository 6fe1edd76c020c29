# SPDX-License-Identifier: MIT
"""Functions that run once for many calls.

The thread of the pool whose call completes a batch runs it, so that no thread has to be woken; the batch's own thread
runs what is due before it is complete, and what has become complete while another batch ran.
"""
import concurrent.futures
import functools
import os
import threading
import time

import boxcar

from . import _boxcar
from ._futures import Future
from ._messages import enable_grad, get_context, set_context


class _Batch:
    def __init__(self, fn, max_rows, flush_after):
        self._fn = fn
        self._max_rows = max_rows
        self._flush_after = flush_after
        self._reset()

    def _reset(self):
        self._pid = os.getpid()
        self._more = threading.Condition()      # with its lock: all that follows
        self._waiting = []                      # (when it is due, args, future), the first first
        self._runs = False
        self._thread = None
        self._wakes = False                     # the thread does, before the first row is due

    def add(self, args):
        """A future of the call's result."""
        if self._pid != os.getpid():            # after a fork: the rows and the thread are the parent's
            self._reset()
        future = Future()
        with self._more:
            self._waiting.append((min(time.monotonic() + self._flush_after, threading.TIMEOUT_MAX), args, future))
            rows = self._take() if not self._runs and len(self._waiting) >= self._max_rows else None
            if rows is None and not self._runs and not self._wakes:
                self._wake()
        if rows is not None:
            self._run(rows)
        return future

    def _take(self):
        self._runs = True
        rows = self._waiting[:self._max_rows]
        del self._waiting[:self._max_rows]
        return rows

    def _wake(self):
        if self._thread is None:
            self._thread = threading.Thread(target=self._flush, name="boxcar batch", daemon=True)
            self._thread.start()
        self._wakes = True
        self._more.notify()

    def _flush(self):
        boxcar._here.in_handler = True
        while True:
            with self._more:
                while self._runs or not self._waiting or len(self._waiting) < self._max_rows and (
                        self._waiting[0][0] > time.monotonic()):
                    self._wakes = bool(self._waiting) and not self._runs
                    self._more.wait(self._waiting[0][0] - time.monotonic() if self._wakes else None)
                rows = self._take()
            enable_grad()
            self._run(rows)
            del rows                    # the calls' arguments

    def _run(self, rows):
        context = get_context()         # the calls it makes are not made for the last row alone
        set_context(None)
        _boxcar.detach(True)
        try:
            results = list(self._fn([args for _, args, _ in rows]))
            if len(results) != len(rows):
                raise ValueError(f"{self._fn.__qualname__} returned {len(results)} results for {len(rows)} calls")
        except BaseException as error:
            results = [error] * len(rows)
        finally:
            _boxcar.detach(False)
            set_context(context)
        with self._more:
            self._runs = False
            if self._waiting:
                self._wake()
        for (_, _, future), result in zip(rows, results):
            try:
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)
            except concurrent.futures.InvalidStateError:        # cancelled
                pass


def batch(max_rows, flush_after):
    """Makes a function run once for many calls.

    The function gets a list of tuples, the arguments of each call, and returns a list of as many results; one that is
    an exception is raised by that call, and what the function raises by all. It runs when max_rows calls wait, or when
    the first has waited for flush_after seconds; not twice at a time. In its own process a call returns a Future.

        @boxcar.batch(max_rows=10, flush_after=0.005)
        def act(calls):
            return policy(numpy.stack([state for state, in calls])).tolist()
    """
    def decorate(fn):
        made = _Batch(fn, max_rows, flush_after)

        @boxcar.async_function
        @functools.wraps(fn)
        def call(*args):
            return made.add(args)

        return call

    return decorate
