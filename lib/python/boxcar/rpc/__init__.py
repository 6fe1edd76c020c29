# SPDX-License-Identifier: MIT
"""The names of torch.distributed.rpc, for workers of one host.

    import boxcar.rpc as rpc        # was: import torch.distributed.rpc as rpc

lib/python/README.md has a table of what is the same, what differs and what is not here. torch is not needed.
"""
import errno
import functools
import os
import re
import types
import zlib
from collections import namedtuple

import boxcar
from boxcar._messages import get_ref, set_apart

from . import functions

__all__ = ["BackendType", "RRef", "RpcBackendOptions", "TensorPipeRpcBackendOptions", "WorkerInfo",
           "api", "empty_like", "functions", "get_rpc_timeout", "get_worker_info", "init_rpc", "remote", "rpc_async",
           "rpc_sync", "shutdown"]

UNSET_RPC_TIMEOUT = -1
_rpc_timeout = 60
_FOREVER = float("inf")

WorkerInfo = namedtuple("WorkerInfo", ["name", "id"])
WorkerInfo.__doc__ = "The name and the id (rank) of a worker."


class BackendType:
    """There is one backend."""
    TENSORPIPE = "TENSORPIPE"


def _gpu(device):
    """The ordinal of a GPU: 1, "cuda:1", torch.device("cuda", 1)."""
    if isinstance(device, int):
        return device
    found = re.fullmatch("cuda:([0-9]+)", str(device))
    if found is None:
        raise ValueError(f"{device} is no GPU: 1, 'cuda:1' and torch.device('cuda', 1) are the second one")
    return int(found[1])


class RpcBackendOptions:
    """rpc_timeout: seconds, 0: none; init_method: "env://" or "tcp://host:port", of which the job's name is made.
    device_maps: of workers' names, {GPU here: GPU there}, as boxcar.map_gpus; devices: GPUs that are opened besides."""

    def __init__(self, *, num_worker_threads=16, rpc_timeout=60, init_method="env://", device_maps=None, devices=None,
                 _transports=None, _channels=None):     # the last two are TensorPipe's
        self.num_worker_threads = num_worker_threads
        self.rpc_timeout = rpc_timeout
        self.init_method = init_method
        self.device_maps = {}
        for to, device_map in (device_maps or {}).items():
            self.set_device_map(to, device_map)
        self.set_devices(devices or [])

    def set_device_map(self, to, device_map):
        """Adds to the map for a worker."""
        made = {**self.device_maps.get(to, {}), **{_gpu(here): _gpu(there) for here, there in device_map.items()}}
        if len(set(made.values())) < len(made):
            raise ValueError(f"two GPUs have one place in {to}: {made}")
        self.device_maps[to] = made

    def set_devices(self, devices):
        self.devices = [_gpu(device) for device in devices]


TensorPipeRpcBackendOptions = RpcBackendOptions


def _timeout(seconds):
    return None if seconds == UNSET_RPC_TIMEOUT else _FOREVER if seconds == 0 else seconds


def _from_environment(name):
    value = os.environ.get(name)
    if value is None:
        raise ValueError(f"environment variable {name} expected, but not set")
    return value


def _job_name(init_method):
    """What all workers of one meeting place share."""
    if init_method is None or init_method.startswith("env:"):
        place = f"{_from_environment('MASTER_ADDR')}-{_from_environment('MASTER_PORT')}"
    else:
        place = re.sub("^[a-z]+://", "", init_method)
    name = "rpc-" + re.sub("[^A-Za-z0-9_.-]", "-", place)
    return name if len(name) <= 31 else f"rpc-{zlib.crc32(place.encode()):08x}-{name[-18:]}"    # the port is its end


def init_rpc(name, backend=None, rank=-1, world_size=None, rpc_backend_options=None):
    """Joins the job and returns when all its workers are there. rank and world_size: by default RANK and WORLD_SIZE of
    the environment."""
    global _rpc_timeout
    options = rpc_backend_options or RpcBackendOptions()
    rank = int(_from_environment("RANK")) if rank == -1 else rank
    world_size = int(_from_environment("WORLD_SIZE")) if world_size is None else world_size
    boxcar.init(_job_name(options.init_method), name=name, rank=rank, world_size=world_size,
                call_timeout=_timeout(options.rpc_timeout), pool_threads=options.num_worker_threads)
    _rpc_timeout = options.rpc_timeout
    try:
        for gpu in options.devices:
            boxcar._running().open_gpu(gpu)
        for to, device_map in options.device_maps.items():
            boxcar.map_gpus(to, device_map)
    except BaseException:
        boxcar.leave()
        raise


def shutdown(graceful=True, timeout=0):
    """Leaves together with the others; with graceful=False at once. timeout: seconds, 0: none."""
    if graceful:
        boxcar.shutdown(_timeout(timeout))
    else:
        boxcar.leave()


def get_worker_info(worker_name=None):
    """The WorkerInfo of a name or an id, or of this worker."""
    rank = boxcar.rank() if worker_name is None else boxcar._rank_of(worker_name)
    return WorkerInfo(boxcar.worker_name(rank), rank)


