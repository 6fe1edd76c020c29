# SPDX-License-Identifier: MIT
"""The RPC tutorial's model: embedding table and decoder in a parameter server, LSTM in the trainer.

`rnn.py PACKAGE RANK` runs it with PACKAGE.rpc, PACKAGE.autograd and PACKAGE.optim, where PACKAGE is boxcar or
torch.distributed; `rnn.py local` in one process without RPC. The trainer, rank 1, prints the losses and gradients.
"""
import importlib
import json
import sys

import torch
from torch import nn, optim

TOKENS, INPUTS, HIDDEN, INDICES, LAYERS, BATCH = 10, 2, 3, 3, 4, 5


def fill(parameters, seed):
    """By a generator of its own: the server makes both of its parts at a time."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.data.uniform_(-0.1, 0.1, generator=generator)


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
            self.table = rpc.remote("ps", EmbeddingTable)
            self.decoder = rpc.remote("ps", Decoder)
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
    torch.manual_seed(4)
    hidden = torch.randn(LAYERS, INDICES, HIDDEN), torch.randn(LAYERS, INDICES, HIDDEN)
    return hidden, [(torch.randint(0, TOKENS, (BATCH, INDICES)), torch.randint(0, INDICES, (BATCH, TOKENS)))
                    for _ in range(n)]


def train(n):
    """[(loss, [gradient of a parameter])] of n iterations."""
    model = Model(False)
    rrefs = model.rrefs()
    optimizer = DistributedOptimizer(optim.SGD, rrefs, lr=0.05)
    hidden, data = batches(n)
    results = []
    for input, target in data:
        with dist_autograd.context() as context_id:
            hidden[0].detach_()
            hidden[1].detach_()
            output, hidden = model(input, hidden)
            loss = nn.CrossEntropyLoss()(output, target)
            dist_autograd.backward(context_id, [loss])
            results.append((loss.item(), [rpc.rpc_sync(rref.owner(), gradient, args=(rref, context_id)).tolist()
                                          for rref in rrefs]))
            optimizer.step(context_id)
    return results


def train_local(n):
    model = Model(True)
    parameters = [*model.table.parameters(), *model.rnn.parameters(), *model.decoder.parameters()]
    optimizer = optim.SGD(parameters, lr=0.05)
    hidden, data = batches(n)
    results = []
    for input, target in data:
        output, hidden = model(input, [part.detach() for part in hidden])
        loss = nn.CrossEntropyLoss()(output, target)
        optimizer.zero_grad()
        loss.backward()
        results.append((loss.item(), [parameter.grad.tolist() for parameter in parameters]))
        optimizer.step()
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "local":
        print(json.dumps(train_local(5)))
    else:
        rpc = importlib.import_module(sys.argv[1] + ".rpc")
        dist_autograd = importlib.import_module(sys.argv[1] + ".autograd")
        DistributedOptimizer = importlib.import_module(sys.argv[1] + ".optim").DistributedOptimizer
        rank = int(sys.argv[2])
        rpc.init_rpc(("ps", "trainer")[rank], rank=rank, world_size=2)
        if rank == 1:
            print(json.dumps(train(5)))
        rpc.shutdown()
