"""Channel Pruning (He Yihui et al., ICCV 2017): a LASSO chooses a layer's inputs, least squares refit it.

    min over β of  1/2N ‖Y − Σ_i β_i X_i W_iᵀ‖² + λ‖β‖₁
    min over W' of ‖Y − Σ_{i kept} X_i W'_iᵀ‖²

λ is halved until at least c' of the β_i are not 0, then bisected until their number lies in [c', 1.1 c']; of
those the c' largest |β| stay. Layers are cut from front to back. X comes from the network as cut so far and
Y, at the same positions, from the original, so that errors do not pile up. Y is before the bias, which stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import PruningError
from penstock.pruning.cutting import cut_groups, find_channels
from penstock.pruning.groups import Group, need_groups, uniform_counts
from penstock.pruning.looking import flat_weight, outputs_at, sample_rows
from penstock.pruning.protocol import Budget, Calibration, Pruned, need_images
from penstock.pruning.refit import inputs_left, parts_by_root, refit_layer
from penstock.pruning.removable import Removable, mask_channels

_HALVINGS = 30  # down to a billionth of the λ that keeps nothing: what has not come by then is a dead input
_BISECTIONS = 40


@dataclass(frozen=True)
class ChannelPruning:
    """`images` × `positions` rows fit the weights; the LASSO looks at `rows` of them."""

    images: int = 2000
    positions: int = 10
    rows: int = 400
    seed: int = 0
    name: str = "channel-pruning"

    def prune(
        self, network: nn.Module, example: Tensor, budget: Budget, data: Calibration | None = None
    ) -> Pruned:
        """A copy without the inputs that the LASSO drops, the layers that read them fitted anew."""
        images = need_images(data, self.name).images
        found = find_channels(network, example)
        original = deepcopy(found.traced)
        groups, left_alone = need_groups(found, network, tied=False)
        readers = list(dict.fromkeys(name for group in groups for name in group.readers))
        wanted = sample_rows(original, readers, images, self.positions, self.seed, keep=outputs_at)
        kept, gone = [], set[int]()
        for group, count in zip(groups, uniform_counts(found, groups, budget), strict=True):
            winners = list(group.roots)
            if count < len(group.roots):
                winners = self._cut_group(found, group, count, images, wanted, gone)
            kept.append(winners)
        return cut_groups(found, groups, kept, example, left_alone)

    def _cut_group(
        self,
        found: Removable,
        group: Group,
        count: int,
        images: Tensor,
        wanted: dict[str, Tensor],
        gone: set[int],
    ) -> list[int]:
        rows = sample_rows(found.traced, group.readers, images, self.positions, self.seed)
        gram, moment, total = self._normal_equations(found, group, rows, wanted)
        beta = choose(gram / total, moment / total, count)
        winners = [group.roots[place] for place in beta]
        losers = set(group.roots) - set(winners)
        gone |= losers
        mask_channels(found.traced, found.ties, losers)
        for name, taken in rows.items():
            layer = found.traced.get_submodule(name)
            refit_layer(layer, name, inputs_left(found, name, gone), taken, wanted[name])
        return winners

    def _normal_equations(
        self, found: Removable, group: Group, rows: dict[str, Tensor], wanted: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, int]:
        """ZᵀZ, Zᵀ Y and the number of equations; column i of Z is X_i W_iᵀ over all rows and outputs."""
        width = len(group.roots)
        gram = torch.zeros(width, width, dtype=torch.float64)
        moment, total = torch.zeros(width, dtype=torch.float64), 0
        for name, taken in rows.items():
            weight = flat_weight(found.traced.get_submodule(name))
            some = torch.randperm(len(taken), generator=torch.Generator().manual_seed(self.seed))[: self.rows]
            for row in some.tolist():
                parts = (taken[row] * weight).sum(2)  # (output, input)
                z = parts_by_root(found, group, name, parts).double().cpu()
                # What inputs outside the group add is not the LASSO's to explain.
                rest = parts.sum(1).double().cpu() - z.sum(1)
                gram += z.T @ z
                moment += z.T @ (wanted[name][row].double().cpu() - rest)
                total += len(z)
        return gram, moment, total


def choose(gram: Tensor, moment: Tensor, count: int) -> list[int]:
    """Places of the `count` inputs that the LASSO keeps: λ halved, then bisected, then trimmed by |β|."""
    most = float(moment.abs().max())
    if not most > 0:
        raise PruningError("the layer's outputs do not depend on its inputs: there is nothing to choose by")
    least, beta = most, torch.zeros_like(moment)
    # No λ ever keeps an input that is zero.
    alive = int((gram.diagonal() > 1e-12 * gram.diagonal().max()).sum())
    for _ in range(_HALVINGS):
        if _left(beta) >= min(count, alive):
            break
        most, least = least, least / 2
        beta = lasso(gram, moment, least, beta)
    for _ in range(_BISECTIONS):
        if _left(beta) <= 1.1 * count:
            break
        middle = (least + most) / 2
        trial = lasso(gram, moment, middle, beta)
        if _left(trial) < min(count, alive):
            most = middle
        else:
            least, beta = middle, trial
    # Should no λ leave that many (columns that are copies of each other), the strongest of the rest join.
    order = sorted(
        range(len(beta)), key=lambda place: (-float(beta[place].abs()), -float(moment[place].abs()))
    )
    return sorted(order[:count])


def _left(beta: Tensor) -> int:
    return int((beta != 0).sum())


def lasso(
    gram: Tensor,
    moment: Tensor,
    penalty: float,
    start: Tensor | None = None,
    tolerance: float = 1e-6,
    steps: int = 60_000,
) -> Tensor:
    """argmin over β of ½ βᵀGβ − mᵀβ + λ‖β‖₁, by coordinate descent. gram: (n, n); moment: (n,).

    steps: along single coordinates, at most. Nearly collinear inputs converge slowly, and which of them is
    kept then matters little.
    """
    g, wanted = gram.cpu().numpy(), moment.tolist()
    beta = np.zeros(len(g)) if start is None else start.cpu().numpy().copy()
    pull = g @ beta  # Gβ, kept up to date
    size = np.maximum(g.diagonal(), 1e-30).tolist()

    def sweep(places: Iterable[int]) -> float:
        """One step along each coordinate; the largest one, in units of the largest β."""
        largest = 0.0
        for j in places:
            old = float(beta[j])
            rest = wanted[j] - float(pull[j]) + size[j] * old
            new = 0.0 if abs(rest) <= penalty else (rest - penalty if rest > 0 else rest + penalty) / size[j]
            if new != old:
                pull[:] += (new - old) * g[j]
                beta[j] = new
                largest = max(largest, abs(new - old))
        return largest / max(1e-12, float(np.abs(beta).max()))

    while steps > 0:
        steps -= len(g)
        if sweep(range(len(g))) <= tolerance:
            break
        active = np.flatnonzero(beta).tolist()
        for _ in range(200):  # most coordinates are 0 and stay so; look at them again only when these rest
            steps -= len(active)
            if steps <= 0 or sweep(active) <= tolerance:
                break
    return torch.from_numpy(beta)
