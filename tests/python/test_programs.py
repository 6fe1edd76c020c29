# SPDX-License-Identifier: MIT
"""The tutorials' programs, rnn.py, reinforce.py, batch_reinforce.py and parameter_server.py: each runs with torch's RPC
and with Boxcar's, from the same seeds, and prints the same. If a worker is stopped it goes on, if one dies all end.

Numbers are compared to 1e-5 of the largest of their list: torch's engine adds gradients in an order that depends on
which threads computed the values, also with torch's RPC. Those of the RNN to 1e-6 too. Rewards are equal.
"""
import importlib.util
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
import unittest

import gym
from jobs import segments

if importlib.util.find_spec("torch") is None:
    print("skip torch is not installed")
    sys.exit(0)

HERE = os.path.dirname(os.path.abspath(__file__))
FOREVER = 10**6                 # iterations


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


def numbers(value):
    return [number for part in value for number in numbers(part)] if isinstance(value, list) else [value]


class Program:
    """A run of one. Its rank 0 prints a line for each iteration."""

    def __init__(self, program, package, world_size, n):
        port = free_port()
        self.job = f"rpc-localhost-{port}"
        environment = {**os.environ, "PACKAGE": package, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        self.workers = [subprocess.Popen([sys.executable, os.path.join(HERE, program),
                                          str(rank), str(world_size), str(n)],
                                         env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
                        for rank in range(1 if package == "local" else world_size)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()           # a stopped one too
            worker.communicate()

    def lines(self, test):
        """What it prints, when all workers have ended well."""
        outputs = [worker.communicate(timeout=60) for worker in self.workers]
        for worker, output in zip(self.workers, outputs):
            test.assertEqual(worker.returncode, 0, output[1])
        return [json.loads(line) for line in outputs[0][0].splitlines()]

    def advance(self):
        """Returns when it has printed another line."""
        if not self.workers[0].stdout.readline():
            raise AssertionError(f"the first worker has ended: {self.workers[0].stderr.read()}")

    def has_paused(self):
        """Takes what it prints, until that is nothing for 0.3 s."""
        deadline = time.monotonic() + 20
        while select.select([self.workers[0].stdout], [], [], 0.3)[0]:
            if time.monotonic() > deadline or not os.read(self.workers[0].stdout.fileno(), 1 << 20):
                return False
        return True

    def stop(self, rank):
        """Returns when the worker has stopped."""
        os.kill(self.workers[rank].pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.workers[rank].pid, os.WSTOPPED | os.WNOWAIT)


class Tests(unittest.TestCase):
    def close(self, got, wanted, most=math.inf):
        got, wanted = numbers(got), numbers(wanted)
        self.assertEqual(len(got), len(wanted))
        largest = max(map(abs, wanted))
        for one, other in zip(got, wanted):
            self.assertAlmostEqual(one, other, delta=min(most, 1e-5 * largest))

    def run_with(self, program, world_size, n, *packages):
        """The lines of the program with each package."""
        runs = [Program(program, package, world_size, n) for package in packages]
        lines = []
        for run in runs:
            with run:
                lines.append(run.lines(self))
            self.assertEqual(segments(run.job), [])
        return lines

    def test_gym(self):         # agrees with the reference numbers of the demos
        with open(os.path.join(HERE, "../data/cartpole.json")) as file:
            listed = {(row["episode"], row["step"]): row for row in json.load(file)["rows"]}
        compared = 0
        for episode in range(6):
            env, done, step = gym.make("CartPole-v1"), False, 0
            env.reset()
            env.state = tuple(0.05 * math.sin(i + episode) for i in range(1, 5))
            while not done:
                theta, theta_dot = env.state[2:]
                right = theta + 0.5 * theta_dot > 0 if episode % 2 else math.sin(0.9 * step + episode) > 0
                state, reward, done, _ = env.step(int(right))
                step += 1
                row = listed.get((episode, step))
                if row is not None:
                    compared += 1
                    self.assertEqual((int(right), done, reward), (row["action"], row["done"], 1))
                    for one, other in zip(state, row["state"]):
                        self.assertAlmostEqual(one, other, delta=1e-9)
        self.assertEqual(compared, len(listed))
        envs = [gym.make("CartPole-v1") for _ in range(2)]
        for env in envs:
            env.seed(5)
        self.assertEqual(envs[0].reset(), envs[1].reset())
        self.assertNotEqual(envs[0].reset(), envs[0].reset())

    def test_rnn(self):
        local, torchs, ours = self.run_with("rnn.py", 2, 5, "local", "torch.distributed", "boxcar")
        self.assertEqual(len(local), 5)
        for other in torchs, local:
            self.assertEqual(len(ours), len(other))
            for (loss, gradients), (other_loss, other_gradients) in zip(ours, other):
                self.close(loss, other_loss, 1e-6)
                for pair in zip(gradients, other_gradients):
                    self.close(*pair, 1e-6)

    def test_reinforce(self):
        self.rewards("reinforce.py")

    def test_batch_reinforce(self):
        self.rewards("batch_reinforce.py")

    def rewards(self, program):
        torchs, ours = self.run_with(program, 3, 5, "torch.distributed", "boxcar")
        self.assertEqual(len(ours), 5)
        self.assertEqual([rewards for rewards, _ in ours], [rewards for rewards, _ in torchs])
        self.close([loss for _, loss in ours], [loss for _, loss in torchs])

    def test_parameter_server(self):
        local, torchs, ours = self.run_with("parameter_server.py", 3, 5, "local", "torch.distributed", "boxcar")
        self.assertEqual(len(local), 6)
        for other in torchs, local:
            self.assertEqual(len(ours), len(other))
            for got, wanted in zip(ours, other):
                self.close(got[0], wanted[0])
                self.close(got[1:], wanted[1:])

    def ends(self, program, world_size):
        """Of each kind of worker one is stopped for a while, and later killed."""
        with Program(program, "boxcar", world_size, FOREVER) as one, \
                Program(program, "boxcar", world_size, FOREVER) as other:
            for rank, run in enumerate((one, other)):
                with self.subTest(rank=rank):
                    self.stop_and_kill(run, rank)
        self.assertEqual(segments(one.job) + segments(other.job), [])

    def stop_and_kill(self, run, rank):
        run.advance()
        run.stop(rank)
        self.assertTrue(run.has_paused(), "it goes on without the worker")
        os.kill(run.workers[rank].pid, signal.SIGCONT)
        run.advance()
        run.workers[rank].kill()
        errors = [worker.communicate(timeout=10)[1].decode() for worker in run.workers]
        for i, worker in enumerate(run.workers):
            if i == 0 and rank != 0:            # it waits for results of the others
                self.assertEqual(worker.returncode, 1, errors[i])
                self.assertRegex(errors[i], fr"PeerDead: worker '\w+' \(rank {rank}, pid \d+\) died\s*$")
            elif i != rank:                     # its main thread is in rpc.shutdown
                self.assertEqual(worker.returncode, 0, errors[i])

    def test_rnn_ends(self):
        self.ends("rnn.py", 2)

    def test_reinforce_ends(self):
        self.ends("reinforce.py", 3)

    def test_batch_reinforce_ends(self):
        self.ends("batch_reinforce.py", 3)

    def test_parameter_server_ends(self):
        self.ends("parameter_server.py", 3)


if __name__ == "__main__":
    unittest.main()
