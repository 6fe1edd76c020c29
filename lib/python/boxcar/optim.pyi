# SPDX-License-Identifier: MIT
# The types of boxcar.optim's public names; tests/python/test_stubs.py compares them with the code.
from typing import Any, Iterable, List, Type

from torch.optim import Optimizer

from .rpc import RRef

class DistributedOptimizer:
    remote_optimizers: List[RRef]
    def __init__(self, optimizer_class: Type[Optimizer], params_rref: Iterable[RRef], *args: Any,
                 **kwargs: Any) -> None: ...
    def step(self, context_id: int) -> None: ...
