# SPDX-License-Identifier: MIT
"""The batch tutorial's parameter server: it takes the gradients of all trainers, and answers them with the new model.

`PACKAGE=boxcar parameter_server.py RANK WORLD_SIZE UPDATES` runs it with boxcar.rpc, PACKAGE=torch.distributed with
torch's, PACKAGE=local in one process (rank 0) without RPC. The server, rank 0, prints the sum of each parameter after
each update, then the losses of each trainer and the parameters.
"""
import importlib
import json
import os
import sys
import threading

import torch
from torch import nn, optim

PACKAGE = os.environ["PACKAGE"]
if PACKAGE != "local":
    rpc = importlib.import_module(PACKAGE + ".rpc")
    async_execution = rpc.functions.async_execution
else:
    def async_execution(fn):
        return fn

INPUTS, HIDDEN, OUTPUTS, ROWS = 100, 200, 10, 20


def small_model():
    """Its first weight has 80 KB: it travels beside the pickle."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))


class ParameterServer:
    def __init__(self, model, trainers, report):
        """report: called with the model after each update."""
        self.model = model
        self.report = report
        self.trainers = trainers
        self.optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.lock = threading.Lock()
        self.waiting = 0                # trainers whose gradients are in
        self.updated = torch.futures.Future()

    def get_model(self):
        return self.model

    def add(self, gradients):
        for parameter, gradient in zip(self.model.parameters(), gradients):
            parameter.grad += gradient

    def step(self):
        for parameter in self.model.parameters():
            parameter.grad /= self.trainers
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    @staticmethod
    @async_execution
    def update_and_fetch_model(rref, gradients):
        """A future of the model after the update. The last trainer's call updates it."""
        self = rref.local_value()
        with self.lock:
            self.add(gradients)
            updated = self.updated
            self.waiting += 1
            if self.waiting == self.trainers:
                self.waiting, self.updated = 0, torch.futures.Future()
                self.step()
                self.report(self.model)
                updated.set_result(self.model)
        return updated


def report(model):
    print(json.dumps([parameter.sum().item() for parameter in model.parameters()]), flush=True)


class Batches:
    """Inputs and targets of a trainer: they depend on its number alone."""

    def __init__(self, trainer):
        self.generator = torch.Generator().manual_seed(trainer)

    def gradients(self, model):
        """(loss, gradients) of the next batch."""
        inputs = torch.randn(ROWS, INPUTS, generator=self.generator)
        targets = torch.randn(ROWS, OUTPUTS, generator=self.generator)
        loss = nn.functional.mse_loss(model(inputs), targets)
        return loss.item(), torch.autograd.grad(loss, list(model.parameters()))


def train(server, trainer, updates):
    """The losses of a trainer."""
    batches, losses = Batches(trainer), []
    model = server.rpc_sync().get_model()
    for _ in range(updates):
        loss, gradients = batches.gradients(model)
        losses.append(loss)
        model = rpc.rpc_sync(server.owner(), ParameterServer.update_and_fetch_model, args=(server, gradients))
    return losses


def serve(trainers, updates):
    server = ParameterServer(small_model(), trainers, report)
    losses = torch.futures.wait_all([rpc.rpc_async(f"worker{i}", train, args=(rpc.RRef(server), i, updates), timeout=0)
                                     for i in range(1, trainers + 1)])
    return losses, server.model


def train_local(trainers, updates):
    """The same in one process."""
    server = ParameterServer(small_model(), trainers, report)
    batches = [Batches(i) for i in range(1, trainers + 1)]
    losses = [[] for _ in batches]
    for _ in range(updates):
        for own, trainer in zip(losses, batches):
            loss, gradients = trainer.gradients(server.model)
            own.append(loss)
            server.add(gradients)
        server.step()
        report(server.model)
    return losses, server.model


def main(rank, world_size, updates):
    torch.set_num_threads(1)
    if PACKAGE != "local":
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        losses, model = (train_local if PACKAGE == "local" else serve)(world_size - 1, updates)
        print(json.dumps([losses, [parameter.tolist() for parameter in model.parameters()]]), flush=True)
    if PACKAGE != "local":
        rpc.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
