# SPDX-License-Identifier: MIT
"""What calls of Python functions cost, beside torch's RPC: `PYTHONPATH=build/python python3 lib/python/bench.py`.

Workers are in a job of Boxcar's, and others in one of torch's; slices of both in turn, medians, the fastest and the
slowest slice in brackets. The workers of the one are stopped while those of the other are measured, for torch's poll
even while nothing is called. The load of the machine is printed first. Without torch, calls alone. The row of the
parameter server is what an update costs beyond the same additions and step in one process.
"""
import argparse
import functools
import importlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

sys.path.pop(0)         # this folder: its boxcar lacks the extension
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/python")      # the tutorials'
TRAINERS = 5
HAS_TORCH = importlib.util.find_spec("torch") is not None
STACKS = ["boxcar", "torch.distributed"] if HAS_TORCH else ["boxcar"]
SIZES = [2, 3, 6, 11] if HAS_TORCH else [2]         # of jobs

if "PACKAGE" in os.environ:             # of a worker: the programs ask for it too
    rpc = importlib.import_module(os.environ["PACKAGE"] + ".rpc")
    if HAS_TORCH:
        import torch
        sys.path.append(PROGRAMS)


def nothing(*args):
    pass


def one_at_a_time():
    rpc.rpc_sync("worker1", nothing)


def sixty_four():
    for future in [rpc.rpc_async("worker1", nothing) for _ in range(64)]:
        future.wait()
    return 64


def sends(value):
    return lambda: rpc.rpc_sync("worker1", nothing, args=(value,))


def sends_on_gpu(value):
    def call():
        rpc.rpc_sync("worker1", nothing, args=(value,))
        torch.cuda.synchronize()

    return call


def in_arena(tensors):
    """Torch has no such thing."""
    if not hasattr(rpc, "empty_like"):
        return tensors
    return [rpc.empty_like(tensor).copy_(tensor) for tensor in tensors]


# ---- The tutorials' programs -----------------------------------------------------------------------------------------

def rnn():
    from rnn import Trainer, batches
    hidden, data = batches(1)
    batch = next(data)
    trainer = Trainer(list(hidden))
    return lambda: trainer.iterate(*batch)


def poles():
    """A pole of one observer, without the optimizer. Returns its steps."""
    from reinforce import Agent
    agent = Agent(2)

    def work():
        agent.run_episode()
        return sum(agent.forget())

    return work


def batches(observers):
    """100 steps of all observers, without the optimizer."""
    from batch_reinforce import Agent
    agent = Agent(1 + observers)

    def work():
        agent.play(100)
        agent.log_probs.clear()
        return 100

    return work


def resnet():
    from torchvision.models import resnet50
    return resnet50(num_classes=30)


@functools.lru_cache
def gradients():
    return [torch.full_like(parameter, 1e-3) for parameter in resnet().parameters()]


def send_gradients(server):
    """A trainer whose batches cost nothing."""
    from parameter_server import ParameterServer
    rpc.rpc_sync(server.owner(), ParameterServer.update_and_fetch_model, args=(server, gradients()))


class Updates:
    """Updates of a ResNet-50 by the gradients of all trainers."""

    def __init__(self):
        from parameter_server import ParameterServer
        self.server = ParameterServer(resnet(), TRAINERS, nothing)
        self.rref = rpc.RRef(self.server)

    def work(self):
        torch.futures.wait_all([rpc.rpc_async(f"worker{i}", send_gradients, args=(self.rref,))
                                for i in range(1, 1 + TRAINERS)])

    def alone(self):
        """The same in one process."""
        for _ in range(TRAINERS):
            self.server.add(gradients())
        self.server.step()


# ---- The rows --------------------------------------------------------------------------------------------------------

