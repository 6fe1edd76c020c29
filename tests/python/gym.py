# SPDX-License-Identifier: MIT
"""The calls of OpenAI's gym that the tutorials make, over CartPole-v1, in plain floats: `import gym`.

Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems" (1983), by
Euler's method at 50 Hz. The terms are in the order of tests/data/cartpole.json, so that a whole pole agrees with it.
"""
import math
import random
from types import SimpleNamespace

GRAVITY, FORCE, POLE_MASS, TOTAL_MASS, HALF_LENGTH, TAU = 9.8, 10.0, 0.1, 1.1, 0.5, 0.02
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * math.pi / 360


class CartPole:
    """A cart on a rail and a pole on it. A state is (position m, velocity m/s, angle rad, angular velocity rad/s)."""
    spec = SimpleNamespace(id="CartPole-v1", max_episode_steps=500, reward_threshold=475.0)

    def __init__(self):
        self._random = random.Random()
        self.state = None

    def seed(self, seed):
        """The states after later resets depend on it alone."""
        self._random.seed(seed)

    def reset(self):
        """Returns the state in which a new pole starts."""
        self._start(self._random.uniform(-0.05, 0.05) for _ in range(4))
        return self.state

    def _start(self, state):
        self.state, self._steps = tuple(state), 0

    def step(self, action):
        """Pushes to the right (1) or to the left (0). Returns the state, the reward 1, whether the pole fell or stood
        for all steps, and a dict."""
        x, x_dot, theta, theta_dot = self.state
        cosine, sine = math.cos(theta), math.sin(theta)
        force = FORCE if action == 1 else -FORCE
        pushed = (force + POLE_MASS * HALF_LENGTH * theta_dot * theta_dot * sine) / TOTAL_MASS
        theta_acc = ((GRAVITY * sine - cosine * pushed) /
                     (HALF_LENGTH * (4 / 3 - POLE_MASS * cosine * cosine / TOTAL_MASS)))
        x_acc = pushed - POLE_MASS * HALF_LENGTH * theta_acc * cosine / TOTAL_MASS
        self.state = x + TAU * x_dot, x_dot + TAU * x_acc, theta + TAU * theta_dot, theta_dot + TAU * theta_acc
        self._steps += 1
        fell = abs(self.state[0]) > X_LIMIT or abs(self.state[2]) > THETA_LIMIT
        return self.state, 1.0, fell or self._steps >= self.spec.max_episode_steps, {}


def make(name):
    if name != CartPole.spec.id:
        raise ValueError(f"{name}: there is {CartPole.spec.id} alone")
    return CartPole()
