# SPDX-License-Identifier: MIT
"""Futures of calls that torch takes for its own, too.

_futures imports this once the program has imported torch. The two halves of such a future are set apart: boxcar's by
the call, so that wait() needs no other thread, and torch's, of which only torch's C++ knows, when that asks for it. It
is made then too, for that takes 4 us.
torch.futures.collect_all and wait_all look torch._C._collect_all up at each call; this module puts its own there.
"""
import torch

import boxcar

from ._futures import Future


class TorchFuture(Future, torch.futures.Future):
    """A boxcar.Future and a torch.futures.Future."""

    _has_half = False

    def __init__(self):
        Future.__init__(self)
        self._make_half()

    def _make_half(self):
        with self._lock:
            if not self._has_half:
                torch.futures.Future.__init__(self)
                self._has_half = True


def _raise(error):
    raise error


def _set(half, value, error):
    """Completes torch's half of a future."""
    if error is not None:
        torch._C.Future._set_unwrap_func(half, _raise)
        value = error
    torch._C.Future.set_result(half, value)


def _collect_all(futures):
    """As torch's, which ends at the first error, but does not see that a half has one."""
    ours = {future for future in futures if isinstance(future, TorchFuture)}
    for future in ours:
        future._make_half()
    collected = _torch_collect_all(futures)
    if not ours:
        return collected
    boxcar._before_wait()               # of wait_all
    result = torch.futures.Future()
    left = [result]             # empty from its end on: the callbacks, which stay with the futures, are not to keep it

    def end(value, error):
        try:
            _set(left.pop(), value, error)
        except IndexError:
            pass

    def end_half(future):
        error = future.exception()
        if vars(future).setdefault("_completer", left) is left:
            _set(future, None if error is not None else future.value(), error)
        if error is not None:
            end(None, error)

    def end_all(collected):
        try:
            value, error = collected.value(), None
        except BaseException as raised:         # by a future of torch
            value, error = None, raised
        end(value, error)

    for future in ours:
        future.add_done_callback(end_half)
    collected.add_done_callback(end_all)
    return result


_torch_collect_all, torch._C._collect_all = torch._C._collect_all, _collect_all
