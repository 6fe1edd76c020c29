# SPDX-License-Identifier: MIT
"""Tensors of torch in messages: the type, the shape and requires_grad in the pickle, the elements beside it.

_messages imports this once the program has imported torch.
"""
import copyreg
import functools
import pickle

import torch

import boxcar

from ._boxcar import Buffer
from ._messages import put_tensor

_NAMES = {type: name for name, type in vars(torch).items() if isinstance(type, torch.dtype)}


def _reduce(tensor):
    if not tensor.is_cpu:
        raise TypeError(f"a tensor on {tensor.device}: boxcar sends those in host memory, so send tensor.cpu()")
    if tensor.layout != torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(5)
    plain = tensor
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    buffer = Buffer(plain, plain.data_ptr(), _bytes(plain))
    parts = pickle.PickleBuffer(buffer), _NAMES[tensor.dtype], tuple(tensor.shape)
    sent = put_tensor(tensor) if tensor.requires_grad and torch.is_grad_enabled() else None
    if sent is None:
        return make, (*parts, tensor.requires_grad)
    from .autograd import receive
    return receive, (*parts, *sent)


def _bytes(tensor):
    return tensor.nelement() * tensor.element_size()


def make(buffer, dtype, shape, requires_grad):
    """A tensor over the memory of a buffer."""
    dtype = getattr(torch, dtype)
    tensor = torch.frombuffer(buffer, dtype=dtype) if len(buffer) > 0 else torch.empty(0, dtype=dtype)
    if tensor.shape != shape:
        tensor.resize_(shape)           # not view(): detach_ refuses views
    return tensor.requires_grad_() if requires_grad else tensor


def empty_like(tensor):
    """A tensor of that shape and type in boxcar.empty's memory."""
    return make(boxcar.empty(_bytes(tensor)), _NAMES[tensor.dtype], tensor.shape, False)


class _Table(dict):
    """Of reducers: that of tensors, then those of another table as it is when it is asked."""

    def __init__(self, other):
        super().__init__({torch.Tensor: _reduce})
        self.other = other

    def __missing__(self, type):
        return self.other[type]


@functools.lru_cache
def with_tensors(pickler):
    """The class of a pickler that takes tensors out."""
    table = copyreg.dispatch_table if pickler is pickle.Pickler else pickler.dispatch_table
    return type(pickler.__name__, (pickler,), {"dispatch_table": _Table(table)})
