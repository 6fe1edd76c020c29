# SPDX-License-Identifier: MIT
"""The RPC tutorial's model: embedding table and decoder in a parameter server, LSTM in the trainer.

`PACKAGE=boxcar rnn.py RANK 2 ITERATIONS` runs it with boxcar.rpc, boxcar.autograd and boxcar.optim,
PACKAGE=torch.distributed with torch's, PACKAGE=local in one process (rank 0) without RPC. The trainer, rank 0, prints
the loss and the gradients of each iteration.
"""
import importlib
import json
import os
import sys

import torch
from torch import nn, optim

PACKAGE = os.environ["PACKAGE"]
if PACKAGE != "local":
    rpc = importlib.import_module(PACKAGE + ".rpc")
    dist_autograd = importlib.import_module(PACKAGE + ".autograd")
    DistributedOptimizer = importlib.import_module(PACKAGE + ".optim").DistributedOptimizer

TOKENS, INPUTS, HIDDEN, INDICES, LAYERS, BATCH = 10, 2, 3, 3, 4, 5


def fill(parameters, seed):
    """By a generator of its own: the server makes both of its parts at a time."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.data.uniform_(-1, 1, generator=generator)


class EmbeddingTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(TOKENS, INPUTS)
        fill(self.parameters(), 1)

    def forward(self, input):
        return self.encoder(input)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = nn.Linear(HIDDEN, TOKENS)
        fill(self.parameters(), 2)

    def forward(self, output):
        return self.decoder(output)


def call_method(method, rref, *args):
    return method(rref.local_value(), *args)


def remote_method(method, rref, *args):
    return rpc.rpc_sync(rref.owner(), call_method, args=[method, rref, *args])


def parameter_rrefs(module):
    return [rpc.RRef(parameter) for parameter in module.parameters()]


def gradient(rref, context_id):
    return dist_autograd.get_gradients(context_id)[rref.local_value()]


class Model(nn.Module):
    def __init__(self, is_local):
        super().__init__()
        self.is_local = is_local
        if is_local:
            self.table, self.decoder = EmbeddingTable(), Decoder()
        else:
            self.table = rpc.remote("worker1", EmbeddingTable)
            self.decoder = rpc.remote("worker1", Decoder)
        self.rnn = nn.LSTM(INPUTS, HIDDEN, LAYERS)
        fill(self.rnn.parameters(), 3)

    def forward(self, input, hidden):
        embedded = self.table(input) if self.is_local else remote_method(EmbeddingTable.forward, self.table, input)
        output, hidden = self.rnn(embedded, hidden)
        return (self.decoder(output) if self.is_local else remote_method(Decoder.forward, self.decoder, output)), hidden

    def rrefs(self):
        return (remote_method(parameter_rrefs, self.table) + parameter_rrefs(self.rnn) +
                remote_method(parameter_rrefs, self.decoder))


def batches(n):
    """The hidden state to begin with, and the inputs and targets of n iterations."""
    own = torch.Generator().manual_seed(4)
    hidden = [torch.randn(LAYERS, INDICES, HIDDEN, generator=own) for _ in range(2)]
    return hidden, ((torch.randint(0, TOKENS, (BATCH, INDICES), generator=own),
                     torch.randint(0, INDICES, (BATCH, TOKENS), generator=own)) for _ in range(n))


def report(loss, gradients):
    print(json.dumps([loss.item(), [gradient.tolist() for gradient in gradients]]), flush=True)


class Trainer:
    def __init__(self, hidden):
        self.model = Model(False)
        self.hidden = hidden
        self.rrefs = self.model.rrefs()
        self.optimizer = DistributedOptimizer(optim.SGD, self.rrefs, lr=0.05)

    def iterate(self, input, target, look=lambda context_id, loss: None):
        """look: called when the context has the gradients."""
        with dist_autograd.context() as context_id:
            for part in self.hidden:
                part.detach_()
            output, self.hidden = self.model(input, self.hidden)
            loss = nn.CrossEntropyLoss()(output, target)
            dist_autograd.backward(context_id, [loss])
            look(context_id, loss)
            self.optimizer.step(context_id)


def train(n):
    hidden, data = batches(n)
    trainer = Trainer(hidden)

    def look(context_id, loss):
        report(loss, [rpc.rpc_sync(rref.owner(), gradient, args=(rref, context_id)) for rref in trainer.rrefs])

    for input, target in data:
        trainer.iterate(input, target, look)


def train_local(n):
    model = Model(True)
    parameters = [*model.table.parameters(), *model.rnn.parameters(), *model.decoder.parameters()]
    optimizer = optim.SGD(parameters, lr=0.05)
    hidden, data = batches(n)
    for input, target in data:
        output, hidden = model(input, [part.detach() for part in hidden])
        loss = nn.CrossEntropyLoss()(output, target)
        optimizer.zero_grad()
        loss.backward()
        report(loss, [parameter.grad for parameter in parameters])
        optimizer.step()


def main(rank, world_size, iterations):
    torch.set_num_threads(1)
    if PACKAGE == "local":
        train_local(iterations)
        return
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        train(iterations)
    rpc.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
