# SPDX-License-Identifier: MIT
"""Programs of torch over boxcar.rpc; jobs.py runs the classes Run*."""
import gc
import os
import resource
import signal
import sys
import threading
import time
import unittest
import unittest.mock
import weakref

try:
    import torch
    from torch.futures import collect_all, wait_all     # before boxcar, which they are to know all the same
except ImportError:
    print("skip torch is not installed")
    sys.exit(0)

import boxcar
import boxcar.autograd as dist_autograd
import boxcar.rpc as rpc
from boxcar.nn import RemoteModule
from boxcar.optim import DistributedOptimizer
from jobs import CASE, Run, main


# ---- What workers call -------------------------------------------------------------------------------------------

def echo(value):
    return value


def doubled_in_place(tensor):
    tensor.mul_(2)
    return tensor


@torch.jit.script
def add_in_script(tensor: torch.Tensor, number: int):
    return tensor + number


def described(tensor):
    return type(tensor), tensor.dtype, tuple(tensor.shape), tensor.requires_grad, tensor.is_leaf, tensor.tolist()


def leaves_grad_off(_=None):
    """Whether it was on."""
    before = torch.is_grad_enabled()
    if threading.current_thread() is not threading.main_thread():
        torch.set_grad_enabled(False)
    return before


def fails():
    raise KeyError("no such thing")


class Batch:
    """Answers when as many calls have come as it waits for, as the tutorials' batches do."""

    def twice(tensor, ref):
        return (tensor.sum() * 2).item()

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

    def scaled(self, timeout):
        return self.size * timeout

    @rpc.functions.async_execution
    def later(self, times):
        future = torch.futures.Future()
        future.set_result(self.size * times)
        return future


# ---- Computations over workers 0 to 2: with `remote` by calls, else in one process ----------------------------------

WEIGHTS = [(torch.arange(3.) + rank + 1).requires_grad_() for rank in range(3)]


def call(remote, rank, fn, *args):
    if remote:
        return boxcar.call(rank, fn, args)
    return fn(*[value.clone() if isinstance(value, torch.Tensor) else value for value in args])


def times(rank, x):
    return x * WEIGHTS[rank]


def chain(remote, x):
    """0 -> 1 -> 2."""
    return call(remote, 1, chain_on, remote, x) * WEIGHTS[0]


def chain_on(remote, x):
    return call(remote, 2, times, 2, x * WEIGHTS[1]) + x


def ping_pong(remote, x, n=5, rank=0):
    x = x * WEIGHTS[rank]
    return call(remote, 1 - rank, ping_pong, remote, x, n - 1, 1 - rank) if n > 0 else x


def diamond(remote, x):
    """What 1 receives it sends to both 2 and 0."""
    return call(remote, 1, diamond_on, remote, x * x)


def diamond_on(remote, x):
    return call(remote, 2, times, 2, x) * call(remote, 0, times, 0, x)


def unused(remote, x):
    """Of what was sent, and of what came back, little leads to the root."""
    call(remote, 2, times, 2, x)
    y, z = call(remote, 1, unused_on, remote, x, x * 2)
    call(remote, 2, times, 2, z)
    return y


def unused_on(remote, x, y):
    return x + call(remote, 2, times, 2, x), y * WEIGHTS[1]


def written(remote, x):
    """Writes after they were sent, and to what was received."""
    x = x * 2
    y = call(remote, 1, written_on, x)
    x.mul_(5)
    return x + y.mul_(7)


def written_on(x):
    x = x.mul_(3)
    y = x * WEIGHTS[1]
    return y


def without_grad(remote, x):
    with torch.no_grad():
        y = call(remote, 1, times, 1, x)
    return y.detach() * x * call(remote, 1, untracked, x)


def untracked(x):
    with torch.no_grad():
        return x * WEIGHTS[1]


def many(remote, x):
    """Ten calls, whose gradients are ready at the same time; dicts and lists of tensors."""
    return sum(call(remote, 1 + i % 2, many_on, 1 + i % 2, {"x": [x, x * i]})["sum"] for i in range(10))


def many_on(rank, tensors):
    x, y = tensors["x"]
    return {"sum": (x * y).sigmoid() * WEIGHTS[rank]}


def weight_gradient(rank, context_id):
    return dist_autograd.get_gradients(context_id).get(WEIGHTS[rank])


def forget_contexts():
    """As a worker that has been started again."""
    dist_autograd._contexts.clear()


def contexts():
    return len(dist_autograd._contexts), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def chain_wide(x):
    return boxcar.call(2, torch.exp, (x * 2,))


def chain_late(x):
    """Calls when its context has ended."""
    time.sleep(0.1)
    return boxcar.call(2, torch.exp, (x * 2,))


