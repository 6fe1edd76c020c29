# SPDX-License-Identifier: MIT
"""GPUs: those of other workers that get the tensors of those here."""
import boxcar

_maps = {}              # of ranks: {GPU here: GPU there}


def forget():
    """A new job begins."""
    _maps.clear()


def has_map(rank):
    return rank in _maps


def use(rank, gpus, is_own):
    """Opens GPUs here and notes where the tensors on them go in a worker. A worker's own word counts for more than what
    follows from another's, which is the way back."""
    for here in gpus:
        boxcar._running().open_gpu(here)
    known = _maps.get(rank, {})
    _maps[rank] = {**known, **gpus} if is_own else {**gpus, **known}


def place(to, here):
    """The GPU of worker `to`, a name or rank, that gets what lies on GPU `here`."""
    rank = to if isinstance(to, int) else boxcar.worker_rank(to)
    there = _maps.get(rank, {}).get(here)
    if there is None and rank == boxcar.rank():
        boxcar._running().open_gpu(here)
        there = here
    if there is None:
        raise RuntimeError(f"tensors on cuda:{here} have no place in worker {to}: boxcar.map_gpus, or set_device_map "
                           "of the options of RPC, says on which GPU they arrive; or send tensor.cpu()")
    return there
