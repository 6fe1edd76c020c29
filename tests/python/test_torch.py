# SPDX-License-Identifier: MIT
"""Programs of torch over boxcar.rpc; jobs.py runs the classes Run*."""
import json
import os
import socket
import subprocess
import sys
import threading
import unittest

try:
    import torch
    from torch.futures import collect_all, wait_all     # before boxcar, which they are to know all the same
except ImportError:
    print("skip torch is not installed")
    sys.exit(0)

import boxcar
import boxcar.rpc as rpc
from jobs import CASE, Run, main


# ---- What workers call -------------------------------------------------------------------------------------------

def echo(value):
    return value


def doubled_in_place(tensor):
    tensor.mul_(2)
    return tensor


def described(tensor):
    return type(tensor), tensor.dtype, tuple(tensor.shape), tensor.requires_grad, tensor.is_leaf, tensor.tolist()


def fails():
    raise KeyError("no such thing")


class Batch:
    """Answers when as many calls have come as it waits for, as the tutorials' batches do."""

    def __init__(self, size):
        self.size = size
        self.rows = []
        self.future = torch.futures.Future()
        self.lock = threading.Lock()

    @staticmethod
    @rpc.functions.async_execution
    def add(rref, value):
        self = rref.local_value()
        with self.lock:
            index = len(self.rows)
            self.rows.append(value)
            row = self.future.then(lambda future: future.wait()[index])
            if index + 1 == self.size:
                future, self.future = self.future, torch.futures.Future()
                future.set_result(torch.stack(self.rows) * 2)
        return row.then(lambda row: row.value() + 1)

    def size_of(self):
        return self.size


# ---- The tests ------------------------------------------------------------------------------------------------------

def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


class Tests(unittest.TestCase):
    def close(self, got, wanted):
        """Whether numbers in lists are equal to 1e-6."""
        if isinstance(wanted, list):
            self.assertEqual(len(got), len(wanted))
            for pair in zip(got, wanted):
                self.close(*pair)
        else:
            self.assertAlmostEqual(got, wanted, delta=1e-6)

    def test_rnn(self):
        """Losses and gradients are those of one process, and of torch's RPC."""
        program = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "rnn.py")
        environment = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
        workers = [subprocess.Popen([sys.executable, program, *arguments], env=environment, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for arguments in (["local"], ["boxcar", "1"], ["torch.distributed", "1"],
                                     ["boxcar", "0"], ["torch.distributed", "0"])]
        outputs = [worker.communicate(timeout=120) for worker in workers]
        for worker, output in zip(workers, outputs):
            self.assertEqual(worker.returncode, 0, output[1])
        local, ours, torchs = (json.loads(output[0]) for output in outputs[:3])
        self.assertEqual(len(local), 5)
        self.close(ours, local)
        self.close(ours, torchs)


# ---- Jobs -----------------------------------------------------------------------------------------------------------

class RunTensors(Run):
    def first(self):
        for tensor in (torch.tensor(3.5), torch.arange(12).reshape(3, 4).t(), torch.zeros(0, 3, dtype=torch.float16),
                       torch.ones(5, 2, dtype=torch.bfloat16)[::2], torch.tensor([True, False]),
                       torch.view_as_complex(torch.rand(4, 2)).conj(), torch.rand(3, requires_grad=True),
                       torch.rand(100, 100).int(), torch.eye(3).to_sparse()):
            back = boxcar.call(1, echo, (tensor,))
            CASE.assertEqual((back.dtype, back.shape, back.layout, back.requires_grad),
                             (tensor.dtype, tensor.shape, tensor.layout, tensor.requires_grad))
            CASE.assertTrue(torch.equal(back.detach().to_dense() if back.is_sparse else back.detach(),
                                        tensor.detach().to_dense() if back.is_sparse else tensor.detach()))
        parameter = torch.nn.Parameter(torch.rand(3))
        CASE.assertEqual(boxcar.call(1, described, (parameter,)),
                         (torch.nn.Parameter, torch.float32, (3,), True, True, parameter.tolist()))
        for elements in (10, 1000, 100000):
            mine = torch.ones(elements)
            twice = boxcar.call(1, doubled_in_place, (mine,))
            CASE.assertEqual((mine.sum(), twice.sum(), twice.add_(1).sum()), (elements, 2 * elements, 3 * elements))
        model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.BatchNorm1d(200))
        copy = boxcar.call(1, echo, (model,)).train()
        CASE.assertTrue(torch.equal(copy(torch.ones(2, 100)), model.train()(torch.ones(2, 100))))
        with CASE.assertRaisesRegex(TypeError, "on meta.*tensor.cpu"):
            boxcar.call(1, echo, (torch.empty(3, device="meta"),))
        twins = [mine, mine]
        back = boxcar.call(1, echo, (twins,))
        CASE.assertIs(back[0], back[1])
        back = rpc.rpc_sync("worker1", torch.add, args=(torch.ones(3), 2))
        CASE.assertEqual(back.tolist(), [3, 3, 3])


class RunFutures(Run):
    def first(self):
        future = rpc.rpc_async("worker1", echo, (3,))
        CASE.assertIsInstance(future, boxcar.Future)
        CASE.assertIsInstance(future, torch.futures.Future)
        CASE.assertEqual((future.wait(), future.value()), (3, 3))
        batch = rpc.remote("worker1", Batch, (3,))
        own = torch.futures.Future()
        futures = [own, future, batch.rpc_async().size_of(), future.then(lambda future: future.value() + 1)]
        futures += [rpc.rpc_async(batch.owner(), Batch.add, (batch, torch.ones(2) * i)) for i in range(3)]
        all = collect_all(futures)
        CASE.assertFalse(all.done())
        own.set_result(5)
        CASE.assertEqual([future.value() for future in all.wait()][:4], [5, 3, 3, 4])
        CASE.assertEqual([rows[0] for rows in wait_all(futures)[4:]], [1, 3, 5])
        CASE.assertEqual(wait_all([collect_all(futures).then(lambda all: len(all.value()))]), [7])
        failed = rpc.rpc_async("worker1", fails)
        for _ in range(2):
            with CASE.assertRaisesRegex(KeyError, "On worker1"):
                wait_all([rpc.rpc_async("worker1", echo, (1,)), failed])
        CASE.assertEqual(wait_all([]), [])


if __name__ == "__main__":
    main(Tests)
