# SPDX-License-Identifier: MIT
"""Futures of calls that torch takes for its own, too.

_futures imports this once the program has imported torch. The two halves of such a future are set apart: boxcar's by
the call, so that wait() needs no other thread, and torch's, of which only torch's C++ knows, when that asks for it.
torch.futures.collect_all and wait_all look torch._C._collect_all up at each call; this module puts its own there.
"""
import torch

from ._futures import Future


class TorchFuture(Future, torch.futures.Future):
    """A boxcar.Future and a torch.futures.Future."""

    def __init__(self):
        Future.__init__(self)
        torch.futures.Future.__init__(self)


def _raise(error):
    raise error


def _set_half(future):
    try:
        value = future.result()
    except BaseException as error:
        torch._C.Future._set_unwrap_func(future, _raise)
        value = error
    torch._C.Future.set_result(future, value)


def _collect_all(futures):
    for future in futures:
        if isinstance(future, TorchFuture) and vars(future).setdefault("_collector", me := object()) is me:
            future.add_done_callback(_set_half)
    return _torch_collect_all(futures)


_torch_collect_all, torch._C._collect_all = torch._C._collect_all, _collect_all
