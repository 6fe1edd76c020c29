# SPDX-License-Identifier: MIT
"""Gradients of what several workers have computed: the names of torch.distributed.autograd.

    import boxcar.autograd as dist_autograd     # was: import torch.distributed.autograd as dist_autograd

    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", forward, args=(batch,)).sum()
        dist_autograd.backward(context_id, [loss])
        dist_autograd.get_gradients(context_id)     # {parameter of this worker: its gradient}

How it works. A request that is made in a context carries the context's id, and its handler runs inside it, so the
context spreads with the calls. Within one, a tensor that requires grad and is sent is a node of its own in the graphs
of both sides: the sender keeps one under its message, (its rank, a number); the receiver makes a leaf, for which it
notes the message and the index there. The tensor carries which received messages it was computed of, its needs.

backward directs everything from its own thread; the others run what it asks for. First it collects the needs of all
messages from the roots on, and asks the senders of those that did not pass this worker. So what does not lead to the
roots is never waited for. Then it runs torch's engine, beginning with the roots: a message is run in its sender when
every message that needs it has run, with the sum of its gradients; all that are ready at a time are one call a worker.
Gradients of parameters add up where the parameters are; those of received tensors come back as the call's result. An
error, or the death of a worker, is the error of a call.

The end of a context is told to the workers that were called in it, and by them to those that they called.
"""
import contextlib
import itertools
import secrets
import threading
from collections import Counter, defaultdict

import torch

import boxcar

from ._futures import wait_for
from ._messages import get_context, set_context
from ._tensors import make

__all__ = ["backward", "context", "get_gradients"]

_GRAD_RUNS_HOOKS = torch.__version__ >= (2, 0)      # a comparison takes 0.4 ms
RELEASED = 1000         # ids that are remembered: a request that was overtaken by the end of its context makes no other

_contexts = {}
_released = {}          # ids, oldest first
_lock = threading.Lock()        # of both
_in_use = set()         # leaves whose leaf.grad a pass or an optimizer uses
_in_use_changed = threading.Condition()         # of it
_numbers = itertools.count(secrets.randbits(40))    # of contexts and messages; an id of an earlier process is not ours

# Of what a tensor lies in: tensors of one share memory.
_storage = getattr(torch.Tensor, "untyped_storage", torch.Tensor.storage)


@contextlib.contextmanager
def own_grads(leaves):
    """leaf.grad of these is this thread's alone. Whoever wants others does not wait: a pass may wait for another's."""
    leaves = set(leaves)
    with _in_use_changed:
        _in_use_changed.wait_for(lambda: _in_use.isdisjoint(leaves))
        _in_use.update(leaves)
    try:
        yield
    finally:
        with _in_use_changed:
            _in_use.difference_update(leaves)
            _in_use_changed.notify_all()


def _sum(one, other):
    return one + other if one.layout == torch.strided else other + one      # sparse + dense is not there


# ---- Contexts and what was sent in them ----------------------------------------------------------------------------

class _Alias(torch.autograd.Function):
    """A tensor of the same memory that is a node of its own: writes to the other change neither its value's graph nor
    the other's, and a write to a received tensor is no write to a leaf."""

    @staticmethod
    def forward(context, tensor):
        return tensor.data

    @staticmethod
    def backward(context, gradient):
        return gradient


class _Sent:
    """Tensors of a message, and the leaves that they were computed of."""

    def __init__(self):
        self.tensors = []
        self.leaves = {}                # a set that keeps its order
        self.seen = set()               # nodes of the graph

    def add(self, tensor):
        self.tensors.append(tensor)
        if tensor.grad_fn is None:
            self.leaves[tensor] = None
            return
        left = [tensor.grad_fn]
        while left:
            node = left.pop()
            if node is None or node in self.seen:
                continue
            self.seen.add(node)
            below = node.next_functions
            left += [node for node, _ in below]
            if not below and hasattr(node, "variable"):
                self.leaves[node.variable] = None


