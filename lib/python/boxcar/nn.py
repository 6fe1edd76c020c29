# SPDX-License-Identifier: MIT
"""RemoteModule, by torch.distributed.nn's name."""
import torch

import boxcar.rpc as rpc

__all__ = ["RemoteModule"]


def _parameters(rref, recurse):
    return [rpc.RRef(parameter) for parameter in rref.local_value().parameters(recurse)]


def _train(rref, mode):
    rref.local_value().train(mode)


class RemoteModule(torch.nn.Module):
    """A module that module_cls(*args, **kwargs) makes in another worker. remote_device: "worker1", "rank:1", and
    "/cpu" behind it. It may be a part of local modules, and travels in arguments and results."""

    def __init__(self, remote_device, module_cls, args=None, kwargs=None):
        super().__init__()
        worker, _, device = remote_device.partition("/")
        if device not in ("", "cpu"):
            raise ValueError(f"{remote_device}: boxcar sends tensors in host memory only")
        self.on = int(worker[5:]) if worker.startswith("rank:") else worker
        self.module_rref = rpc.remote(self.on, module_cls, args, kwargs)

    def forward(self, *args, **kwargs):
        return self.module_rref.rpc_sync().forward(*args, **kwargs)

    def forward_async(self, *args, **kwargs):
        """A future of forward's result."""
        return self.module_rref.rpc_async().forward(*args, **kwargs)

    def get_module_rref(self):
        return self.module_rref

    def remote_parameters(self, recurse=True):
        """RRefs to the module's parameters, for DistributedOptimizer."""
        return rpc.rpc_sync(self.on, _parameters, (self.module_rref, recurse))

    def parameters(self, recurse=True):
        raise ValueError("the parameters of a RemoteModule are in its worker: remote_parameters refers to them")

    def train(self, mode=True):
        rpc.rpc_sync(self.on, _train, (self.module_rref, mode))
        return self

    def eval(self):
        return self.train(False)
