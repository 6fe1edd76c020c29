# SPDX-License-Identifier: MIT
"""boxcar.spawn from the outside: `python3 test_spawn.py`; PYTHONPATH has the package. Nothing may be left in /dev/shm,
and no process, however a job ends."""
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import boxcar


class Wrong(Exception):
    pass


def writes(rank, folder):
    """The pid of this worker, which the next one knows, in a file."""
    pid = boxcar.call((rank + 1) % 3, boxcar.call, (rank, os.getpid))
    with open(os.path.join(folder, boxcar.name()), "w") as file:
        file.write(str(pid))


def leaves(rank):
    boxcar.shutdown()
    sys.exit(9)


def dies_of(rank, number):
    os.kill(os.getpid(), number)
    time.sleep(60)


def raises(rank, leaves_first):
    if rank == 1:
        if leaves_first:        # worker 0 raises Shutdown before this one raises its cause
            boxcar.leave()
            time.sleep(0.3)
        raise Wrong("row 7")
    while True:                 # worker 1 leaves when its handlers have ended
        boxcar.call(1, time.sleep, (0.01 if leaves_first else 60,))


def dies(rank):
    """Worker 1 dies while 0 waits for it and 2 is stopped."""
    if rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    boxcar.call(1, time.sleep, (60,))


def forks(rank, over):
    """Worker 1 dies, and the child that it has forked goes on until that file is there."""
    until = time.monotonic() + 30
    if rank == 1 and os.fork() == 0:
        while not os.path.exists(over) and time.monotonic() < until:
            time.sleep(0.01)
        os._exit(0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def comes_back(rank, folder, times):
    """Worker 1 dies at its first runs; worker 0 waits until it is there at last."""
    if rank == 1:
        path = pathlib.Path(folder, "runs")
        with path.open("a") as file:
            file.write("1")
        if len(path.read_text()) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
    until = time.monotonic() + 10
    while rank == 0 and time.monotonic() < until:
        try:
            return boxcar.call(1, time.sleep, (0.2,))
        except boxcar.PeerDead:
            time.sleep(0.01)


def stays(rank, busy):
    """Prints its pid, and never returns; worker 1 not even when it is asked to, if it is busy."""
    os.write(1, f"{os.getpid()}\n".encode())
    while True:
        try:
            time.sleep(60)
        finally:
            while busy and rank == 1:
                pass


def segments(pid):
    return [name for name in os.listdir("/dev/shm") if f"python-{pid}-" in name]


def is_running(pid):
    """False also of a zombie whose parent has yet to come."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Spawn(unittest.TestCase):
    def tearDown(self):
        self.assertEqual(segments(os.getpid()), [])
        self.assertIsNone(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        self.assertEqual(multiprocessing.active_children(), [])

    def test_calls_the_function_with_each_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            boxcar.spawn(writes, 3, (folder,))
            self.assertEqual(sorted(os.listdir(folder)), ["worker0", "worker1", "worker2"])
            pids = {pathlib.Path(folder, name).read_text() for name in os.listdir(folder)}
        self.assertEqual(len(pids - {str(os.getpid())}), 3)

    def test_tells_of_an_exit_status(self):
        with self.assertRaisesRegex(AttributeError, "pickle"):
            boxcar.spawn(lambda rank: None, 2)
        with self.assertRaisesRegex(boxcar.WorkerFailed, "worker0 .* ended with status 9"):
            boxcar.spawn(leaves, 1)
        with self.assertRaisesRegex(boxcar.WorkerFailed, "worker0 .* was ended by signal 40"):
            boxcar.spawn(dies_of, 1, (40,))         # one of those without a name

    def test_raises_what_a_worker_raised(self):
        began = time.monotonic()
        for leaves_first in (False, True):
            with self.assertRaisesRegex(Wrong, "(?s)row 7.*On worker1.*in raises"):
                boxcar.spawn(raises, 2, (leaves_first,))
        self.assertLess(time.monotonic() - began, 15)

    def test_names_the_worker_that_died(self):
        with self.assertRaisesRegex(boxcar.WorkerFailed, "worker1 .* was ended by SIGKILL"):
            boxcar.spawn(dies, 3)

    def test_sees_a_death_though_a_child_goes_on(self):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            over = pathlib.Path(folder, "over")
            with self.assertRaisesRegex(boxcar.WorkerFailed, "worker1 .* was ended by SIGKILL"):
                boxcar.spawn(forks, 2, (str(over),))
            over.touch()
            time.sleep(0.1)             # its last look
        self.assertLess(time.monotonic() - began, 20)

    def test_starts_a_worker_again(self):
        for times, restart in ((2, 2), (2, 1)):
            with tempfile.TemporaryDirectory() as folder:
                if times <= restart:
                    boxcar.spawn(comes_back, 2, (folder, times), restart=restart)
                else:
                    with self.assertRaisesRegex(boxcar.WorkerFailed, "worker1 .* SIGKILL"):
                        boxcar.spawn(comes_back, 2, (folder, times), restart=restart)
                self.assertEqual(len(pathlib.Path(folder, "runs").read_text()), restart + 1)

    def ends_with(self, cause, busy):
        """The workers end when a parent does: by Ctrl-C, which the terminal sends to all, or by SIGKILL."""
        parent = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--stays", str(busy)],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        self.assertEqual(len(segments(parent.pid)), 4)
        if cause == signal.SIGINT:
            os.killpg(parent.pid, cause)
        else:
            parent.send_signal(cause)
        self.assertEqual(parent.wait(10), -cause)
        until = time.monotonic() + 10
        while any(map(is_running, pids)) and time.monotonic() < until:
            time.sleep(0.01)
        self.assertFalse(any(map(is_running, pids)))
        self.assertEqual(segments(parent.pid), [])
        self.assertEqual(parent.stderr.read().count("Traceback"), 1 if cause == signal.SIGINT else 0)
        parent.stdout.close()
        parent.stderr.close()

    def test_ends_on_ctrl_c(self):
        self.ends_with(signal.SIGINT, False)

    def test_ends_with_its_parent(self):
        self.ends_with(signal.SIGKILL, True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stays"]:
        boxcar.spawn(stays, 2, (sys.argv[2] == "True",))
    else:
        unittest.main()
