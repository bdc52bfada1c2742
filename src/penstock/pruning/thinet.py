"""ThiNet (Luo et al., ICCV 2017): what the next layer would miss least goes.

    x_j = Σ_k W_{f,j,k} · in_{j,k}       what channel j adds to one sampled output (image, position, filter f)
    T: add, one by one, the j that keeps ‖Σ_{j∈T} x_j‖² smallest, until enough are in T; T goes
    w = (XᵀX + εI)⁻¹ Xᵀ y over the kept  y = Σ_j x_j; the next layer's slice j is scaled by w_j

Layers are cut from front to back, each seeing what the cuts before it left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.errors import PruningError
from penstock.pruning.cutting import cut_groups, find_channels
from penstock.pruning.groups import Group, need_groups, uniform_counts
from penstock.pruning.looking import flat_weight, sample_rows
from penstock.pruning.protocol import Budget, Calibration, Pruned, need_images
from penstock.pruning.refit import need_rows, parts_by_root, solve
from penstock.pruning.removable import Removable, mask_channels


@dataclass(frozen=True)
class ThiNet:
    """`images` × `positions` rows are sampled for each layer."""

    images: int = 2000
    positions: int = 10
    seed: int = 0
    name: str = "thinet"

    def prune(
        self, network: nn.Module, example: Tensor, budget: Budget, data: Calibration | None = None
    ) -> Pruned:
        """A copy without the channels that the layers after them miss least, which are scaled in return."""
        images = need_images(data, self.name).images
        found = find_channels(network, example)
        groups, left_alone = need_groups(found, network, tied=False)
        counts = uniform_counts(found, groups, budget)
        kept = []
        for group, count in zip(groups, counts, strict=True):
            kept.append(self._cut_group(found, group, count, images))
        return cut_groups(found, groups, kept, example, left_alone)

    def _cut_group(self, found: Removable, group: Group, count: int, images: Tensor) -> list[int]:
        """Mask the group's losers and rescale their readers, in place; the winners' roots."""
        if count == len(group.roots):
            return list(group.roots)
        rows = sample_rows(found.traced, group.readers, images, self.positions, self.seed)
        parts = {name: self._parts(found, group, name, taken) for name, taken in rows.items()}
        for name, part in parts.items():
            need_rows(name, len(part), count)
        stacked = torch.cat(list(parts.values()))
        gone = set(discard(stacked.T @ stacked, len(group.roots) - count))
        winners = [place for place in range(len(group.roots)) if place not in gone]
        mask_channels(found.traced, found.ties, {group.roots[place] for place in gone})
        for name, part in parts.items():
            gram = part.T @ part
            weights = solve(gram[winners][:, winners], gram[winners].sum(1))
            _scale_inputs(found, group, name, winners, weights)
        return [group.roots[place] for place in winners]

    def _parts(self, found: Removable, group: Group, reader: str, rows: Tensor) -> Tensor:
        """(rows, channel): what every channel of the group adds to one random output of each row."""
        weight = flat_weight(found.traced.get_submodule(reader))
        draw = torch.Generator().manual_seed(self.seed + 1)
        filters = torch.randint(0, len(weight), (len(rows),), generator=draw).to(rows.device)
        return parts_by_root(found, group, reader, (rows * weight[filters]).sum(2)).double()


def discard(gram: Tensor, count: int) -> list[int]:
    """The greedy choice of `count` columns whose sum stays smallest. gram: XᵀX, (channel, channel)."""
    if not 0 <= count < len(gram):
        raise PruningError(f"cannot discard {count} of {len(gram)} channels")
    cross = torch.zeros_like(gram[0])  # s · x_j, s the sum so far
    chosen: list[int] = []
    taken = torch.zeros_like(cross, dtype=torch.bool)
    for _ in range(count):
        # ‖s + x_j‖² = ‖s‖² + 2 s·x_j + ‖x_j‖²; ‖s‖² is the same for all.
        growth = (2 * cross + gram.diagonal()).masked_fill(taken, torch.inf)
        pick = int(growth.argmin())
        chosen.append(pick)
        taken[pick] = True
        cross = cross + gram[pick]
    return chosen


@torch.no_grad()
def _scale_inputs(found: Removable, group: Group, reader: str, winners: list[int], scales: Tensor) -> None:
    weight = flat_weight(found.traced.get_submodule(reader))
    scale = {group.roots[place]: float(value) for place, value in zip(winners, scales.detach(), strict=True)}
    for place, slot in enumerate(found.ties.reads[reader]):
        weight[:, place] *= scale.get(found.ties.root(slot), 1.0)