class _Context:
    def __init__(self, id):
        self.id = id
        self.rank = boxcar.rank()       # of this worker
        self.sent = {}                  # message: _Sent
        self.received = {}              # leaf: (message, index)
        self.needs = {}                 # message that was received: those that it was computed of
        self.gradients = {}             # leaf: its gradient
        self.addresses = set()          # of these
        self.called = set()             # workers that were called in it
        self.has_ended = False
        self.lock = threading.Lock()    # of gradients, called, has_ended

    def carry_to(self, worker):
        """What a request to a worker carries: the id, if the context has not ended."""
        with self.lock:
            if self.has_ended:
                return None
            self.called.add(worker)
            return self.id

    def send(self, tensor, before):
        """Keeps a tensor of a message. before: what this returned for another tensor of the same message, or None.
        Returns (context id, message, index, needs), what `receive` is to be given."""
        message = before[1] if before is not None else (self.rank, next(_numbers))
        sent = self.sent.setdefault(message, _Sent())
        sent.add(_Alias.apply(tensor))
        return self.id, message, len(sent.tensors) - 1, self.needs_of(message)

    def add(self, leaf, gradient):
        """Adds to a gradient. The program may write to it: it shares its elements with no other, nor two of them."""
        with self.lock:
            before = self.gradients.get(leaf)
            if before is not None:
                gradient = _sum(before, gradient)
            elif gradient.layout == torch.strided:
                if 0 in gradient.stride() or _storage(gradient).data_ptr() in self.addresses:
                    gradient = gradient.clone()
                self.addresses.add(_storage(gradient).data_ptr())
            self.gradients[leaf] = gradient

    def needs_of(self, message):
        """The messages that a message was computed of; None: that is not known here."""
        sent = self.sent.get(message)
        if sent is None:
            return self.needs.get(message)
        return {self.received[leaf][0] for leaf in sent.leaves if leaf in self.received}


def join(context_id):
    """The context of an id that came in a message; None: it has ended."""
    context = _contexts.get(context_id)
    if context is not None or context_id >> 48 == boxcar.rank():
        return context
    with _lock:
        for id in [id for id in _contexts if not boxcar.is_alive(id >> 48)]:    # nobody is left to end them
            del _contexts[id]
        return None if context_id in _released else _contexts.setdefault(context_id, _Context(context_id))


def receive(elements, dtype, shape, *sent):
    """A tensor that was sent in a context."""
    return receive_leaf(make(elements, dtype, shape, False), *sent)


def receive_leaf(leaf, context_id, message, index, needs):
    """The same of a tensor that is there."""
    leaf.requires_grad_()
    context = join(context_id)
    if context is None:
        return leaf
    context.received[leaf] = message, index
    context.needs.setdefault(message, set()).update(needs)
    return _Alias.apply(leaf)


def _release(context_id):
    with _lock:
        context = _contexts.pop(context_id, None)
        _released[context_id] = None
        if len(_released) > RELEASED:
            del _released[next(iter(_released))]
    if context is None:
        return
    with context.lock:
        context.has_ended = True
    for worker in context.called:
        try:
            boxcar._begin(worker, _release, (context_id,), None, None)
        except boxcar.Error:            # it has died or left
            pass


def _find(context_id):
    context = _contexts.get(context_id)
    if context is None:
        raise RuntimeError(f"Could not find autograd context with id: {context_id}")
    return context


class context:
    """`with context() as context_id:` calls of this thread, and what they call, are recorded for `backward`."""

    def __enter__(self):
        if get_context() is not None:
            raise RuntimeError("this thread has an autograd context already")
        self._id = boxcar.rank() << 48 | next(_numbers)
        set_context(_contexts.setdefault(self._id, _Context(self._id)))
        return self._id

    def __exit__(self, *error):
        set_context(None)
        _release(self._id)


# ---- Backward ------------------------------------------------------------------------------------------------------

def _needs(context_id, messages):
    """{message: its needs} of these messages, of their needs and so on, as far as is known here."""
    context, needs, left = _find(context_id), {}, list(messages)
    while left:
        message = left.pop()
        known = context.needs_of(message) if message not in needs else None
        if known is not None:
            needs[message] = known
            left += known
    return needs


def _lost(sender, context_id):
    return RuntimeError(f"worker {boxcar.worker_name(sender)} no longer has what it sent in autograd context "
                        f"{context_id}: it has been started again")


def _hooked(leaf, gradient):
    """What the leaf's hooks make of it: before 2.0 torch.autograd.grad does not run them."""
    if not _GRAD_RUNS_HOOKS:
        with torch.no_grad():
            for hook in list((leaf._backward_hooks or {}).values()):
                result = hook(gradient)
                gradient = gradient if result is None else result
    return gradient


