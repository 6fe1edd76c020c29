# SPDX-License-Identifier: MIT
"""What calls of Python functions cost, beside torch's RPC: `PYTHONPATH=build/python python3 lib/python/bench.py`.

Workers are in a job of Boxcar's and in one of torch's at once; slices of both in turn, medians, the fastest and the
slowest slice in brackets. The load of the machine is printed first. Without torch, calls alone. The row of the
parameter server is what an update costs beyond the same additions and step in one process.
"""
import argparse
import functools
import importlib.util
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
    import torch.distributed.rpc
except ImportError:
    torch = None

STACKS = [boxcar.rpc] if torch is None else [boxcar.rpc, torch.distributed.rpc]


def nothing(*args):
    pass


def one_at_a_time(rpc):
    rpc.rpc_sync("worker1", nothing)


def sixty_four(rpc):
    for future in [rpc.rpc_async("worker1", nothing) for _ in range(64)]:
        future.wait()
    return 64


def sends(value, born=None):
    """born: what Boxcar sends instead."""
    return lambda rpc: rpc.rpc_sync("worker1", nothing, args=(born if born and rpc is boxcar.rpc else value,))


def sends_on_gpu(value):
    def call(rpc):
        rpc.rpc_sync("worker1", nothing, args=(value,))
        torch.cuda.synchronize()

    return call


def in_arena(tensors):
    return [boxcar.rpc.empty_like(tensor).copy_(tensor) for tensor in tensors]


# ---- The tutorials' programs: tests/python has them ------------------------------------------------------------------

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/python")
TRAINERS = 5


def program(name, rpc):
    """The module of a program that imports that rpc. All workers load all programs: their calls name the modules."""
    package = rpc.__name__.rpartition(".")[0]
    module = f"{name}_of_{package}".replace(".", "_")
    if module not in sys.modules:
        os.environ["PACKAGE"] = package
        spec = importlib.util.spec_from_file_location(module, os.path.join(PROGRAMS, name + ".py"))
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[module]


def load_programs():
    sys.path.append(PROGRAMS)           # gym
    for rpc in STACKS:
        for name in "rnn", "reinforce", "batch_reinforce", "parameter_server":
            program(name, rpc)


def rnn():
    hidden, data = program("rnn", boxcar.rpc).batches(1)
    batch = next(data)
    trainers = {rpc: program("rnn", rpc).Trainer([part.clone() for part in hidden]) for rpc in STACKS}
    return lambda rpc: trainers[rpc].iterate(*batch)


def poles():
    """A pole of one observer, without the optimizer. Returns its steps."""
    agents = {rpc: program("reinforce", rpc).Agent(2) for rpc in STACKS}

    def work(rpc):
        agents[rpc].run_episode()
        return sum(agents[rpc].forget())

    return work


def batches(observers):
    """100 steps of all observers, without the optimizer."""
    agents = {rpc: program("batch_reinforce", rpc).Agent(1 + observers) for rpc in STACKS}

    def work(rpc):
        agents[rpc].play(100)
        agents[rpc].log_probs.clear()
        return 100

    return work


def resnet():
    from torchvision.models import resnet50
    return resnet50(num_classes=30)


@functools.lru_cache
def gradients():
    return [torch.full_like(parameter, 1e-3) for parameter in resnet().parameters()]


def send_gradients(server, rpc_name):
    """A trainer whose batches cost nothing."""
    rpc = sys.modules[rpc_name]
    update = program("parameter_server", rpc).ParameterServer.update_and_fetch_model
    rpc.rpc_sync(server.owner(), update, args=(server, gradients()))


class Updates:
    """Updates of a ResNet-50 by the gradients of all trainers."""

    def __init__(self):
        self.servers = {rpc: program("parameter_server", rpc).ParameterServer(resnet(), TRAINERS, nothing)
                        for rpc in STACKS}
        self.rrefs = {rpc: rpc.RRef(server) for rpc, server in self.servers.items()}

    def work(self, rpc):
        torch.futures.wait_all([rpc.rpc_async(f"worker{i}", send_gradients, args=(self.rrefs[rpc], rpc.__name__))
                                for i in range(1, 1 + TRAINERS)])

    def alone(self, rpc):
        """The same in one process."""
        for _ in range(TRAINERS):
            self.servers[rpc].add(gradients())
        self.servers[rpc].step()


# ---- The rows --------------------------------------------------------------------------------------------------------

def rows_of_2():
    yield "empty call", one_at_a_time, 300
    yield "64 in flight, each", sixty_four, 8
    if torch is None:
        return
    for name, times, tensors in (("1 MB", 50, [torch.ones(1 << 18)]),
                                 ("94 MB in 161", 3, [torch.ones(146000) for _ in range(161)])):
        yield f"{name}, tensors", sends(tensors), times
        yield f"{name}, in the arena", sends(tensors, in_arena(tensors)), times
        if torch.cuda.is_available():
            yield f"{name}, on a GPU", sends_on_gpu([tensor.cuda() for tensor in tensors]), times
    yield "RNN, an iteration", rnn(), 20
    yield "RL, a step of two calls", poles(), 10


def rows_of_3():
    yield "batches of 2, a step", batches(2), 2


def rows_of_6():
    try:
        updates = Updates()
    except ImportError:
        print("no torchvision: no row of the parameter server")
        return
    yield "an update by 5 trainers", updates.work, 2, updates.alone


def rows_of_11():
    yield "batches of 10, a step", batches(10), 2


# Of jobs of so many workers: (name, what is measured, how often in a slice, the same without RPC, which is subtracted).
# What is measured returns how often it did its work; None: once.
ROWS = {2: rows_of_2, 3: rows_of_3, 6: rows_of_6, 11: rows_of_11} if torch else {2: rows_of_2}


def time_of(work, rpc, times):
    """Microseconds."""
    began = time.perf_counter()
    done = sum(work(rpc) or 1 for _ in range(times))
    return (time.perf_counter() - began) / done * 1e6


def measure(slices, name, work, times, alone=None):
    took = {rpc: [] for rpc in STACKS}
    for _ in range(slices + 1):
        for rpc in STACKS:
            took[rpc].append(time_of(work, rpc, times) - (time_of(alone, rpc, times) if alone else 0))
    line = f"{name:24}"
    for times in took.values():
        del times[0]                    # it warms up
        line += f" {statistics.median(times):9.1f} us [{min(times):.1f} .. {max(times):.1f}]"
    if torch is not None:
        ours, torchs = map(statistics.median, took.values())
        line += f"  1/{torchs / ours:.1f}"
    print(line, flush=True)


def work(rank, world_size, port, slices):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
    if torch is not None:
        torch.set_num_threads(1)
        load_programs()
    for rpc in STACKS:
        options = rpc.TensorPipeRpcBackendOptions()
        if world_size == 2 and torch is not None and torch.cuda.is_available():
            options.set_device_map(f"worker{1 - rank}", {0: 0})
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    if rank == 0:
        for row in ROWS[world_size]():
            measure(slices, *row)
    for rpc in reversed(STACKS):
        rpc.shutdown()


def run(world_size):
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    workers = [subprocess.Popen([sys.executable, *sys.argv, "--worker", str(rank), str(world_size), port])
               for rank in range(world_size)]
    if any([worker.wait() for worker in workers]):
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=7)
    parser.add_argument("--world-size", type=int, choices=ROWS, help="only the rows of so many workers")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        rank, world_size, port = options.worker
        work(int(rank), int(world_size), port, options.slices)
        return
    print("load", *os.getloadavg())
    for world_size in [options.world_size] if options.world_size else ROWS:
        run(world_size)


if __name__ == "__main__":
    main()
