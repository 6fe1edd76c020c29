# SPDX-License-Identifier: MIT
"""What batches save: `PYTHONPATH=build/python python3 lib/python/bench_batches.py`.

2 and 10 workers call a function of another one that takes 200 us of a core, as they are and in batches; microseconds of
each call, medians of slices, the fastest and the slowest slice in brackets. The load of the machine is printed first.
"""
import os
import statistics
import sys
import time

sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]   # boxcar's source
import boxcar

CALLS = 1000
SLICES = 7


def step(calls):
    """Takes as long for many calls as for one, as operations of torch do."""
    until = time.perf_counter() + 200e-6
    while time.perf_counter() < until:
        pass
    return [None] * len(calls)


def alone():
    step([()])


@boxcar.batch(max_rows=2, flush_after=0.005)
def batch_of_2(calls):
    return step(calls)


@boxcar.batch(max_rows=10, flush_after=0.005)
def batch_of_10(calls):
    return step(calls)


def call_often(fn, n):
    for _ in range(n):
        boxcar.call(0, fn)


def measure(rank, callers, batch):
    if rank > 0:
        return
    took = {alone: [], batch: []}
    for _ in range(SLICES + 1):
        for fn in took:
            began = time.perf_counter()
            for future in [boxcar.call_async(1 + i, call_often, (fn, CALLS // callers)) for i in range(callers)]:
                future.result()
            took[fn].append((time.perf_counter() - began) / CALLS * 1e6)
    for fn, times in took.items():
        of = times[1:]              # the first warms up
        print(f"{callers:2} callers, {fn.__name__:12} {statistics.median(of):8.1f} us [{min(of):.1f} .. {max(of):.1f}]")


if __name__ == "__main__":
    print("load", *os.getloadavg())
    boxcar.spawn(measure, 3, (2, batch_of_2))
    boxcar.spawn(measure, 11, (10, batch_of_10))
