# SPDX-License-Identifier: MIT
"""Where callbacks run, what futures keep, event loops; jobs.py runs the classes Run*."""
import gc
import os
import signal
import sys
import threading
import time
import unittest
import weakref

import boxcar
from boxcar import _futures
from jobs import CASE, Run, main


class Kept:
    pass


def slowly(value):
    time.sleep(0.002)
    return value


def fails(value):
    raise KeyError("no such thing")


class RunCallbacks(Run):
    """A callback of a call does not run on the thread that waits for it: here that has a lock which the callback takes.
    What failed keeps no argument."""

    def first(self):
        lock, ran = threading.Lock(), []

        def callback(future):
            ran.append((future.result(), lock.acquire(timeout=5)))
            lock.release()

        for i in range(30):
            future = boxcar.call_async(1, slowly, (i,))
            future.add_done_callback(callback)
            with lock:
                CASE.assertEqual(future.result(), i)
            until = time.monotonic() + 10
            while len(ran) == i and time.monotonic() < until:
                time.sleep(0.001)
        CASE.assertEqual(ran, [(i, True) for i in range(30)])
        gc.disable()
        for call in (boxcar.call, lambda *args: boxcar.call_async(*args).result(),
                     lambda *args: boxcar.call_async(*args).wait()):
            CASE.assertIsNone(self.kept(call)())
        gc.enable()

    def kept(self, call):
        mine = Kept()
        try:
            call(1, fails, (mine,))
        except KeyError:
            return weakref.ref(mine)


@boxcar.async_function
def later(value):
    future = boxcar.Future()
    future.set_result(value)
    return future


class Loop:
    """An event loop that is closed at once."""

    def add_reader(self, *args):
        pass

    def is_closed(self):
        return True


class Tests(unittest.TestCase):
    def test_threads_may_begin_loops_at_a_time(self):
        begun, before = [], sys.getswitchinterval()

        def begin():
            for _ in range(5000):
                _futures._queue_of(Loop())
            begun.append(1)

        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=begin) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
        self.assertEqual(len(begun), 8)

    def test_a_forked_child_needs_no_thread_that_it_has_not(self):
        """The locks were held by one."""
        with boxcar._answers_lock, boxcar._making, boxcar.Future._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                boxcar.init(world_size=1)
                answer = boxcar.call_async(0, later, (5,)).result()
                boxcar.leave()
                os._exit(answer)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 5)


if __name__ == "__main__":
    main(Tests)
