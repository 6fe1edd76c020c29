# SPDX-License-Identifier: MIT
from typing import Any, Iterable

from boxcar import rpc

class DistributedOptimizer:
    def __init__(self, optimizer_class: Any, params_rref: Iterable[rpc.RRef], *args: Any, **kwargs: Any) -> None: ...
    def step(self, context_id: int) -> None: ...
