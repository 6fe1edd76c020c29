# SPDX-License-Identifier: MIT
"""boxcar.batch, and one future as the answer to several requests: `python3 test_batches.py` runs the jobs."""
import math
import os
import signal
import threading
import time
import unittest
import weakref

import boxcar
from jobs import CASE, Large, Run, main

sizes = []          # of the batches that have run in this worker
inside = []


@boxcar.batch(max_rows=4, flush_after=0.2)
def double(calls):
    CASE.assertEqual(inside, [])
    inside.append(1)
    time.sleep(0.01)
    inside.clear()
    sizes.append(len(calls))
    return [2 * n for n, in calls]


@boxcar.batch(max_rows=2, flush_after=30)
def fails(calls):
    """The call with "one" alone fails; with "all" both do; with "few" one has no result."""
    said = [text for text, in calls]
    if "all" in said:
        raise KeyError("all")
    return [ValueError("one") if text == "one" else text for text in said if text != "few"]


class Kept:
    pass


@boxcar.batch(max_rows=2, flush_after=0.01)
def types(calls):
    return [type(value) for value, in calls]


@boxcar.batch(max_rows=2, flush_after=math.inf)
def pairs(calls):
    time.sleep(0.05)
    return [threading.current_thread().name for _ in calls]


@boxcar.batch(max_rows=2, flush_after=30)
def asks_back(calls):
    return [boxcar.call(0, time.sleep, (0.4,)) or n for n, in calls]


def sizes_here():
    return sizes


def calls_then_dies():
    boxcar.call_async(1, double, (1,))
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()


class RunBatches(Run):
    size = 3
    status = {2: -signal.SIGKILL}

    def first(self):
        def outcomes(fn, *args, **kwargs):
            futures = [boxcar.call_async(1, fn, (arg,), **kwargs) for arg in args]
            return [future.exception() or future.result() for future in futures]

        began = time.monotonic()
        CASE.assertEqual(outcomes(double, *range(10)), list(range(0, 20, 2)))
        CASE.assertGreaterEqual(time.monotonic() - began, 0.2)
        CASE.assertEqual(boxcar.call(1, sizes_here), [4, 4, 2])
        CASE.assertEqual(double(4).result(), 8)
        CASE.assertEqual(outcomes(double, *range(400)), list(range(0, 800, 2)))
        CASE.assertEqual(outcomes(fails, "one", "a")[1], "a")
        CASE.assertRegex(repr(outcomes(fails, "a", "one")[1]), "ValueError.*one")
        CASE.assertEqual([type(error) for error in outcomes(fails, "a", "all")], [KeyError, KeyError])
        CASE.assertRegex(str(outcomes(fails, "a", "few")[0]), "returned 1 results for 2 calls")
        with CASE.assertRaisesRegex(TypeError, "keyword"):
            boxcar.call(1, double, (1,), {"n": 1})

        kept = Kept()
        gone = weakref.ref(kept)
        CASE.assertEqual(types(kept).result(), Kept)
        del kept
        until = time.monotonic() + 10
        while gone() is not None:           # the batch's thread does not keep the last arguments
            CASE.assertLess(time.monotonic(), until)

        # One that is never due; the batch's own thread runs what was completed while another one ran.
        CASE.assertEqual(len(outcomes(pairs, 1, 2)), 2)
        CASE.assertIn("boxcar batch", outcomes(pairs, *range(8), timeout=10))

        # The call that completes a batch gives up while it runs: the others do not notice.
        other = boxcar.call_async(1, asks_back, (1,))
        with CASE.assertRaises(boxcar.Timeout):
            boxcar.call(1, asks_back, (2,), timeout=0.2)
        CASE.assertEqual(other.result(), 1)

        # A caller dies: its row is a row.
        boxcar.call(2, calls_then_dies)
        while boxcar.is_alive(2):
            time.sleep(0.01)
        CASE.assertEqual(outcomes(double, 1, 2, 3), [2, 4, 6])

        boxcar.call_async(1, double, (5,)).add_done_callback(lambda future: answers.append(future.result()))

    def leave(self):
        """Rows that wait are answered before the job ends."""
        boxcar.shutdown()
        CASE.assertEqual(answers, [10] if os.environ["BX_RANK"] == "0" else [])


answers = []


class Counted(Large):
    pickled = 0

    def __reduce_ex__(self, protocol):
        Counted.pickled += 1
        return super().__reduce_ex__(protocol)


MEGABYTES = 16 << 20
asked = []
answer = boxcar.Future()


@boxcar.async_function
def ask():
    asked.append(1)
    return answer


def asked_here():
    return len(asked)


def complete():
    """How often the answer was pickled. It changes at once."""
    data = bytearray(b"x" * MEGABYTES)
    answer.set_result((Counted(data), boxcar.ref(asked)))
    data[0] = ord("y")
    return Counted.pickled


class RunOneAnswer(Run):
    """Requests that get one future get one pickle and one copy, made when the future is done; each has its own loan and
    reference. One that is given up leaves the others theirs. The arena has room for two."""

    def init(self):
        os.environ["BX_ARENA_BYTES"] = str(3 * MEGABYTES)
        super().init()

    def first(self):
        futures = [boxcar.call_async(1, ask, timeout=0.2 if i == 3 else None) for i in range(6)]
        given_up = futures.pop(3)
        with CASE.assertRaises(boxcar.Timeout):
            given_up.result()
        while boxcar.call(1, asked_here) < 6:
            time.sleep(0.001)
        CASE.assertEqual(boxcar.call(1, complete), 1)
        for future in futures:
            large, ref = future.result()
            CASE.assertEqual(bytes(large.data), b"x" * MEGABYTES)
            CASE.assertEqual(ref.call("__len__"), 6)
            large.data[1] = 0           # of this one's own
        CASE.assertEqual(bytes(boxcar.call(1, ask)[0].data), b"y" + b"x" * (MEGABYTES - 1))


class Tests(unittest.TestCase):
    pass


if __name__ == "__main__":
    main(Tests)
