# SPDX-License-Identifier: MIT
"""Tensors of torch on a GPU, over boxcar.rpc; jobs.py runs the classes Run*. Needs a GPU and torch with CUDA."""
import gc
import os
import signal
import sys
import time
import unittest

try:
    import torch
except ImportError:
    print("skip torch is not installed")
    sys.exit(0)
if not torch.cuda.is_available():
    print("skip there is no GPU for torch")
    sys.exit(0)

import boxcar
import boxcar.autograd as dist_autograd
import boxcar.rpc as rpc
from boxcar.nn import RemoteModule
from boxcar.optim import DistributedOptimizer
from jobs import CASE, Run, main

LAST = torch.cuda.device_count() - 1        # the workers' devices are 0 and this one


class CudaRun(Run):
    """Worker 0 maps its device 0 to the last one of the others, by the options of RPC."""

    def init(self):
        rank = int(os.environ["BX_RANK"])
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{os.environ['BX_JOB']}", rpc_timeout=40)
        if rank == 0:
            for other in range(1, self.size):
                options.set_device_map(f"worker{other}", {0: LAST})
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=self.size, rpc_backend_options=options)

    def leave(self):
        rpc.shutdown()


def echo(value):
    return value


def described(tensor):
    return tensor.device, tensor.dtype, tuple(tensor.shape), tensor.requires_grad, tensor.cpu()


def doubled_in_place(tensor):
    return tensor.mul_(2)


def summed(tensors):
    return sum(tensor.sum() for tensor in tensors)


def on_own_stream(tensor):
    before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        result = tensor + 1
    before.wait_stream(stream)
    return result


def busy(tensor, times):
    """Holds the device up, and then has the tensor's elements."""
    work = torch.ones(4096, 4096, device=tensor.device)
    for _ in range(times):
        work = work @ work * 1e-4
    return tensor + (work.sum() * 0)


def nothing_is_lent():
    until = time.monotonic() + 10
    while boxcar.loans().leases > 0 and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    return boxcar.loans().leases == 0


def equal(a, b):
    return a.device == b.device and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


class RunTensors(CudaRun):
    def first(self):
        base = torch.arange(60, dtype=torch.float32, device="cuda:0").reshape(3, 4, 5)
        for tensor in (base, base[1], base.transpose(0, 2), base[:, ::2], base[0, 0, 3], base[:0], base.half(),
                       base > 7, base.long(), base.to(torch.complex64).conj(), base.double() * 1.5):
            CASE.assertTrue(equal(rpc.rpc_sync("worker1", echo, (tensor,)), tensor), tensor)
            device, dtype, shape, needs, values = rpc.rpc_sync("worker1", described, (tensor,))
            CASE.assertEqual((device.index, dtype, shape, needs), (LAST, tensor.dtype, tuple(tensor.shape), False))
            CASE.assertTrue(torch.equal(values, tensor.cpu()))
        CASE.assertTrue(rpc.rpc_sync("worker1", described, (base.requires_grad_(),))[3])
        base = base.detach()
        CASE.assertTrue(equal(rpc.rpc_sync("worker1", doubled_in_place, (base,)), base * 2))
        CASE.assertEqual(base.sum().item(), 1770)
        many = [torch.full((n,), 1.0, device="cuda:0") for n in range(161)]
        CASE.assertEqual(rpc.rpc_sync("worker1", summed, (many,)).item(), 161 * 80)
        CASE.assertEqual(rpc.rpc_sync("worker1", summed, ([base.cpu(), torch.ones(10_000)],)).item(), 11770)
        CASE.assertTrue(equal(rpc.rpc_sync("worker1", on_own_stream, (base,)), base + 1))
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            mine = base * 3
            CASE.assertTrue(equal(rpc.rpc_sync("worker1", echo, (mine,)), base * 3))
        CASE.assertTrue(equal(rpc.rpc_sync("worker0", echo, (base,)), base))
        rref = rpc.remote("worker1", echo, (base,))
        CASE.assertTrue(equal(rref.to_here(), base))
        if self.is_apart or LAST == 0:
            CASE.assertEqual(boxcar.counter("gpu_staged_bytes") > 0, self.is_apart)
        del rref
        CASE.assertTrue(nothing_is_lent(), boxcar.loans())