def rows(world_size):
    """(name, what is measured, how often in a slice, the same without RPC, which is subtracted). What is measured
    returns how often it did its work; None: once."""
    if world_size == 2:
        yield "empty call", one_at_a_time, 3000
        yield "64 in flight, each", sixty_four, 80
        if not HAS_TORCH:
            return
        for name, times, tensors in (("1 MB", 500, [torch.ones(1 << 18)]),
                                     ("94 MB in 161", 30, [torch.ones(146000) for _ in range(161)])):
            yield f"{name}, tensors", sends(tensors), times
            yield f"{name}, in the arena", sends(in_arena(tensors)), times
            if torch.cuda.is_available():
                yield f"{name}, on a GPU", sends_on_gpu([tensor.cuda() for tensor in tensors]), times
        yield "RNN, an iteration", rnn(), 20
        yield "RL, a step of two calls", poles(), 10
    elif world_size == 6:
        if importlib.util.find_spec("torchvision") is None:
            return
        updates = Updates()
        yield f"an update by {TRAINERS} trainers", updates.work, 2, updates.alone
    else:
        yield f"batches of {world_size - 1}, a step", batches(world_size - 1), 2


def time_of(work, times):
    """Microseconds."""
    began = time.perf_counter()
    done = sum(work() or 1 for _ in range(times))
    return (time.perf_counter() - began) / done * 1e6


def measure_as_told(world_size):
    """Of rank 0. It prints a line as often as it is sent one: what a slice took, or the name of the next row, or
    nothing, which is the end."""
    def told(answer):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        return sys.stdin.readline() == "slice\n"

    sys.stdin.readline()
    for name, work, times, *alone in rows(world_size):
        answer = name
        while told(answer):
            work()              # those of the other workers that slept are awake then
            answer = time_of(work, times) - sum(time_of(fn, times) for fn in alone)
    told(None)


def work(rank, world_size, port):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
    options = rpc.TensorPipeRpcBackendOptions()
    if HAS_TORCH:
        torch.set_num_threads(1)
        if world_size == 2 and torch.cuda.is_available():
            options.set_device_map(f"worker{1 - rank}", {0: 0})
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    if rank == 0:
        measure_as_told(world_size)
    rpc.shutdown()


class Job:
    """The workers of a stack. They run while they are asked."""

    def __init__(self, stack, world_size):
        with socket.create_server(("localhost", 0)) as free:
            port = str(free.getsockname()[1])
        self.workers = []
        for rank in range(world_size):
            pipe = subprocess.PIPE if rank == 0 else None
            self.workers.append(subprocess.Popen(
                [sys.executable, *sys.argv, "--worker", str(rank), str(world_size), port], stdin=pipe, stdout=pipe,
                text=True, env={**os.environ, "PACKAGE": stack}))

    def signal(self, signal):
        for worker in self.workers:
            worker.send_signal(signal)

    def ask(self, line):
        self.signal(signal.SIGCONT)
        self.workers[0].stdin.write(line)
        self.workers[0].stdin.flush()
        answer = self.workers[0].stdout.readline()
        self.signal(signal.SIGSTOP)
        if not answer:
            self.end()
            sys.exit(1)
        return json.loads(answer)

    def end(self):
        self.signal(signal.SIGCONT)
        self.workers[0].stdin.close()
        return any([worker.wait() for worker in self.workers])


def run(world_size, slices):
    jobs = [Job(stack, world_size) for stack in STACKS]
    while (name := [job.ask("row\n") for job in jobs][0]) is not None:
        took = [[] for _ in jobs]
        for _ in range(slices + 1):
            for times, job in zip(took, jobs):
                times.append(job.ask("slice\n"))
        line = f"{name:24}"
        for times in took:
            del times[0]                # it warms up
            line += f" {statistics.median(times):9.1f} us [{min(times):.1f} .. {max(times):.1f}]"
        if len(took) == 2:
            ours, torchs = map(statistics.median, took)
            line += f"  1/{torchs / ours:.1f}"
        print(line, flush=True)
    if any([job.end() for job in jobs]):
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=7)
    parser.add_argument("--world-size", type=int, choices=SIZES, help="only the rows of so many workers")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        rank, world_size, port = options.worker
        work(int(rank), int(world_size), port)
        return
    print("load", *os.getloadavg())
    for world_size in [options.world_size] if options.world_size else SIZES:
        run(world_size, options.slices)


if __name__ == "__main__":
    main()