def module_on(module):
    return module(torch.ones(3))


def slowly(module):
    time.sleep(0.1)
    return module


def weight_of(rref, rrefs):
    """Uses references before their objects are made."""
    return rref.local_value().weight.sum().item() + rrefs[0].to_here()


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x, how):
        context.how = how
        return x * 1

    @staticmethod
    def backward(context, gradient):
        if context.how == "raises":
            raise ValueError("fails in backward")
        os.kill(os.getpid(), signal.SIGKILL)


def fails_backward(x, how):
    return Fails.apply(x, how)


class Tests(unittest.TestCase):
    pass


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
            CASE.assertIs(back.detach_(), back)
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
        with CASE.assertRaisesRegex(TypeError, "on meta.*GPUs"):
            boxcar.call(1, echo, (torch.empty(3, device="meta"),))
        CASE.assertEqual({boxcar.call(1, leaves_grad_off) for _ in range(20)}, {True})
        callbacks = [boxcar.call_async(1, time.sleep, (0.02,)).then(leaves_grad_off) for _ in range(3)]
        CASE.assertEqual({future.wait() for future in callbacks}, {True})
        for twins in ([mine, mine], (mine, 3, mine)):
            back = boxcar.call(1, echo, (twins,))
            CASE.assertIs(back[0], back[-1])
        for others in ((mine, boxcar.ref(4)), (mine, torch.eye(3).to_sparse(), mine[1:]), (mine, {"a": mine})):
            back = boxcar.call(1, echo, (others,))
            CASE.assertEqual((type(back), [type(part) for part in back]), (tuple, [type(part) for part in others]))
            CASE.assertTrue(torch.equal(back[0], mine))
        CASE.assertEqual(boxcar.call(1, Batch.twice, (mine, boxcar.ref(4))), 2 * elements)
        for function in torch.add, add_in_script:
            back = rpc.rpc_sync("worker1", function, args=(torch.ones(3), 2))
            CASE.assertEqual(back.tolist(), [3, 3, 3])


class RunWorkers(Run):
    """The workers of a DataLoader read what their parent has in the arena and what it has borrowed."""

    def first(self):
        mine = rpc.empty_like(torch.empty(64, 4096)).copy_(torch.arange(64.).unsqueeze(1))
        for data in (mine, boxcar.call(1, echo, (mine,)), boxcar.call(1, echo, (mine.clone(),))):
            loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=8, num_workers=2)
            CASE.assertEqual([batch[:, 0].tolist() for batch, in loader], mine[:, 0].reshape(8, 8).tolist())


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
        self.first_error()
        self.proxies(batch)

    def first_error(self):
        """collect_all ends at it, whatever else is under way, and keeps no future."""
        pending, own = rpc.rpc_async("worker1", time.sleep, (1,)), torch.futures.Future()
        futures = [pending, own, rpc.rpc_async("worker1", fails)]
        with CASE.assertRaisesRegex(KeyError, "On worker1"):
            wait_all(futures)
        CASE.assertFalse(pending.done())
        futures[2] = rpc.rpc_async("worker1", echo, (3,), timeout=0.2)
        futures.append(rpc.rpc_async("worker1", time.sleep, (1,), timeout=0.2))
        with CASE.assertRaises(boxcar.Timeout):
            wait_all(futures)
        CASE.assertFalse(pending.done())
        CASE.assertIsNone(pending.wait())
        kept = []
        for _ in range(10):
            futures = [rpc.rpc_async("worker1", echo, (3,)) for _ in range(2)]
            kept += map(weakref.ref, futures)
            CASE.assertEqual(wait_all(futures), [3, 3])
        del futures
        gc.collect()
        CASE.assertLessEqual(sum(ref() is not None for ref in kept), 2)       # a callback's thread may have the last

    def proxies(self, batch):
        """Their methods can be sent; one that is async makes the value of its future."""
        CASE.assertEqual(rpc.rpc_sync("worker1", batch.rpc_sync().size_of), 3)
        CASE.assertEqual(rpc.rpc_async(batch.owner(), batch.rpc_sync(timeout=5).scaled, args=(7,)).wait(), 21)
        CASE.assertEqual(batch.rpc_sync().scaled(timeout=7), 21)
        later = batch.rpc_sync().later(2), batch.rpc_async().later(2).wait(), batch.remote().later(2).to_here()
        CASE.assertEqual(later, (6, 6, 6))


