"""Deep deterministic policy gradients, as small as AMC needs them: states in, one action in [low, 1] out.

    Q(s, a) → r + γ Q'(s', μ'(s'))     critic;  μ: ascends Q(s, μ(s))     actor
    θ' ← τ θ + (1 − τ) θ'              the targets follow slowly

While it warms up actions are uniform; after that normal noise of σ = σ₀ · decay^episode, cut off at the ends.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class Step(NamedTuple):
    """One decision: the state, the action, the reward, the state after it, and whether it was the last."""

    state: Tensor
    action: float
    reward: float
    after: Tensor
    done: bool


@dataclass(frozen=True)
class Hyper:
    """The authors' values."""

    hidden: int = 300
    actor_rate: float = 1e-4
    critic_rate: float = 1e-3
    tau: float = 0.01
    discount: float = 1.0
    batch: int = 64
    noise: float = 0.5
    decay: float = 0.95


class Agent:
    """memory: how many decisions it remembers."""

    def __init__(self, features: int, low: float, memory: int, seed: int, hyper: Hyper | None = None) -> None:
        self.low, self.hyper = low, hyper or Hyper()
        self.chance = np.random.default_rng(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = _mlp(features, self.hyper.hidden, nn.Sigmoid())
            self.critic = _mlp(features + 1, self.hyper.hidden, nn.Identity())
        self.slow_actor, self.slow_critic = deepcopy(self.actor), deepcopy(self.critic)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=self.hyper.actor_rate)
        self.critic_optimiser = torch.optim.Adam(self.critic.parameters(), lr=self.hyper.critic_rate)
        self.memory: deque[Step] = deque(maxlen=memory)
        self.mean_reward: float | None = None

    def act(self, state: Tensor, episode: int | None = None) -> float:
        """The policy's action; with an episode number (from 0, counted after the warm-up), with noise."""
        with torch.no_grad():
            action = self._scaled(self.actor(state[None]))[0, 0].item()
        if episode is None:
            return action
        return truncated_normal(
            action, self.hyper.noise * self.hyper.decay**episode, self.low, 1.0, self.chance
        )

    def explore(self) -> float:
        """Any action."""
        return float(self.chance.uniform(self.low, 1.0))

    def remember(self, steps: list[Step]) -> None:
        """An episode's decisions; rewards count from their moving mean."""
        reward = steps[-1].reward
        self.mean_reward = reward if self.mean_reward is None else 0.95 * self.mean_reward + 0.05 * reward
        self.memory.extend(steps)

    def learn(self) -> None:
        """One step of critic, actor and targets on a batch of what it remembers."""
        hyper = self.hyper
        chosen = self.chance.integers(0, len(self.memory), hyper.batch)
        batch = [self.memory[int(index)] for index in chosen]
        state, after = torch.stack([s.state for s in batch]), torch.stack([s.after for s in batch])
        action = torch.tensor([[s.action] for s in batch], dtype=state.dtype)
        reward = torch.tensor([[s.reward - (self.mean_reward or 0.0)] for s in batch], dtype=state.dtype)
        going = torch.tensor([[0.0 if s.done else 1.0] for s in batch], dtype=state.dtype)
        with torch.no_grad():
            later = self.slow_critic(torch.cat([after, self._scaled(self.slow_actor(after))], 1))
            target = reward + hyper.discount * going * later
        loss = nn.functional.mse_loss(self.critic(torch.cat([state, action], 1)), target)
        self.critic_optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.critic_optimiser.step()
        value = self.critic(torch.cat([state, self._scaled(self.actor(state))], 1)).mean()
        self.actor_optimiser.zero_grad()
        (-value).backward()
        self.actor_optimiser.step()
        for slow, quick in ((self.slow_actor, self.actor), (self.slow_critic, self.critic)):
            follow_slowly(slow, quick, hyper.tau)

    def _scaled(self, unit: Tensor) -> Tensor:
        return self.low + (1 - self.low) * unit


@torch.no_grad()
def follow_slowly(slow: nn.Module, quick: nn.Module, tau: float) -> None:
    """θ' ← τ θ + (1 − τ) θ', for the parameters of a copy that is asked for targets."""
    for old, new in zip(slow.parameters(), quick.parameters(), strict=True):
        old.lerp_(new, tau)


def truncated_normal(
    mean: float, spread: float, low: float, high: float, chance: np.random.Generator
) -> float:
    """A normal number that is drawn again until it lies in [low, high]."""
    for _ in range(1000):
        value = float(chance.normal(mean, spread))
        if low <= value <= high:
            return value
    return min(high, max(low, mean))


def _mlp(features: int, hidden: int, last: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 1),
        last,
    )
