# SPDX-License-Identifier: MIT
"""RemoteModule, by torch.distributed.nn's name."""
import torch

import boxcar.rpc as rpc

from ._gpus import has_map

__all__ = ["RemoteModule"]


def _parameters(rref, recurse):
    return [rpc.RRef(parameter) for parameter in rref.local_value().parameters(recurse)]


def _train(rref, mode):
    rref.local_value().train(mode)


def _moved(value, device):
    """A value with all tensors in it on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_moved(item, device) for item in value)
    return value


def _make(device, module_cls, args, kwargs):
    module = module_cls(*args, **kwargs)
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"{module_cls} makes a {type(module).__qualname__}; a RemoteModule needs a torch.nn.Module")
    return rpc.RRef(module.to(device))


def _place(remote_device):
    """A worker's name or rank, and a device of it."""
    worker, _, device = remote_device.partition("/")
    return int(worker[5:]) if worker.startswith("rank:") else worker, torch.device(device or "cpu")


def _forward_on(module, device, back, args, kwargs):
    result = module(*_moved(args, device), **_moved(kwargs, device))
    return result if back is None else _moved(result, back)


class RemoteModule(torch.nn.Module):
    """A module that module_cls(*args, **kwargs) makes in another worker; raises what that raises. remote_device:
    "worker1", "rank:1", and behind it "/cpu" or "/cuda:0". It may be a part of local modules, and travels in arguments
    and results. One on a GPU takes tensors from host memory too; its results come back to host memory if GPUs of the
    two workers are not mapped."""

    def __init__(self, remote_device, module_cls, args=None, kwargs=None):
        super().__init__()
        worker, self.device = _place(remote_device)
        self.module_rref = rpc.rpc_sync(worker, _make, (self.device, module_cls, args or (), kwargs or {}))

    @staticmethod
    def init_from_module_rref(remote_device, module_rref):
        """A second RemoteModule of the module to which module_rref refers, in its owner. Of remote_device the device
        counts."""
        module = RemoteModule.__new__(RemoteModule)
        torch.nn.Module.__init__(module)
        module.device, module.module_rref = _place(remote_device)[1], module_rref
        return module

    @property
    def on(self):
        """The worker's name."""
        return self.module_rref.owner_name()

    def _call_of(self, args, kwargs):
        if self.device.type == "cpu":
            return "forward", args, kwargs
        return _forward_on, (self.device, None if has_map(self.module_rref.owner().id) else "cpu", args, kwargs), {}

    def forward(self, *args, **kwargs):
        return self.module_rref.call(*self._call_of(args, kwargs))

    def forward_async(self, *args, **kwargs):
        """A future of forward's result."""
        return self.module_rref.call_async(*self._call_of(args, kwargs))

    def get_module_rref(self):
        return self.module_rref

    def remote_parameters(self, recurse=True):
        """RRefs to the module's parameters, for DistributedOptimizer."""
        return rpc.rpc_sync(self.on, _parameters, (self.module_rref, recurse))

    def parameters(self, *args, **kwargs):
        raise ValueError("the parameters of a RemoteModule are in its worker: remote_parameters refers to them, "
                         "get_module_rref to the module")

    # They would do nothing, on the parameters of this side: there are none.
    add_module = apply = bfloat16 = buffers = cpu = cuda = double = float = half = load_state_dict = parameters
    named_buffers = named_parameters = register_buffer = register_parameter = parameters
    requires_grad_ = share_memory = state_dict = to = type = zero_grad = parameters

    def train(self, mode=True):
        rpc.rpc_sync(self.on, _train, (self.module_rref, mode))
        return self

    def eval(self):
        return self.train(False)
