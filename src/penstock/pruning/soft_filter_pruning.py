"""Soft Filter Pruning (He Y. et al., IJCAI 2018), and its geometric-median variant FPGM (CVPR 2019).

    s_o = ‖W_o‖₂                SFP
    s_o = Σ_j ‖W_o − W_j‖₂      FPGM: little is lost with a filter that the others can replace

Before the cut, after every epoch, the filters of least s are set to zero in the weights, and training goes
on. At the end the filters of least s are removed for good.
Gradients are not masked and momentum is not cleared: that is how a filter comes back. Every layer loses the
same share. Where a sum ties layers, the scores of a channel add up, so that they lose the same channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from penstock.pruning.cutting import find_channels
from penstock.pruning.groups import Group, need_groups, uniform_counts
from penstock.pruning.protocol import Budget, EpochHook, Pruned
from penstock.pruning.ranking import best, filter_scores, prune_by_scores
from penstock.pruning.removable import Removable


@dataclass(frozen=True)
class SoftFilterPruning:
    """`criterion`: "norm" is SFP, "median" is FPGM."""

    criterion: Literal["norm", "median"] = "norm"
    name: str = "soft-filter-pruning"

    def epoch_hook(self, network: nn.Module, example: Tensor, budget: Budget) -> EpochHook:
        """Zeroes the worst filters of every layer, before the first epoch and after each."""
        found = find_channels(network, example)
        groups, _ = need_groups(found, network)
        counts = uniform_counts(found, groups, budget)

        @torch.no_grad()
        def zero_worst(learner: nn.Module, share: float) -> None:
            found.traced.load_state_dict(learner.state_dict())
            for group, count in zip(groups, counts, strict=True):
                gone = set(group.roots) - set(best(self._scores(found, group), count))
                for name in group.writers:
                    slots = found.ties.writes[name]
                    places = [place for place, slot in enumerate(slots) if found.ties.root(slot) in gone]
                    layer = learner.get_submodule(name)
                    assert isinstance(layer, nn.Conv2d | nn.Linear)
                    layer.weight[places] = 0

        return zero_worst

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Pruned:
        """A copy without the filters of least score, tied channels included."""
        return prune_by_scores(network, example, budget, self._scores, tied=True)

    def _scores(self, found: Removable, group: Group) -> dict[int, float]:
        measure = _norms if self.criterion == "norm" else _distances
        return filter_scores(found, group, lambda _, filters: measure(filters))


def _norms(filters: Tensor) -> Tensor:
    return torch.linalg.vector_norm(filters, dim=1)


def _distances(filters: Tensor) -> Tensor:
    return torch.cdist(filters[None].double(), filters[None].double())[0].sum(1)