def get_rpc_timeout():
    """Of calls that have no timeout of their own: seconds, 0: none."""
    return _rpc_timeout


def empty_like(tensor):
    """A tensor of torch of that shape and type, in boxcar.empty's memory: it is sent without a copy."""
    from boxcar import _tensors
    return _tensors.empty_like(tensor)


# ---- Calls ---------------------------------------------------------------------------------------------------------

def _to(to):
    return to.id if isinstance(to, WorkerInfo) else to


def _arguments(args, kwargs):
    return tuple(args) if args is not None else (), kwargs or {}


def rpc_async(to, func, args=None, kwargs=None, timeout=UNSET_RPC_TIMEOUT):
    """Calls func in worker `to`, a name, a rank or a WorkerInfo; returns a Future of its result."""
    return boxcar.call_async(_to(to), func, *_arguments(args, kwargs), _timeout(timeout))


def rpc_sync(to, func, args=None, kwargs=None, timeout=UNSET_RPC_TIMEOUT):
    """Calls func in worker `to`, a name, a rank or a WorkerInfo; returns its result."""
    return boxcar.call(_to(to), func, *_arguments(args, kwargs), _timeout(timeout))


def remote(to, func, args=None, kwargs=None, timeout=UNSET_RPC_TIMEOUT):
    """Makes func(*args, **kwargs) in worker `to` and returns an RRef to it at once."""
    return RRef._of(boxcar.remote(_to(to), func, *_arguments(args, kwargs), _timeout(timeout))._engine)


def _nothing(object):
    pass


def _backward(tensor, context_id, retain_graph):
    if not hasattr(tensor, "backward"):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    if context_id == -1:
        tensor.backward(retain_graph=retain_graph)
    else:
        from boxcar.autograd import backward
        backward(context_id, [tensor], retain_graph)


def _make_on(rref, method, args, kwargs):
    fn = getattr(rref._wait_local(), method)
    result = fn(*args, **kwargs)
    return boxcar._value_of(result) if boxcar._is_async(fn) else result


def _make(rref, method, args, kwargs, timeout):
    return RRef._of(boxcar.remote(rref._engine.owner(), _make_on, (rref, method, args, kwargs), None, timeout)._engine)


def _use(begin, rref, timeout, method, /, *args, **kwargs):
    return begin(rref, method, args, kwargs, _timeout(timeout))


class _Proxy:
    """Attribute access gives the methods of the object. They can be pickled: the RPC tutorial calls one by rpc_async in
    the owner."""

    def __init__(self, begin, rref, timeout):
        self._bound = begin, rref, timeout

    def __getattr__(self, method):
        return functools.partial(_use, *self._bound, method)


class RRef(boxcar.Ref):
    """A reference to an object. RRef(value) is one to an object of this worker. Annotations may say RRef[int]."""

    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, value, type_hint=None):
        super().__init__(boxcar._running().ref(value))

    @classmethod
    def _of(cls, engine):
        rref = cls.__new__(cls)
        rref._engine = engine
        return rref

    def __reduce__(self):
        return _rref_at, (self._put(),)

    def _wait_local(self, timeout=None):
        try:
            return self.local()
        except boxcar.Error as error:
            if error.code != -errno.EAGAIN:
                raise
        self.call(_nothing, timeout=timeout)        # runs when the object is made
        return self.local()

    def owner(self):
        return WorkerInfo(self.owner_name(), self._engine.owner())

    def owner_name(self):
        return boxcar.worker_name(self._engine.owner())

    def is_owner(self):
        return self._engine.owner() == boxcar.rank()

    def confirmed_by_owner(self):
        return self._engine.confirmed()

    def local_value(self):
        """The object itself, for its owner."""
        if not self.is_owner():
            raise RuntimeError(f"local_value is for the owner, worker {self.owner_name()}; to_here copies the object")
        return self._wait_local()

    def to_here(self, timeout=UNSET_RPC_TIMEOUT):
        """A copy of the object; the owner gets the object itself."""
        return self._wait_local(_timeout(timeout)) if self.is_owner() else self.get(_timeout(timeout))

    def backward(self, dist_autograd_ctx_id=-1, retain_graph=False):
        """Runs backward from the tensor: its owner may do so without a context of boxcar.autograd."""
        if self.is_owner():
            _backward(self._wait_local(), dist_autograd_ctx_id, retain_graph)
        elif dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        else:
            self.call(_backward, (dist_autograd_ctx_id, retain_graph))

    def rpc_async(self, timeout=UNSET_RPC_TIMEOUT):
        return _Proxy(RRef.call_async, self, timeout)

    def rpc_sync(self, timeout=UNSET_RPC_TIMEOUT):
        return _Proxy(RRef.call, self, timeout)

    def remote(self, timeout=UNSET_RPC_TIMEOUT):
        return _Proxy(_make, self, timeout)


def _rref_at(index):
    return RRef._of(get_ref(index))


set_apart(RRef, RRef.__reduce__)


from . import api      # noqa: E402: it asks for names of this module