class RunTensorsApart(RunTensors):
    """Between hosts they go through host memory."""
    is_apart = True


class RunOrder(CudaRun):
    """Who sends and writes on, and who answers and writes on, changes nothing of what was sent."""

    def first(self):
        for n in (1000, 20_000_000):
            tensor = torch.full((n,), 5.0, device="cuda:0")
            late = busy(tensor, 20)                         # not there yet when it is sent
            future = rpc.rpc_async("worker1", busy, (late, 20))
            late.zero_()
            CASE.assertTrue(equal(future.wait(), tensor))
        seen = []
        rpc.rpc_async("worker1", busy, (tensor, 20)).then(lambda future: seen.append(future.value()))
        while not seen:
            time.sleep(0.01)
        with torch.cuda.stream(torch.cuda.Stream()):
            CASE.assertTrue(bool((seen[0] == 5).all()))
        futures = [rpc.rpc_async("worker1", echo, (torch.full((100_000,), float(i), device="cuda:0"),))
                   for i in range(300)]
        for i, future in enumerate(futures):
            CASE.assertTrue(bool((future.wait() == i).all()), i)
        CASE.assertTrue(nothing_is_lent(), boxcar.loans())


class RunOrderApart(RunOrder):
    is_apart = True


class RunWithoutMap(CudaRun):
    size = 3

    def other(self):
        if boxcar.rank() == 1:
            with CASE.assertRaisesRegex(RuntimeError, "no place in worker worker2.*set_device_map"):
                rpc.rpc_sync("worker2", echo, (torch.ones(3, device=f"cuda:{LAST}"),))

    def first(self):
        base = torch.arange(1000.0, device="cuda:0")
        for other in "worker1", "worker2":
            CASE.assertTrue(equal(rpc.rpc_sync(other, echo, (base,)), base))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


class RunGradients(CudaRun):
    def first(self):
        x = torch.randn(16, 8, device="cuda:0")
        front = torch.nn.Linear(8, 8, device="cuda:0")
        remote, local = RemoteModule(f"worker1/cuda:{LAST}", Layer), Layer().to("cuda:0")
        optimizer = DistributedOptimizer(torch.optim.SGD, remote.remote_parameters(), lr=0.5)
        with dist_autograd.context() as context_id:
            out = remote(front(x))
            CASE.assertEqual(out.device, x.device)
            dist_autograd.backward(context_id, [out.square().sum()])
            gradient = dist_autograd.get_gradients(context_id)[front.weight]
            optimizer.step(context_id)
        local(front(x)).square().sum().backward()
        CASE.assertTrue(torch.allclose(gradient, front.weight.grad, rtol=1e-5, atol=1e-6))
        weight = remote.get_module_rref().to_here().linear.weight
        CASE.assertTrue(torch.allclose(weight.to("cuda:0"), local.linear.weight - 0.5 * local.linear.weight.grad,
                                       rtol=1e-5, atol=1e-6))
        CASE.assertTrue(torch.allclose(remote.forward_async(x.cpu()).wait().cpu(), remote(x).cpu()))


class RunModuleWithoutMap(Run):
    """Its inputs and results go through host memory."""

    def first(self):
        remote = RemoteModule(f"worker1/cuda:{LAST}", Layer)
        x = torch.ones(2, 8)
        CASE.assertTrue(torch.allclose(remote(x), Layer()(x), rtol=1e-4, atol=1e-5))
        CASE.assertEqual(remote(x).device.type, "cpu")


def die(tensor):
    os.kill(os.getpid(), signal.SIGKILL)


class RunDeath(CudaRun):
    size = 3
    status = {1: -signal.SIGKILL}

    def first(self):
        base = torch.arange(1000.0, device="cuda:0")
        CASE.assertTrue(equal(rpc.rpc_sync("worker1", echo, (base,)), base))
        with CASE.assertRaises(boxcar.PeerDead):
            rpc.rpc_sync("worker1", die, (base,))
        for _ in range(10):
            CASE.assertTrue(equal(rpc.rpc_sync("worker2", echo, (base,)), base))
        CASE.assertTrue(nothing_is_lent(), boxcar.loans())


class Tests(unittest.TestCase):
    pass


if __name__ == "__main__":
    main(Tests)
