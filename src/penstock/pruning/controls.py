"""The controls, without which no table of pruning methods is honest.

random-channels   the same share of every layer, drawn at random
from-scratch      the same widths with weights that were never trained: does the choice matter at all?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from penstock.errors import PruningError
from penstock.pruning.cutting import cut_groups, find_channels
from penstock.pruning.groups import Group, need_groups, uniform_counts
from penstock.pruning.protocol import Budget, Pruned
from penstock.pruning.ranking import prune_by_scores
from penstock.pruning.removable import Removable


@dataclass(frozen=True)
class RandomChannels:
    """`seed` draws the channels."""

    seed: int = 0
    name: str = "random-channels"

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Pruned:
        """A copy with as many channels of every layer as Filter Pruning leaves, chosen at random."""
        draw = torch.Generator().manual_seed(self.seed)

        def scores(found: Removable, group: Group) -> dict[int, float]:
            values = torch.rand(len(group.roots), generator=draw).tolist()
            return dict(zip(group.roots, values, strict=True))

        return prune_by_scores(network, example, budget, scores)


@dataclass(frozen=True)
class FromScratch:
    """`widths`: {layer: channels}, those of another method's result; without any, a uniform share.

    `seed` decides the new weights.
    """

    seed: int = 0
    widths: Mapping[str, int] = field(default_factory=dict)
    name: str = "from-scratch"

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Pruned:
        """A copy of the same form with fewer channels and fresh weights; the budget counts where no widths
        are given."""
        found = find_channels(network, example)
        groups, left_alone = need_groups(found, network)
        if self.widths:
            counts = [self._count(group) for group in groups]
        else:
            groups, left_alone = need_groups(found, network, tied=False)
            counts = uniform_counts(found, groups, budget)
        kept = [group.roots[:count] for group, count in zip(groups, counts, strict=True)]
        pruned = cut_groups(found, groups, kept, example, left_alone)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for module in pruned.network.modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
        return pruned

    def _count(self, group: Group) -> int:
        layer = group.writers[0]
        count = self.widths.get(layer, len(group.roots))
        if not 1 <= count <= len(group.roots):
            raise PruningError(
                f"widths: layer {layer!r} has 1 to {len(group.roots)} channels that can stay, got {count}"
            )
        return count
