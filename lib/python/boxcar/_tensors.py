# SPDX-License-Identifier: MIT
"""Tensors of torch in messages: the type, the shape and requires_grad in the pickle, the elements beside it.

Those on a GPU are copied there into one block of the job's memory, and by the receiver out of it, since nobody may
write to what is lent. Both copies run on the current streams, and no thread waits for them.

_messages imports this once the program has imported torch.
"""
import copyreg
import pickle

import torch

import boxcar

from . import _gpus
from ._boxcar import Buffer
from ._messages import blocks, destination, find, put_tensor, set_apart

_ALIGNED = 512          # bytes, to which tensors in a block are aligned: as cudaMalloc
_LEGACY = 1             # the CUstream of the default stream, whose handle is 0 in torch

_NAMES = {type: name for name, type in vars(torch).items() if isinstance(type, torch.dtype)}


def _reduce_strided(tensor):
    if tensor.layout != torch.strided or tensor.is_quantized:
        return None
    if not tensor.is_cpu and not tensor.is_cuda:
        raise TypeError(f"a tensor on {tensor.device}: boxcar sends those in the memory of hosts and of CUDA's GPUs")
    plain = tensor
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_cuda:
        elements = _put_copy(plain.detach())
    else:
        elements = pickle.PickleBuffer(Buffer(plain, plain.data_ptr(), _bytes(plain)))
    parts = elements, _NAMES[tensor.dtype], tuple(tensor.shape)
    sent = put_tensor(tensor) if tensor.requires_grad and torch.is_grad_enabled() else None
    if sent is None:
        return make, (*parts, tensor.requires_grad)
    return boxcar.autograd.receive, (*parts, *sent)


def _reduce(tensor):
    reduced = _reduce_strided(tensor)
    if reduced is not None or not tensor.requires_grad:
        return reduced or tensor.__reduce_ex__(5)
    sent = put_tensor(tensor) if torch.is_grad_enabled() else None
    if sent is None:
        return torch.Tensor.requires_grad_, (tensor.detach(),)
    return boxcar.autograd.receive_leaf, (tensor.detach(), *sent)


def _reduce_script(function):
    """By the name, which is __torch__.module.name, or __torch__.name of __main__'s."""
    module, _, name = function.qualified_name.removeprefix("__torch__.").rpartition(".")
    return find, (module or "__main__", name)


def _reduce_layout(layout):
    """By its name: two threads that first read what torch makes of it raise KeyError."""
    return find, tuple(str(layout).split("."))


set_apart(torch.Tensor, _reduce_strided)


def _bytes(tensor):
    return tensor.nelement() * tensor.element_size()


class _Copies:
    """Of the tensors of a message that lie on one GPU; calling it makes their block."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.there = _gpus.place(destination(), gpu)
        self.bytes = 0
        self.parts = []                 # (offset, end, bytes of the tensor)

    def add(self, tensor):
        """Where it will be: (offset, end)."""
        at = self.bytes, self.bytes + _bytes(tensor)
        self.parts.append((*at, tensor.reshape(-1).view(torch.uint8)))
        self.bytes = at[1] + -at[1] % _ALIGNED
        return at

    def __call__(self):
        with torch.cuda.device(self.gpu):
            block = boxcar._running().allocate_on(self.gpu, max(self.bytes, 1))
            memory = torch.from_dlpack(block)
            for offset, end, elements in self.parts:
                memory[offset:end].copy_(elements)
            block.written_on(torch.cuda.current_stream().cuda_stream or _LEGACY)
        return block


def _put_copy(tensor):
    """Adds a tensor on a GPU to the message that is being written: (GPU there, index of the block, offset, end)."""
    known = blocks()
    for index, copies in enumerate(known):
        if copies.gpu == tensor.device.index:
            break
    else:
        index, copies = 0, _Copies(tensor.device.index)
        known.insert(0, copies)
    return copies.there, index - len(known), *copies.add(tensor)


def _copy(gpu, index, offset, end, dtype):
    """A copy on a GPU of what came in a block."""
    known = blocks()
    if not isinstance(known[index], torch.Tensor):
        known[index] = torch.from_dlpack(known[index])
    copied = known[index][offset:end].view(dtype).to(f"cuda:{gpu}", copy=True)
    if boxcar._here.callbacks_of is not None:       # threads that use it may have other streams
        torch.cuda.current_stream(copied.device).synchronize()
    return copied


def make(elements, dtype, shape, requires_grad):
    """A tensor over the memory of a buffer, or on a GPU."""
    dtype = getattr(torch, dtype)
    if isinstance(elements, tuple):
        tensor = _copy(*elements, dtype)
    else:
        tensor = torch.frombuffer(elements, dtype=dtype) if len(elements) > 0 else torch.empty(0, dtype=dtype)
    if tensor.shape != shape:
        tensor.resize_(shape)           # not view(): detach_ refuses views
    return tensor.requires_grad_() if requires_grad else tensor


def empty_like(tensor):
    """A tensor of that shape and type in boxcar.empty's memory."""
    return make(boxcar.empty(_bytes(tensor)), _NAMES[tensor.dtype], tensor.shape, False)


class _Table(dict):
    """Of reducers: that of tensors, then those of another table as it is when it is asked."""

    def __init__(self, other):
        super().__init__({torch.Tensor: _reduce, torch.layout: _reduce_layout,
                          torch.jit.ScriptFunction: _reduce_script})
        self.other = other

    def __missing__(self, type):
        return self.other[type]


def with_tensors(pickler):
    """The class of a pickler that takes tensors out."""
    table = copyreg.dispatch_table if pickler is pickle.Pickler else pickler.dispatch_table
    return type(pickler.__name__, (pickler,), {"dispatch_table": _Table(table)})
