"""AMC (He Yihui et al., ECCV 2018): a DDPG agent decides, layer by layer, what share of the channels stays.

    state    index, kind, inputs, outputs, stride, kernel, weights, MACs, MACs saved so far, MACs still to
             come, last action; each scaled to [0, 1]
    action   share of a layer's channels to keep, in [0.2, 1], lowered to the wall: with all later layers at
             0.2 the budget must still be met. Counts are rounded up to `round_to`
    channels those of largest Σ |W| in the layers that read them, which are refitted by least squares
    reward   accuracy on held-out images, the same for every step of an episode

The norms are measured anew before each score: without, every score below a share of 0.4 is near chance. The
authors refit 1×1 convolutions only; here every layer is refitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from penstock.errors import PruningError
from penstock.pruning.cutting import cut_groups, find_channels
from penstock.pruning.ddpg import Agent, Step
from penstock.pruning.groups import Costs, Group, need_groups
from penstock.pruning.looking import accuracy, flat_weight, measure_norms, sample_rows
from penstock.pruning.protocol import Budget, Calibration, Pruned, need_images
from penstock.pruning.ranking import best
from penstock.pruning.refit import inputs_left, need_rows, put_weights, solve
from penstock.pruning.removable import Removable, mask_channels


@dataclass(frozen=True)
class AutoMl:
    """`episodes` of which `warmup` act at random; `held_out` of the `images` score, the others fit.

    Before each score the norms are measured on `norm_images`.
    """

    images: int = 3000
    held_out: int = 1000
    norm_images: int = 1000
    positions: int = 10
    episodes: int = 300
    warmup: int = 75
    lowest: float = 0.2
    round_to: int = 8
    seed: int = 0
    name: str = "amc"

    def prune(
        self, network: nn.Module, example: Tensor, budget: Budget, data: Calibration | None = None
    ) -> Pruned:
        """A copy with the widths of the best episode, its layers refitted."""
        data = need_images(data, self.name, 2)
        fit, held = data.split(min(self.held_out, len(data) // 2))
        found = find_channels(network, example)
        groups, left_alone = need_groups(found, network, tied=False)
        walls = Walls(found, groups, budget, self.lowest, self.round_to)
        world = World(found, groups, fit, held, self.positions, self.seed, self.norm_images)
        counts = self._search(walls, world)
        kept = world.apply(found.traced, counts)
        return cut_groups(found, groups, kept, example, left_alone)

    def _search(self, walls: Walls, world: World) -> list[int]:
        """The counts of the episode with the highest reward."""
        agent = Agent(11, self.lowest, 100 * len(walls.sizes), self.seed)
        best_reward, best_counts = -1.0, walls.least
        scored: dict[tuple[int, ...], float] = {}
        for episode in range(self.episodes):
            counts: list[int] = []
            states, actions = [], list[float]()
            for place in range(len(walls.sizes)):
                states.append(world.state(walls, counts, actions[-1] if actions else 1.0))
                warm = episode < self.warmup
                wanted = agent.explore() if warm else agent.act(states[-1], episode - self.warmup)
                counts.append(walls.allow(counts, wanted))
                actions.append(counts[-1] / walls.sizes[place])
            key = tuple(counts)
            if key not in scored:
                scored[key] = world.score(counts)
            reward = scored[key]
            if reward > best_reward:
                best_reward, best_counts = reward, counts
            after = [*states[1:], states[-1]]
            last = len(states) - 1
            agent.remember(
                [
                    Step(state, action, reward, then, place == last)
                    for place, (state, action, then) in enumerate(zip(states, actions, after, strict=True))
                ]
            )
            if episode >= self.warmup:
                for _ in states:
                    agent.learn()
        return best_counts


class Walls:
    """How many channels each layer may keep, so that those after it can still meet the budget."""

    def __init__(
        self, found: Removable, groups: Sequence[Group], budget: Budget, lowest: float, round_to: int
    ) -> None:
        self.costs = Costs(found, groups)
        self.sizes = [len(group.roots) for group in groups]
        self.round_to = round_to
        self.least = [self.rounded(lowest, size) for size in self.sizes]
        if budget.saving is not None:
            self.most_macs = self.costs.dense / budget.saving
        else:
            assert budget.ratio is not None
            share = [max(1, round((1 - budget.ratio) * size)) for size in self.sizes]
            self.most_macs = self.costs.macs(share)  # as if every layer lost that ratio
        reach = self.costs.macs(self.least)
        if reach > self.most_macs * (1 + 1e-9):
            raise PruningError(
                f"a saving of {self.costs.dense / self.most_macs:.4g} cannot be had: with every layer at the "
                f"lowest share, {lowest:g}, it is {self.costs.dense / reach:.4g}; lower the setting `lowest`"
            )

    def rounded(self, share: float, size: int) -> int:
        """A share as a count, rounded up to a multiple (of 1 in layers too narrow for that)."""
        unit = self.round_to if size >= 2 * self.round_to else 1
        return min(size, max(1, -(-round(share * size * 1e6) // round(unit * 1e6)) * unit))

    def allow(self, counts: Sequence[int], share: float) -> int:
        """The next layer's count: that of `share`, or the largest the wall leaves."""
        place = len(counts)
        size, later = self.sizes[place], self.least[place + 1 :]
        count = max(self.least[place], self.rounded(share, size))
        unit = self.round_to if size >= 2 * self.round_to else 1
        while count > self.least[place] and self.costs.macs([*counts, count, *later]) > self.most_macs:
            count = max(self.least[place], (count - 1) // unit * unit)
        return count


class World:
    """The network that the agent acts on: applies counts, and scores what comes of them."""

    def __init__(
        self,
        found: Removable,
        groups: Sequence[Group],
        fit: Calibration,
        held: Calibration,
        positions: int,
        seed: int,
        norm_images: int = 1000,
    ) -> None:
        self.found, self.groups, self.fit, self.held = found, groups, fit, held
        self.norm_images = norm_images
        readers = list(dict.fromkeys(name for group in groups for name in group.readers))
        self.original: fx.GraphModule = deepcopy(found.traced)
        self.grams: dict[str, Tensor] = {}
        self.rows: dict[str, int] = {}
        for name in readers:  # one at a time: the rows of all layers together would not fit into memory
            taken = sample_rows(self.original, [name], fit.images, positions, seed)[name].flatten(1)
            self.grams[name] = taken.T @ taken
            self.rows[name] = len(taken)
        self.orders = [self._order(group) for group in groups]
        self.facts = torch.tensor([self._facts(group) for group in groups])
        self.facts = self.facts / self.facts.abs().amax(0).clamp(min=1e-9)

    def state(self, walls: Walls, counts: Sequence[int], last: float) -> Tensor:
        """(11,): what the agent sees before it decides on the next layer."""
        place = len(counts)
        dense = walls.costs.dense
        now = walls.costs.macs([*counts, *walls.sizes[place:]])
        rest = now - walls.costs.macs([*counts, *[0] * (len(walls.sizes) - place)])
        own = torch.tensor([place / len(walls.sizes), (dense - now) / dense, rest / dense, last])
        return torch.cat([own, self.facts[place]]).float()

    def score(self, counts: Sequence[int]) -> float:
        """Accuracy on the held-out images after the cut, its norms measured anew."""
        network = deepcopy(self.original)
        self.apply(network, counts)
        measure_norms(network, self.fit.images[: self.norm_images])
        return accuracy(network, self.held.images, self.held.labels)

    def apply(self, network: fx.GraphModule, counts: Sequence[int]) -> list[list[int]]:
        """Mask `network` down to counts and refit it, in place; the roots that stay, group by group."""
        kept = [sorted(order[:count]) for order, count in zip(self.orders, counts, strict=True)]
        gone = {
            r for group, roots in zip(self.groups, kept, strict=True) for r in set(group.roots) - set(roots)
        }
        mask_channels(network, self.found.ties, gone)
        for name, gram in self.grams.items():
            weight = flat_weight(self.original.get_submodule(name))
            taps, places = weight.shape[2], inputs_left(self.found, name, gone)
            if len(places) == weight.shape[1]:
                continue
            at = (torch.tensor(places)[:, None] * taps + torch.arange(taps)).flatten()
            need_rows(name, self.rows[name], len(at))
            fitted = solve(gram[at][:, at], gram[at] @ weight.flatten(1).T)
            put_weights(network.get_submodule(name), places, fitted)
        return kept

    def _order(self, group: Group) -> list[int]:
        """The group's channels, those of largest Σ |W| in their readers first."""
        scores = dict.fromkeys(group.roots, 0.0)
        for name in group.readers:
            sums = flat_weight(self.original.get_submodule(name)).abs().sum((0, 2)).tolist()
            for slot, value in zip(self.found.ties.reads[name], sums, strict=True):
                root = self.found.ties.root(slot)
                if root in scores:
                    scores[root] += value
        return sorted(best(scores, len(scores)), key=lambda root: -scores[root])

    def _facts(self, group: Group) -> list[float]:
        layer = self.original.get_submodule(group.readers[0])
        weight = flat_weight(layer)
        stride = float(layer.stride[0]) if isinstance(layer, nn.Conv2d) else 1.0
        kind = 1.0 if isinstance(layer, nn.Conv2d) else 0.0
        macs = self.found.macs()[group.readers[0]]
        return [
            kind,
            *map(float, weight.shape[:2]),
            stride,
            weight.shape[2] ** 0.5,
            weight.numel(),
            float(macs),
        ]