class RunAutograd(Run):
    size = 3
    status = {2: -signal.SIGKILL}

    def check(self, program, backwards=1):
        """The gradients of x and of all weights, beside those of one process."""
        x = torch.rand(3, requires_grad=True)
        with dist_autograd.context() as context_id:
            root = program(True, x).sum()
            for _ in range(backwards):
                dist_autograd.backward(context_id, [root], retain_graph=True)
            mine = dist_autograd.get_gradients(context_id)
            got = [mine.get(x), mine.get(WEIGHTS[0])]
            got += [boxcar.call(rank, weight_gradient, (rank, context_id)) for rank in (1, 2)]
        wanted = torch.autograd.grad(program(False, x).sum(), [x, *WEIGHTS], allow_unused=True)
        for one, other in zip(got, wanted):
            CASE.assertEqual(one is None, other is None, program)
            if one is not None:
                torch.testing.assert_close(one, backwards * other, msg=program.__name__)
        CASE.assertEqual([weight.grad for weight in WEIGHTS], [None] * 3)

    def ended(self):
        """The most memory of each worker, in KiB; waits until none has a context."""
        deadline = time.monotonic() + 10
        while True:
            counts, memory = zip(*(boxcar.call(rank, contexts) if rank > 0 else contexts() for rank in range(3)))
            if sum(counts) == 0:
                return memory
            CASE.assertLess(time.monotonic(), deadline, counts)
            time.sleep(0.01)

    def first(self):
        programs = chain, ping_pong, diamond, unused, written, without_grad, many
        for program in programs:
            self.check(program)
        self.check(diamond, backwards=2)
        errors = []

        def checks(program):
            try:
                for _ in range(10):
                    self.check(program)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=checks, args=(program,)) for program in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        CASE.assertEqual(errors, [])
        self.own_gradients()
        self.sparse()
        self.hooks()
        self.rref_backward()
        self.remote_module()
        self.errors()
        self.memory()
        self.dies()

    def own_gradients(self):
        """Those of one context may be written to, and share no memory."""
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [(x + y).sum()])
            gradients = dist_autograd.get_gradients(context_id)
            gradients[x].mul_(2)
            CASE.assertEqual((gradients[x].tolist(), gradients[y].tolist()), ([2, 2, 2], [1, 1, 1]))
        z = torch.ones(6, requires_grad=True)
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [(torch.cat([x, y]) * 2 + z).sum(), (torch.cat([x, y]) + z).sum()])
            gradients = dist_autograd.get_gradients(context_id)
            gradients[y].mul_(2)
            CASE.assertEqual([gradients[leaf].sum().item() for leaf in (x, y, z)], [9, 18, 12])

    def sparse(self):
        x = torch.eye(3).to_sparse().requires_grad_()
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [torch.sparse.sum(boxcar.call(1, echo, (x,)) * 2)])
            gradient = dist_autograd.get_gradients(context_id)[x]
            CASE.assertEqual(gradient.to_dense().diagonal().tolist(), [2, 2, 2])
        CASE.assertTrue(boxcar.call(1, echo, (x,)).requires_grad)
        with unittest.mock.patch.object(torch.serialization, "_get_layout", None):  # no thread at a time may enter it
            CASE.assertEqual(boxcar.call(0, echo, (x.detach(),)).layout, torch.sparse_coo)

    def hooks(self):
        x, seen = torch.ones(3, requires_grad=True), []
        x.register_hook(lambda gradient: gradient * 2)
        x.register_hook(seen.append)
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [boxcar.call(1, times, (1, x)).sum()])
            CASE.assertEqual(dist_autograd.get_gradients(context_id)[x].tolist(), (2 * WEIGHTS[1]).tolist())
        CASE.assertEqual([gradient.tolist() for gradient in seen], [(2 * WEIGHTS[1]).tolist()])

    def rref_backward(self):
        x = torch.ones(3, requires_grad=True)
        with dist_autograd.context() as context_id:
            rref = rpc.remote(1, times, (1, x))
            total = rpc.remote(1, torch.sum, (rref.to_here(),))
            total.backward(context_id)
            CASE.assertEqual(dist_autograd.get_gradients(context_id)[x].tolist(), WEIGHTS[1].tolist())
            with CASE.assertRaisesRegex(RuntimeError, "specified"):
                total.backward()
            with CASE.assertRaisesRegex(RuntimeError, "contain a tensor"):
                rpc.RRef(3).backward(context_id)
        rpc.RRef((x * 2).sum()).backward()
        CASE.assertEqual(x.grad.tolist(), [2, 2, 2])

    def remote_module(self):
        module = RemoteModule("worker1/cpu", torch.nn.Linear, (3, 1), {"bias": False})
        optimizer = DistributedOptimizer(torch.optim.SGD, module.remote_parameters(), lr=0.5)
        before = [rref.to_here() for rref in module.remote_parameters()]
        hybrid = torch.nn.Sequential(module, torch.nn.Linear(1, 1))
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [module.forward_async(torch.ones(2, 3)).wait().sum() + hybrid[0].eval()(
                torch.ones(1, 3)).sum()])
            optimizer.step(context_id)
        after = module.get_module_rref().to_here()
        CASE.assertTrue(torch.allclose(before[0] - after.weight, torch.full((1, 3), 1.5)))
        CASE.assertFalse(after.training)
        again = RemoteModule.init_from_module_rref("worker1/cpu", module.get_module_rref())
        for it in module, again:
            CASE.assertTrue(torch.equal(boxcar.call(2, module_on, (it,)), after(torch.ones(3))))
        CASE.assertEqual(again.on, "worker1")
        with CASE.assertRaisesRegex(ValueError, "needs a torch.nn.Module"):
            RemoteModule("worker1", list)
        for use in (module.parameters, module.half, module.state_dict, hybrid.state_dict, lambda: hybrid.apply(print)):
            with CASE.assertRaisesRegex(ValueError, "remote_parameters"):
                use()
        CASE.assertEqual(len(list(hybrid.to("cpu").parameters())), 2)
        if not torch.cuda.is_available():
            with CASE.assertRaisesRegex((AssertionError, RuntimeError), "(?i)cuda"):
                RemoteModule("rank:1/cuda:0", torch.nn.Linear, (3, 1))
        with CASE.assertRaises(RuntimeError):
            optimizer.step(100)
        mine = torch.nn.Parameter(torch.ones(2))
        (mine * 7).sum().backward()                 # a gradient of no context, which a step leaves where it is
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [boxcar.call(1, echo, (mine * 2,)).sum()])
            DistributedOptimizer(torch.optim.SGD, [rpc.RRef(mine)], lr=1).step(context_id)
        CASE.assertEqual((mine.tolist(), mine.grad.tolist()), ([-1, -1], [7, 7]))
        made = rpc.remote(1, slowly, (after,))
        other = rpc.remote(2, slowly, (1.0,))
        CASE.assertAlmostEqual(rpc.rpc_sync(1, weight_of, (made, [other])), after.weight.sum().item() + 1, places=5)

    def errors(self):
        x = torch.ones(3, requires_grad=True)
        with CASE.assertRaisesRegex(RuntimeError, "Could not find autograd context with id: 100"):
            dist_autograd.backward(100, [x.sum()])
        with CASE.assertRaises(ZeroDivisionError), dist_autograd.context() as context_id:
            for roots, text in (([], "No tensors"), ([x], "not a scalar"), ([torch.ones(1)], "requires_grad not set")):
                with CASE.assertRaisesRegex(RuntimeError, text):
                    dist_autograd.backward(context_id, roots)
            with CASE.assertRaisesRegex(RuntimeError, "already"), dist_autograd.context():
                pass
            y = boxcar.call(1, times, (1, boxcar.call(2, fails_backward, (x, "raises"))))
            with CASE.assertRaisesRegex(ValueError, r"(?s)fails in backward.*On worker 2:.*in backward"):
                dist_autograd.backward(context_id, [y.sum()])
            1 / 0
        with dist_autograd.context() as context_id:
            for y in boxcar.call(1, times, (1, x)), boxcar.call(2, boxcar.call, (1, times, (1, x))):
                boxcar.call(1, forget_contexts)
                with CASE.assertRaisesRegex(RuntimeError, "worker1 no longer has what it sent"):
                    dist_autograd.backward(context_id, [y.sum()])
        late = boxcar.call_async(1, chain_late, (x,))
        with dist_autograd.context():
            late = boxcar.call_async(1, chain_late, (x,))
        late.result()

    def memory(self):
        x = torch.ones(10000, requires_grad=True)
        for i in range(1100):
            if i == 100:
                before = self.ended()
            with dist_autograd.context() as context_id:
                y = boxcar.call(1, chain_wide, (x,))
                if i % 2 == 0:
                    dist_autograd.backward(context_id, [y.sum()])
        grown = [after - first for first, after in zip(before, self.ended())]
        CASE.assertLess(max(grown), 4096)               # KiB; a context has 120 of tensors in each worker

    def dies(self):
        with CASE.assertRaises(boxcar.PeerDead), dist_autograd.context() as context_id:
            y = boxcar.call(1, times, (1, boxcar.call(2, fails_backward, (torch.ones(3, requires_grad=True), "dies"))))
            dist_autograd.backward(context_id, [y.sum()])
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [boxcar.call(1, times, (1, torch.ones(3))).sum()])
            CASE.assertEqual(boxcar.call(1, weight_gradient, (1, context_id)).tolist(), [1, 1, 1])


if __name__ == "__main__":
    main(Tests)
