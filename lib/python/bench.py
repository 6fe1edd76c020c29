# SPDX-License-Identifier: MIT
"""What calls of Python functions cost, beside torch's RPC: `PYTHONPATH=build/python python3 lib/python/bench.py`.

Two workers, which are in a job of Boxcar's and in one of torch's at once; slices of both in turn, medians, the fastest
and the slowest slice in brackets. The load of the machine is printed first. Without torch, calls alone.
"""
import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

sys.path.pop(0)         # this folder: its boxcar lacks the extension
import boxcar.rpc

try:
    import torch
    import torch.distributed.autograd
    import torch.distributed.optim
    import torch.distributed.rpc
    import boxcar.autograd
    import boxcar.optim
except ImportError:
    torch = None


def nothing(*args):
    pass


def one_at_a_time(rpc):
    rpc.rpc_sync("worker1", nothing)


def sixty_four(rpc):
    for future in [rpc.rpc_async("worker1", nothing) for _ in range(64)]:
        future.wait()


def sends(value, born=None):
    """born: what Boxcar sends instead."""
    return lambda rpc: rpc.rpc_sync("worker1", nothing, args=(born if born and rpc is boxcar.rpc else value,))


def in_arena(tensors):
    return [boxcar.rpc.empty_like(tensor).copy_(tensor) for tensor in tensors]


def parts():
    """The RPC tutorial's RNN: the embedding table, the LSTM, the decoder."""
    return torch.nn.Embedding(10, 2), torch.nn.LSTM(2, 3, 4), torch.nn.Linear(3, 10)


def loss_of(decoded):
    return torch.nn.functional.cross_entropy(decoded, torch.zeros(5, 10, dtype=torch.long))


def apply(rref, *args):
    return rref.local_value()(*args)


def parameters(package, rref):
    return [sys.modules[package].rpc.RRef(parameter) for parameter in rref.local_value().parameters()]


class Rnn:
    """An iteration of it, with the table and the decoder in worker1."""

    def __init__(self, package):
        self.rpc, self.autograd = package.rpc, package.autograd
        self.table, self.decoder = [self.rpc.remote("worker1", parts().__getitem__, (i,)) for i in (0, 2)]
        self.lstm = parts()[1]
        rrefs = parameters(package.__name__, self.rpc.RRef(self.lstm))
        for rref in self.table, self.decoder:
            rrefs += self.rpc.rpc_sync("worker1", parameters, args=(package.__name__, rref))
        self.optimizer = package.optim.DistributedOptimizer(torch.optim.SGD, rrefs, lr=0.05)

    def step(self):
        with self.autograd.context() as context_id:
            embedded = self.rpc.rpc_sync("worker1", apply, args=(self.table, torch.zeros(5, 3, dtype=torch.long)))
            loss = loss_of(self.rpc.rpc_sync("worker1", apply, args=(self.decoder, self.lstm(embedded)[0])))
            self.autograd.backward(context_id, [loss])
            self.optimizer.step(context_id)


def rnn():
    models = {package.rpc: Rnn(package) for package in (boxcar, torch.distributed)}
    return lambda rpc: models[rpc].step()


def subjects():
    """(name, what is measured, how often in a slice, calls in one)"""
    yield "empty call", one_at_a_time, 300, 1
    yield "64 in flight, each", sixty_four, 8, 64
    if torch is None:
        return
    for name, times, tensors in (("1 MB", 50, [torch.ones(1 << 18)]),
                                 ("94 MB in 161", 3, [torch.ones(146000) for _ in range(161)])):
        yield f"{name}, tensors", sends(tensors), times, 1
        yield f"{name}, in the arena", sends(tensors, in_arena(tensors)), times, 1
    yield "RNN iteration", rnn(), 20, 1


def measure(name, work, times, calls, slices):
    stacks = [boxcar.rpc] if torch is None else [boxcar.rpc, torch.distributed.rpc]
    took = {rpc: [] for rpc in stacks}
    for _ in range(slices + 1):
        for rpc in stacks:
            began = time.perf_counter()
            for _ in range(times):
                work(rpc)
            took[rpc].append((time.perf_counter() - began) / times / calls * 1e6)
    line = f"{name:24}"
    for rpc in stacks:
        of = took[rpc][1:]              # the first warms up
        line += f" {statistics.median(of):9.1f} us [{min(of):.1f} .. {max(of):.1f}]"
    if torch is not None:
        line += f"  1/{statistics.median(took[stacks[1]][1:]) / statistics.median(took[stacks[0]][1:]):.1f}"
    print(line, flush=True)


def work(rank, port, slices):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
    boxcar.rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if torch is not None:
        torch.set_num_threads(1)
        torch.distributed.rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        for subject in subjects():
            measure(*subject, slices)
    if torch is not None:
        torch.distributed.rpc.shutdown()
    boxcar.rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=7)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(int(options.worker[0]), options.worker[1], options.slices)
        return
    print("load", *os.getloadavg())
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    workers = [subprocess.Popen([sys.executable, *sys.argv, "--worker", str(rank), port]) for rank in range(2)]
    sys.exit(max(abs(worker.wait()) for worker in workers))


if __name__ == "__main__":
    main()