def _in_grads(context, outputs, leaves, gradients):
    """Adds them to the context's; returns those of the received leaves. For DistributedDataParallel, which sums the
    trainers' leaf.grad, in hooks that torch.autograd.grad does not run: that of one leaf when the last one of its
    bucket is reached, which may be in a later part of the pass. So all gradients of the context are there meanwhile."""
    with context.lock:
        leaves = list(dict.fromkeys([*leaves, *context.gradients]))
    with own_grads(leaves):
        before = [leaf.grad for leaf in leaves]
        try:
            for leaf in leaves:
                leaf.grad = context.gradients.get(leaf)
            torch.autograd.backward(outputs, gradients, retain_graph=True)
            found = {leaf: leaf.grad for leaf in leaves if leaf.grad is not None}
        finally:
            for leaf, gradient in zip(leaves, before):
                leaf.grad = gradient
    received = {leaf: found.pop(leaf) for leaf in list(found) if leaf in context.received}
    with context.lock:
        context.gradients.update(found)
    return received


def _run(context_id, messages):
    """In their sender, of {message: {index: gradient}}: the same of their needs."""
    context, leaves, outputs, gradients, results = _find(context_id), {}, [], [], defaultdict(dict)
    for message, of_message in messages.items():
        sent = context.sent.get(message)
        if sent is None:
            raise _lost(context.rank, context_id)
        leaves.update(sent.leaves)
        outputs += [sent.tensors[index] for index in of_message]
        gradients += of_message.values()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        found = _in_grads(context, outputs, leaves, gradients)
    else:
        found = zip(leaves, torch.autograd.grad(outputs, list(leaves), gradients, retain_graph=True, allow_unused=True))
    for leaf, gradient in dict(found).items():
        if gradient is None:
            continue
        if leaf in context.received:
            message, index = context.received[leaf]
            results[message][index] = gradient
        else:
            context.add(leaf, _hooked(leaf, gradient))
    return dict(results)


def _at_senders(function, context, messages):
    """function(context id, messages) in each of their senders, for its own; the list of results."""
    by_rank = defaultdict(dict)
    for message, value in messages.items():
        by_rank[message[0]][message] = value
    mine = by_rank.pop(context.rank, None)
    calls = [(boxcar._begin(rank, function, (context.id, part), None, None), rank) for rank, part in by_rank.items()]
    results = [function(context.id, mine)] if mine is not None else []
    return results + [wait_for(*call, function) for call in calls]


def backward(context_id, roots, retain_graph=False):
    """Adds the gradients of the sum of roots, scalars of this worker, to those of the context in all its workers.

    The graph is kept to the end of the context in any case. Raises what a worker raised; PeerDead.
    """
    context = _find(context_id)
    if not roots:
        raise RuntimeError("No tensors provided for gradient computation.")
    for root in roots:
        if not root.requires_grad:
            raise RuntimeError("requires_grad not set on root")
        if root.numel() != 1:
            raise RuntimeError(f"{root.shape} is not a scalar, all roots need to be scalar")
    start, sent = (context.rank, next(_numbers)), _Sent()           # as if the roots were a message
    for root in roots:
        sent.add(root)
    context.sent[start] = sent
    needs = _needs(context_id, [start])
    while unknown := {message for of in needs.values() for message in of} - needs.keys():
        for part in _at_senders(_needs, context, dict.fromkeys(unknown)):
            needs.update(part)
        for sender, _ in unknown - needs.keys():
            raise _lost(sender, context_id)
    waits = Counter(message for of in needs.values() for message in of)
    gradients, ready = {start: {index: torch.ones_like(root) for index, root in enumerate(roots)}}, [start]
    while ready:
        for part in _at_senders(_run, context, {message: gradients.pop(message) for message in ready
                                                if message in gradients}):
            for message, of_message in part.items():
                sums = gradients.setdefault(message, {})
                for index, gradient in of_message.items():
                    sums[index] = _sum(sums[index], gradient) if index in sums else gradient
        done = [message for message in ready for message in needs[message]]
        waits.subtract(done)
        ready = [message for message in dict.fromkeys(done) if waits[message] == 0]


def get_gradients(context_id):
    """{tensor of this worker: its gradient in the context}."""
    context = _find(context_id)
    with context.lock:
        return dict(context.gradients)
