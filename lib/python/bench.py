# SPDX-License-Identifier: MIT
"""What calls of Python functions cost: `PYTHONPATH=build/python python3 lib/python/bench.py`.

Two workers; medians of slices, and the smallest and largest slice. The load of the machine is printed first.
"""
import argparse
import os
import pickle
import statistics
import subprocess
import sys
import time

sys.path.pop(0)         # this folder: its boxcar lacks the extension
import boxcar


class Buffer:
    """Bytes that travel beside the pickle, as those of a numpy array do."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return Buffer, (pickle.PickleBuffer(self.data),)


def nothing(*args):
    pass


def one_at_a_time(n):
    for _ in range(n):
        boxcar.call(1, nothing)


def in_flight(n):
    for _ in range(n // 64):
        for future in [boxcar.call_async(1, nothing) for _ in range(64)]:
            future.result()


def sends(value):
    def send(n):
        for _ in range(n):
            boxcar.call(1, nothing, (value,))
    return send


def measure(name, work, n, slices):
    work(n)
    times = []
    for _ in range(slices):
        began = time.perf_counter()
        work(n)
        times.append((time.perf_counter() - began) / n * 1e6)
    print(f"{name:28} {statistics.median(times):10.1f} us   [{min(times):.1f} .. {max(times):.1f}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=7)
    slices = parser.parse_args().slices
    if "BX_RANK" not in os.environ:
        print("load", *os.getloadavg())
        workers = [subprocess.Popen([sys.executable, *sys.argv],
                                    env={**os.environ, "BX_JOB": f"bench{os.getpid()}", "BX_WORLD_SIZE": "2",
                                         "BX_RANK": str(rank)}) for rank in range(2)]
        sys.exit(max(abs(worker.wait()) for worker in workers))
    boxcar.init()
    if boxcar.rank() == 0:
        measure("empty call", one_at_a_time, 500, slices)
        measure("64 in flight, each", in_flight, 1280, slices)
        measure("1 MB", sends(Buffer(bytearray(1 << 20))), 50, slices)
        measure("94 MB in 161 buffers", sends([Buffer(bytearray(584000)) for _ in range(161)]), 3, slices)
    boxcar.shutdown()


if __name__ == "__main__":
    main()
