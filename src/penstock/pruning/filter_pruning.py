"""Filter Pruning (Li et al., ICLR 2017): filters with small weights go.

    s_o = Σ |W_o|                       per output filter; the smallest of every layer go, once
    s_o = Σ |W_o| · |γ_o| / σ_o         with `normalised`: what the filter amounts to behind its batch norm

Every layer keeps the same share (`Budget`). The authors set shares by hand from curves of how much a layer
alone can lose; `sensitivity` measures those.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock.gating.folding import scale_and_shift
from penstock.pruning.cutting import find_channels
from penstock.pruning.groups import Group, need_groups, share_counts
from penstock.pruning.looking import accuracy
from penstock.pruning.protocol import Budget, Calibration, Pruned
from penstock.pruning.ranking import best, filter_scores, prune_by_scores
from penstock.pruning.removable import Removable, mask_channels


@dataclass(frozen=True)
class FilterPruning:
    """`normalised`: weigh each filter by its norm's |γ|/σ, which makes the scale of its weights
    irrelevant."""

    normalised: bool = False
    name: str = "filter-pruning"

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Pruned:
        """A copy without the filters of least ℓ1 norm; only channels that one layer makes are removed."""
        return prune_by_scores(network, example, budget, self._scores)

    def _scores(self, found: Removable, group: Group) -> dict[int, float]:
        return filter_scores(found, group, lambda name, filters: self._measure(found, name, filters))

    def _measure(self, found: Removable, layer: str, filters: Tensor) -> Tensor:
        sums = filters.abs().sum(1)
        if not self.normalised:
            return sums
        factor = torch.ones_like(sums)
        slots = found.ties.writes[layer]
        for name, carried in found.ties.carries.items():
            norm = found.traced.get_submodule(name)
            if carried == slots and isinstance(norm, _BatchNorm) and norm.running_var is not None:
                factor = scale_and_shift(norm)[0].abs().to(sums)
        return sums * factor


@dataclass(frozen=True)
class Sensitivity:
    """The accuracy (a share of 1) of the network when one layer alone keeps `keep` of its channels."""

    layer: str
    keep: float
    accuracy: float


def sensitivity(
    network: nn.Module,
    example: Tensor,
    data: Calibration,
    keeps: Sequence[float] = (0.9, 0.7, 0.5, 0.3, 0.1),
    method: FilterPruning | None = None,
) -> list[Sensitivity]:
    """The authors' curves: every layer alone at every share of `keeps`, no training in between."""
    found = find_channels(network, example)
    groups, _ = need_groups(found, network, tied=False)
    scores = [(method or FilterPruning())._scores(found, group) for group in groups]
    table = []
    for group, scored in zip(groups, scores, strict=True):
        for keep in keeps:
            winners = set(best(scored, share_counts([group], keep)[0]))
            masked = deepcopy(found.traced)
            mask_channels(masked, found.ties, set(group.roots) - winners)
            right = accuracy(masked, data.images, data.labels)
            table.append(Sensitivity(group.writers[0], keep, right))
    return table
