# SPDX-License-Identifier: MIT
"""What programs use of torch.distributed.rpc.api, though torch calls it private: torch_geometric, graphlearn-torch."""
import functools
import threading
from collections import Counter

import boxcar
from boxcar import rpc

__all__ = ["_all_gather", "_barrier", "_get_current_rpc_agent", "_is_current_rpc_agent_set", "_require_initialized",
           "_wait_all_workers"]

_lock = threading.Lock()        # of all three
_job = None                     # of the other two: the job
_numbers = Counter()            # of names of workers: how often this one has gathered with them
_gatherings = {}                # at the first of the names, of (names, number): ({worker: its obj}, a future of that)


def _begin():
    """The lock. What an earlier job has left is no part of this one."""
    global _job
    if _job is not boxcar._job:
        _job = boxcar._job
        _numbers.clear()
        _gatherings.clear()


@boxcar.async_function
def _gather(key, worker, obj):
    with _lock:
        _begin()
        gathered, whole = _gatherings.setdefault(key, ({}, boxcar.Future()))
        gathered[worker] = obj
        is_whole = len(gathered) == len(key[0])
        if is_whole:
            del _gatherings[key]
    if is_whole:
        whole.set_result(gathered)
    return whole


def _all_gather(obj, worker_names=None, timeout=rpc.UNSET_RPC_TIMEOUT):
    """{name of a worker: its obj} of all workers, or of those of these names. Each of them calls it, as often as the
    others do, and it returns when all have."""
    names = tuple(sorted(worker_names or map(boxcar.worker_name, range(boxcar.world_size()))))
    with _lock:
        _begin()
        _numbers[names] += 1
        key = names, _numbers[names]
    return rpc.rpc_sync(names[0], _gather, (key, boxcar.name(), obj), timeout=timeout)


def _barrier(worker_names):
    """Returns when all these workers call it."""
    _all_gather(None, worker_names)


def _wait_all_workers(timeout=0):
    """Returns when all workers call it. timeout: seconds, 0: none."""
    _all_gather(None, timeout=timeout)


class _Agent:
    """Of torch's agent what it tells of the workers."""
    get_worker_info = staticmethod(rpc.get_worker_info)

    def get_worker_infos(self):
        return [rpc.get_worker_info(boxcar.worker_name(rank)) for rank in range(boxcar.world_size())]


def _get_current_rpc_agent():
    boxcar._running()
    return _Agent()


def _is_current_rpc_agent_set():
    """Whether this process is in a job."""
    return boxcar._job is not None


def _require_initialized(func):
    """func, which raises boxcar.Shutdown where this process is in no job."""
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        boxcar._running()
        return func(*args, **kwargs)
    return wrapper
