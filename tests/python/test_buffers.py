# SPDX-License-Identifier: MIT
"""Buffers beside the pickle, boxcar.empty, loans, also in children of a fork; jobs.py runs the classes Run*."""
import os
import sys
import time
import traceback
import unittest

import boxcar
from jobs import CASE, Large, Run, main


# ---- What workers call -------------------------------------------------------------------------------------------

def echo(value):
    return value


def first_of(large):
    return large.data[0]


def passes_on(large, writes):
    if writes:
        large.data[0] = 7
    return boxcar.call(2, first_of, (large,)), boxcar.counter("tensors_passed_on")


def keeps(large):
    kept.data = large.data
    return large.data[0]


def kept(index):
    return kept.data[index]


def flip(large):
    large.data[0] = 7
    return large


def forked(run, *args):
    """The pid of a child that ends with status 0 once run(*args) has returned."""
    child = os.fork()
    if child != 0:
        return child
    try:
        run(*args)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


# ---- Jobs -----------------------------------------------------------------------------------------------------------

class RunBuffers(Run):
    def first(self):
        for size in (0, 1, 4095, 4096, 1 << 20, 1 << 26):
            large = boxcar.call(1, echo, (Large(bytearray(size)),))
            CASE.assertEqual(len(large.data), size)
        mine = Large(bytearray(1 << 20))
        CASE.assertEqual(bytes(boxcar.call(1, flip, (mine,)).data[:2]), b"\7\0")
        CASE.assertEqual(mine.data[0], 0)
        CASE.assertGreaterEqual(boxcar.counter("leases_granted"), 4)
        CASE.assertEqual(len(boxcar.call(1, echo, (b"x" * (1 << 26),))), 1 << 26)


class RunEchoes(Run):
    """What goes back to its owner is not copied, unless it was written to; of the arena it is the same memory."""

    def first(self):
        large = Large(bytearray(b"1" * (1 << 20)))
        for i in range(1, 6):
            large = boxcar.call(1, echo, (large,))
            CASE.assertEqual(boxcar.call(1, boxcar.counter, ("tensors_passed_on",)), i)
            CASE.assertEqual(set(large.data), {ord("1")})
        large.data[0] = 2
        CASE.assertEqual(boxcar.call(1, echo, (large,)).data[0], 2)
        CASE.assertEqual(boxcar.call(1, flip, (large,)).data[0], 7)
        CASE.assertEqual(large.data[0], 2)
        mine = boxcar.empty(1 << 20)
        mine[:2] = b"34"
        back = boxcar.call(1, echo, (Large(mine),))
        mine[0] = ord("5")
        CASE.assertEqual(bytes(back.data[:2]), b"54")
        back.data[1] = 6
        CASE.assertEqual(bytes(mine[:2]), b"54")
        CASE.assertEqual(boxcar.counter("tensors_copied"), 0)


class RunLoans(Run):
    """What lies in the arena is lent and passed on; what was written to since is copied."""
    size = 3

    def first(self):
        CASE.assertEqual(boxcar.call(1, passes_on, (Large(bytearray(b"1" * (1 << 20))), False)), (ord("1"), 1))
        CASE.assertEqual(boxcar.call(1, passes_on, (Large(bytearray(b"1" * (1 << 20))), True)), (7, 1))
        mine = boxcar.empty(1 << 20)
        mine[:2] = b"23"
        CASE.assertEqual(boxcar.call(1, keeps, (Large(mine),)), ord("2"))
        mine[0] = 9                             # it is lent, not copied
        CASE.assertEqual(boxcar.call(1, kept, (0,)), 9)
        until = time.monotonic() + 10           # for those of the calls before
        while boxcar.loans().leases > 1 and time.monotonic() < until:
            time.sleep(0.01)
        for lent in (boxcar.loans(), boxcar.loans(1), boxcar.loans("worker1")):
            CASE.assertEqual((lent.leases, lent.bytes, lent.taken_back, lent.borrowed), (1, 1 << 20, 0, 0))
            CASE.assertTrue(0 < lent.oldest < 20 and lent.granted == lent.returned + 1)
        CASE.assertEqual(boxcar.loans(2).leases, 0)
        CASE.assertEqual(boxcar.call(1, boxcar.loans, (0,)).borrowed, 1)
        CASE.assertEqual(boxcar.call(1, passes_on, (Large(mine[1:]), False)), (ord("3"), 1))
        CASE.assertEqual(boxcar.call(1, kept, (1,)), ord("3"))
        with CASE.assertRaises(boxcar.ArenaFull):
            boxcar.empty(1 << 45)
        CASE.assertEqual(len(boxcar.empty(0)), 0)


class RunForkedLoans(Run):
    """Children of a fork send what their parent got, and read it when the parent has dropped it."""

    def child(self, rank, large):
        boxcar.init(os.environ["BX_JOB"] + "c", rank=rank, world_size=2, call_timeout=20)
        if rank == 0:
            CASE.assertEqual(set(boxcar.call(1, echo, (large,)).data), {ord("1")})
        boxcar.shutdown()

    def reads_later(self, begins, large):
        os.read(begins, 1)
        CASE.assertEqual(set(large.data), {ord("1")})

    def first(self):
        large = boxcar.call(1, echo, (Large(bytearray(b"1" * (1 << 20))),))
        children = [forked(self.child, rank, large) for rank in range(2)]
        CASE.assertEqual([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], [0, 0])
        begins, begin = os.pipe()
        child = forked(self.reads_later, begins, large)
        del large                           # its owner uses the memory again
        for _ in range(50):
            boxcar.call(1, echo, (Large(bytearray(b"2" * (1 << 20))),))
        os.write(begin, b"!")
        CASE.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


class RunForkedMemory(Run):
    """Children have what their parent had in the arena, until they end, and what they write they alone see."""

    def filled(self, byte):
        mine = boxcar.empty(1 << 20)
        mine[:] = byte * len(mine)
        return mine

    def child(self, begins, mine):
        os.read(begins, 1)
        CASE.assertEqual(set(mine), {ord("1")})
        mine[:] = b"3" * len(mine)
        CASE.assertEqual(os.waitstatus_to_exitcode(os.waitpid(forked(self.grandchild, mine), 0)[1]), 0)

    def grandchild(self, mine):
        CASE.assertEqual(set(mine), {ord("3")})

    def first(self):
        kept = self.filled(b"1")
        references = sys.getrefcount(kept.obj)
        begins, begin = os.pipe()
        children = [forked(self.child, begins, mine) for mine in (kept, self.filled(b"1"))]
        others = [self.filled(b"2") for _ in range(8)]      # the memory of the second one is not used again
        os.write(begin, b"!!")
        CASE.assertEqual([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], [0, 0])
        CASE.assertEqual(set(kept), {ord("1")})
        until = time.monotonic() + 10           # for the threads that hold it
        while sys.getrefcount(kept.obj) > references and time.monotonic() < until:
            time.sleep(0.01)
        CASE.assertEqual(sys.getrefcount(kept.obj), references)
        CASE.assertEqual([set(other) for other in others], [{ord("2")}] * 8)


class RunKept(Run):
    """Whoever keeps what it got, of any size, leaves leases to calls."""

    def first(self):
        for size in (8 << 10, 64 << 10):
            kept = [boxcar.call(1, echo, (Large(bytearray(size)),)) for _ in range(1500)]
            CASE.assertEqual({len(large.data) for large in kept}, {size})


class Tests(unittest.TestCase):
    pass


if __name__ == "__main__":
    main(Tests)
