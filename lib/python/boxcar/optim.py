# SPDX-License-Identifier: MIT
"""DistributedOptimizer, by torch.distributed.optim's name."""
from collections import defaultdict

import boxcar
import boxcar.rpc as rpc

from .autograd import get_gradients, own_grads

__all__ = ["DistributedOptimizer"]


class _LocalOptimizer:
    def __init__(self, optimizer_class, rrefs, args, kwargs):
        self.parameters = [rref.local_value() for rref in rrefs]
        self.optimizer = optimizer_class(self.parameters, *args, **kwargs)

    def step(self, context_id):
        gradients = get_gradients(context_id)
        with own_grads(self.parameters):
            before = [parameter.grad for parameter in self.parameters]
            try:
                for parameter in self.parameters:
                    parameter.grad = gradients.get(parameter)
                self.optimizer.step()
            finally:
                for parameter, gradient in zip(self.parameters, before):
                    parameter.grad = gradient


def _new(*args):
    return rpc.RRef(_LocalOptimizer(*args))


class DistributedOptimizer:
    """An optimizer of optimizer_class in each worker that owns some of the parameters, given as RRefs; each is made
    with args and kwargs."""

    def __init__(self, optimizer_class, params_rref, *args, **kwargs):
        by_owner = defaultdict(list)
        for rref in params_rref:
            by_owner[rref.owner().id].append(rref)
        futures = [boxcar.call_async(owner, _new, (optimizer_class, rrefs, args, kwargs))
                   for owner, rrefs in by_owner.items()]
        self.remote_optimizers = [future.result() for future in futures]

    def step(self, context_id):
        """Each owner's optimizer steps with the gradients of the context; returns when all have. Raises what one
        raised."""
        get_gradients(context_id)       # raises, if there is no such context
        futures = [optimizer.rpc_async().step(context_id) for optimizer in self.remote_optimizers
                   if not optimizer.is_owner()]
        try:
            for optimizer in self.remote_optimizers:
                if optimizer.is_owner():
                    optimizer.local_value().step(context_id)
        finally:
            for future in futures:
                future.result()
