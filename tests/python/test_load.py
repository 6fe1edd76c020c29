# SPDX-License-Identifier: MIT
"""Many calls, of many threads; FLAT_CALLS in the environment says how many of one thread (50,000)."""
import concurrent.futures
import os
import unittest

import boxcar
from jobs import CASE, Large, Run, figures, main


def add(a, b):
    return a + b


def echo(value):
    return value


def raises(error):
    raise error


def nested(depth):
    other = 1 - boxcar.rank()
    return depth if depth == 0 else boxcar.call(other, nested, (depth - 1,)) + 1


class Counter:
    def __init__(self):
        self.n = 0

    def add(self, n):
        self.n += n
        return self.n


class RunThreads(Run):
    """16 threads of each worker call the other, which calls back."""

    def calls(self, other):
        for i in range(300):
            CASE.assertEqual(boxcar.call(other, nested, (i % 4,)), i % 4)
            CASE.assertEqual(boxcar.call_async(other, add, (i, 1)).result(), i + 1)

    def first(self):
        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            for done in [threads.submit(self.calls, 1 - boxcar.rank()) for _ in range(16)]:
                done.result()

    other = first


class RunFlat(Run):
    """Calls leave no memory, descriptor or thread behind, here and there."""

    def calls(self, n):
        for i in range(n):
            boxcar.call(1, add, (i, 1))
            if i % 20 == 0:
                boxcar.call(1, echo, (Large(bytearray(1 << 16)),))
                boxcar.remote(1, Counter).call("add", (1,))
                with CASE.assertRaises(ValueError):
                    boxcar.call(1, raises, (ValueError("row 3"),))

    def first(self):
        self.calls(20000)
        before = figures(), boxcar.call(1, figures)
        self.calls(int(os.environ.get("FLAT_CALLS", 50000)))
        for (memory, files, threads), was in zip((figures(), boxcar.call(1, figures)), before):
            CASE.assertLess(memory, was[0] + 4096)
            CASE.assertLess(files, was[1] + 16)         # a thread more, of the pool, is no leak
            CASE.assertLess(threads, was[2] + 16)

    def leave(self):
        boxcar.shutdown(300)


class Tests(unittest.TestCase):
    pass


if __name__ == "__main__":
    main(Tests)
