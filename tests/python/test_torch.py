# SPDX-License-Identifier: MIT
"""Programs of torch over boxcar.rpc; jobs.py runs the classes Run*."""
import sys
import unittest

try:
    import torch
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
        with CASE.assertRaisesRegex(TypeError, "on meta.*tensor.cpu"):
            boxcar.call(1, echo, (torch.empty(3, device="meta"),))
        twins = [mine, mine]
        back = boxcar.call(1, echo, (twins,))
        CASE.assertIs(back[0], back[1])
        back = rpc.rpc_sync("worker1", torch.add, args=(torch.ones(3), 2))
        CASE.assertEqual(back.tolist(), [3, 3, 3])


if __name__ == "__main__":
    main(Tests)
