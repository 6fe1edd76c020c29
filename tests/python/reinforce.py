# SPDX-License-Identifier: MIT
"""The RPC tutorial's reinforcement learning: an agent that has the policy, observers that have a CartPole each.

`PACKAGE=boxcar reinforce.py RANK WORLD_SIZE EPISODES` runs it with boxcar.rpc, PACKAGE=torch.distributed with torch's.
The agent, rank 0, prints the rewards and the loss of each episode.

Each observer has a generator at the agent, of which dropout and actions are drawn. So what an observer plays depends on
the seed and the policy, and not on the order in which the calls of several observers arrive.
"""
import importlib
import json
import os
import sys

import torch
from torch import nn, optim

import gym

rpc = importlib.import_module(os.environ["PACKAGE"] + ".rpc")

GAMMA, DROPOUT, HIDDEN, SEED = 0.99, 0.6, 128, 1


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, state, generator):
        kept = torch.rand(HIDDEN, generator=generator) >= DROPOUT
        return torch.softmax(self.outer(torch.relu(self.inner(state)) * kept / (1 - DROPOUT)), dim=-1)


class Observer:
    def __init__(self):
        self.id = rpc.get_worker_info().id
        self.env = gym.make("CartPole-v1")
        self.env.seed(SEED + self.id)

    def run_episode(self, agent):
        """A pole, until it falls; two calls a step."""
        state, done = self.env.reset(), False
        while not done:
            action = agent.rpc_sync().select_action(self.id, state)
            state, reward, done, _ = self.env.step(action)
            agent.rpc_sync().report_reward(self.id, reward)


class Agent:
    def __init__(self, world_size):
        torch.manual_seed(SEED)
        self.rref = rpc.RRef(self)
        self.policy = Policy()
        self.optimizer = optim.Adam(self.policy.parameters(), lr=1e-2)
        workers = [rpc.get_worker_info(f"worker{rank}") for rank in range(1, world_size)]
        self.observers = [rpc.remote(worker, Observer) for worker in workers]
        self.generators = {worker.id: torch.Generator().manual_seed(SEED + worker.id) for worker in workers}
        self.log_probs = {worker.id: [] for worker in workers}
        self.rewards = {worker.id: [] for worker in workers}

    def select_action(self, observer, state):
        generator = self.generators[observer]
        probs = self.policy(torch.tensor(state), generator)
        action = torch.multinomial(probs, 1, generator=generator).item()
        self.log_probs[observer].append(probs[action].log())
        return action

    def report_reward(self, observer, reward):
        self.rewards[observer].append(reward)

    def run_episode(self):
        futures = [rpc.rpc_async(observer.owner(), observer.rpc_sync(timeout=0).run_episode, args=(self.rref,),
                                 timeout=0) for observer in self.observers]
        for future in futures:
            future.wait()

    def finish_episode(self):
        """A step of the optimizer. Returns (the reward of each observer, the loss)."""
        returns = []
        for rewards in self.rewards.values():
            discounted = [0.0]
            for reward in reversed(rewards):
                discounted.append(reward + GAMMA * discounted[-1])
            returns += discounted[:0:-1]
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-7)
        loss = -(torch.stack(sum(self.log_probs.values(), [])) * returns).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return self.forget(), loss.item()

    def forget(self):
        """Forgets the episode. Returns the reward of each observer."""
        totals = [sum(rewards) for rewards in self.rewards.values()]
        for kept in *self.log_probs.values(), *self.rewards.values():
            kept.clear()
        return totals


def main(rank, world_size, episodes):
    torch.set_num_threads(1)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        agent = Agent(world_size)
        for _ in range(episodes):
            agent.run_episode()
            print(json.dumps(agent.finish_episode()), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
