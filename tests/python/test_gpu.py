# SPDX-License-Identifier: MIT
"""Memory of GPUs in messages, on the tests' driver, whose device memory any process can read; jobs.py runs the classes
Run*. test_cuda.py has torch on a real GPU."""
import ctypes
import gc
import os
import sys
import time
import unittest

DRIVER = os.path.join(os.environ.get("BX_BUILD_DIR", "build"), "tests", "libfakecuda.so")
if not os.path.exists(DRIVER):
    print("skip the tests' driver is not built")
    sys.exit(0)
os.environ["BX_CUDA_DRIVER"] = DRIVER

import boxcar
import boxcar.rpc as rpc
from boxcar import _gpus
from boxcar._messages import blocks
from jobs import CASE, Large, Run, main

BYTES = 100_000


class OnGpu:
    def __init__(self, block):
        self.block = block

    def __reduce__(self):
        blocks().insert(0, lambda: self.block)
        return _on_gpu, (-len(blocks()),)


def _on_gpu(index):
    return OnGpu(blocks()[index])


def memory_of(block, **arguments):
    """The bytes of a block, and the capsule that keeps them."""
    capsule = block.__dlpack__(**arguments)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = get(capsule, b"dltensor")
    data = ctypes.c_void_p.from_address(tensor).value
    elements = ctypes.POINTER(ctypes.c_int64).from_address(tensor + 24)[0]
    return (ctypes.c_ubyte * elements).from_address(data), capsule


def made(fill, nbytes=BYTES):
    block = boxcar._running().allocate_on(0, nbytes)
    memory, _ = memory_of(block)
    memory[:] = bytes([fill]) * nbytes
    block.written_on(0)
    return OnGpu(block)


def settled(check):
    """Streams of the driver work when they like."""
    until = time.monotonic() + 10
    while not check() and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    return check()


def content(on_gpu, **arguments):
    memory, _ = memory_of(on_gpu.block, **arguments)
    CASE.assertTrue(settled(lambda: len(set(memory)) == 1))
    return memory[0], len(memory)


def contents(items, beside):
    return [content(item) for item in items], bytes(beside.data)


def echo(item):
    return item


def never_taken(item):
    for _ in range(100):
        item.block.__dlpack__(stream=None, max_version=(1, 0))


def make_here(fill):
    return made(fill)


class RunBlocks(Run):
    def first(self):
        boxcar.map_gpus(1, {0: 0})
        self.check_blocks()
        CASE.assertEqual(boxcar.counter("gpu_staged_bytes"), 0)

    def check_blocks(self):
        beside = os.urandom(20_000)
        sent = [made(1), made(2, 5), made(3)]
        CASE.assertEqual(boxcar.call("worker1", contents, (sent, Large(beside))),
                         ([(1, BYTES), (2, 5), (3, BYTES)], beside))
        CASE.assertEqual(content(boxcar.call("worker1", make_here, (7,))), (7, BYTES))
        back = boxcar.call("worker1", echo, (sent[0],))
        CASE.assertEqual(content(back), (1, BYTES))
        CASE.assertEqual(back.block.__dlpack_device__(), (2, 0))
        boxcar.call("worker1", never_taken, (sent[1],))
        del back
        CASE.assertTrue(settled(lambda: boxcar.loans().leases == 0 and boxcar.loans().borrowed == 0), boxcar.loans())

    def leave(self):
        boxcar.shutdown()


class RunBlocksApart(RunBlocks):
    """Between hosts they go through host memory."""
    is_apart = True

    def first(self):
        boxcar.map_gpus(1, {0: 0})
        self.check_blocks()
        CASE.assertEqual(boxcar.counter("gpu_staged_bytes"), 5 * BYTES + 2 * 5)


def place_of(to, here):
    return _gpus.place(to, here)


class RunMaps(Run):
    def first(self):
        with CASE.assertRaisesRegex(RuntimeError, "cuda:0 have no place in worker worker1.*map_gpus"):
            _gpus.place("worker1", 0)
        CASE.assertEqual(_gpus.place("worker0", 1), 1)          # calls to itself leave tensors where they are
        boxcar.map_gpus("worker1", {0: 1})
        CASE.assertEqual((_gpus.place("worker1", 0), _gpus.place(1, 0)), (1, 1))
        CASE.assertEqual(boxcar.call(1, place_of, (0, 1)), 0)   # the way back
        boxcar.call(1, boxcar.map_gpus, (0, {1: 1}))            # its own word counts for more, and leaves ours alone
        CASE.assertEqual((boxcar.call(1, place_of, (0, 1)), _gpus.place(1, 0), _gpus.place(1, 1)), (1, 1, 1))
        with CASE.assertRaisesRegex(boxcar.Error, "no device 99"):
            boxcar.map_gpus("worker1", {99: 0})
        with CASE.assertRaisesRegex(boxcar.Error, "no device 99"):
            boxcar.map_gpus("worker1", {0: 99})


class RunNotOpen(Run):
    """A worker that has no GPU open is sent none, and the error says so."""

    def first(self):
        boxcar._running().open_gpu(0)
        with CASE.assertRaisesRegex(boxcar.Error, "no GPU open"):
            boxcar.call("worker1", echo, (made(1),))


class Tests(unittest.TestCase):
    def test_options(self):
        options = rpc.TensorPipeRpcBackendOptions(device_maps={"worker1": {0: "cuda:1"}}, devices=["cuda:2"])
        options.set_device_map("worker1", {"cuda:1": 0})
        self.assertEqual((options.device_maps, options.devices), ({"worker1": {0: 1, 1: 0}}, [2]))
        with self.assertRaisesRegex(ValueError, "two GPUs have one place"):
            options.set_device_map("worker1", {2: 0})
        with self.assertRaisesRegex(ValueError, "cpu is no GPU"):
            options.set_device_map("worker1", {0: "cpu"})


if __name__ == "__main__":
    main(Tests)
