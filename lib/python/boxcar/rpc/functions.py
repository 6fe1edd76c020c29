# SPDX-License-Identifier: MIT
"""The names of torch.distributed.rpc.functions."""
from boxcar import async_function as async_execution

__all__ = ["async_execution"]
