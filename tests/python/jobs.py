# SPDX-License-Identifier: MIT
"""Runs each class Run* of a test's file as a job of its own, whose workers run that file with the class's name;
PYTHONPATH has the package. Nothing may be left in /dev/shm."""
import os
import pickle
import socket
import subprocess
import sys
import unittest

import boxcar

CASE = unittest.TestCase()


class Large:
    """Its bytes travel beside the pickle."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return Large, (pickle.PickleBuffer(self.data),)


class Run:
    """A job of `size` workers; first() runs in worker 0, other() in the others, after init."""
    size = 2
    status = {}             # of ranks, where it is not 0
    is_apart = False        # each worker is on a host of its own; only run where the plug-in is built

    def init(self):
        boxcar.init(call_timeout=20)

    def other(self):
        pass

    def leave(self):
        boxcar.shutdown()


def figures():
    """KiB of memory, descriptors and threads of this process."""
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    return pages * 4, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def segments(job):
    return [name for name in os.listdir("/dev/shm") if job in name]


def hosts(run):
    """The environment of each worker."""
    if not run.is_apart:
        return [{}] * run.size
    with socket.create_server(("127.0.0.1", 0)) as free:
        root = f"127.0.0.1:{free.getsockname()[1]}"
    return [{"BX_ROOT": root, "BX_SECRET": "0123456789abcdef", "BX_HOST": f"h{rank}", "UCX_NET_DEVICES": "lo"}
            for rank in range(run.size)]


def run_job(test, run):
    job = f"py{os.getpid()}-{run.__name__}"[:28]
    workers = [subprocess.Popen([sys.executable, os.path.abspath(sys.argv[0]), "--worker", run.__name__],
                                env={**os.environ, **host, "BX_JOB": job, "BX_RANK": str(rank),
                                     "BX_WORLD_SIZE": str(run.size)},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for rank, host in enumerate(hosts(run))]
    for rank, worker in enumerate(workers):
        try:
            output = worker.communicate(timeout=120)[0]
        except subprocess.TimeoutExpired:
            worker.kill()
            output = worker.communicate()[0] + "(ran past 120 s)"
        with test.subTest(rank=rank):
            test.assertEqual(worker.returncode, run.status.get(rank, 0), output)
    test.assertEqual(segments(job), [])


def _runs(of):
    for run in of.__subclasses__():
        if hasattr(run, "first"):
            yield run
        yield from _runs(run)


def has_net():
    return os.path.exists(os.path.join(os.path.dirname(boxcar.__file__), "libboxcar_net.so.0"))


def main(tests):
    """Runs a worker, or the tests of a TestCase and one test for each class Run*."""
    runs = {run.__name__: run for run in _runs(Run) if has_net() or not run.is_apart}
    if sys.argv[1:2] == ["--worker"]:
        run = runs[sys.argv[2]]()
        run.init()
        run.first() if boxcar.rank() == 0 else run.other()
        run.leave()
        return
    for name, run in runs.items():
        setattr(tests, f"test_{name[3:].lower()}", lambda self, run=run: run_job(self, run))
    unittest.main()
