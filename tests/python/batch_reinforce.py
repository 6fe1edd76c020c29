# SPDX-License-Identifier: MIT
"""The batch tutorial's CartPole: the agent answers all observers with one run of the policy.

`PACKAGE=boxcar batch_reinforce.py RANK WORLD_SIZE EPISODES` runs it with boxcar.rpc, PACKAGE=torch.distributed with
torch's. The agent, rank 0, prints the rewards and the loss of each episode. The rows of a batch are in the order of the
observers, so nothing depends on the order in which their calls arrive.
"""
import importlib
import json
import os
import sys
import threading

import torch
from torch import nn, optim
from torch.distributions import Categorical

import gym

rpc = importlib.import_module(os.environ["PACKAGE"] + ".rpc")

GAMMA, DROPOUT, HIDDEN, SEED, STEPS = 1.0, 0.6, 128, 543, 40


class Observer:
    def __init__(self, row):
        self.row = row
        self.env = gym.make("CartPole-v1")
        self.env.seed(SEED + row)

    def run_episode(self, agent, steps):
        """Poles, one after the other. Returns the discounted rewards of each step and the length of the first pole."""
        state, start, first = self.env.reset(), 0, 0
        rewards = torch.zeros(steps)
        for step in range(steps):
            action = rpc.rpc_sync(agent.owner(), Agent.select_action, args=(agent, self.row, torch.tensor(state)))
            state, rewards[step], done, _ = self.env.step(action)
            if done or step + 1 == steps:
                for i in range(step - 1, start - 1, -1):
                    rewards[i] += GAMMA * rewards[i + 1]
                first = first or step + 1
                state, start = self.env.reset(), step + 1
        return rewards, first


class Agent:
    def __init__(self, world_size):
        torch.manual_seed(SEED)
        self.rref = rpc.RRef(self)
        self.policy = nn.Sequential(nn.Linear(4, HIDDEN), nn.Dropout(DROPOUT), nn.ReLU(), nn.Linear(HIDDEN, 2))
        self.optimizer = optim.Adam(self.policy.parameters(), lr=1e-2)
        self.observers = [rpc.remote(f"worker{rank}", Observer, args=(rank - 1,)) for rank in range(1, world_size)]
        self.log_probs = []             # of each step, those of all observers
        self.lock = threading.Lock()
        self.states = {}                # of the observers that wait
        self.actions = torch.futures.Future()

    @staticmethod
    @rpc.functions.async_execution
    def select_action(rref, row, state):
        """A future of this row's action. The call that completes the batch runs the policy and sets them all."""
        self = rref.local_value()
        with self.lock:
            action = self.actions.then(lambda actions: actions.wait()[row])
            self.states[row] = state
            if len(self.states) == len(self.observers):
                actions, self.actions = self.actions, torch.futures.Future()
                states, self.states = self.states, {}
                actions.set_result(self._choose(torch.stack([states[row] for row in range(len(states))])))
        return action

    def _choose(self, states):
        chances = Categorical(torch.softmax(self.policy(states), dim=1))
        actions = chances.sample()
        self.log_probs.append(chances.log_prob(actions))
        return actions.tolist()

    def play(self, steps):
        """An episode of all observers. Returns their rewards, and the lengths of their first poles."""
        return zip(*torch.futures.wait_all([observer.rpc_async(timeout=0).run_episode(self.rref, steps)
                                            for observer in self.observers]))

    def learn(self, rewards):
        """A step of the optimizer. Returns the loss."""
        loss = -(torch.stack(self.log_probs, dim=1) * torch.stack(rewards)).sum() / len(rewards)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.log_probs.clear()
        return loss.item()


def main(rank, world_size, episodes):
    torch.set_num_threads(1)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        agent = Agent(world_size)
        for _ in range(episodes):
            rewards, firsts = agent.play(STEPS)
            print(json.dumps([firsts, agent.learn(rewards)]), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
