"""Network Slimming (Liu et al., ICCV 2017; the paper's rival): channels with small norm scales go.

    loss      += λ · Σ over norms of ‖γ‖₁,  λ = 1e-5, while the network trains before the cut
    importance = max over the norms tied to a channel of |γ|
    removed    = every channel whose importance is below one threshold, the same for the whole network

The maximum, so that a channel of a residual sum goes only when every summand says so, and so that one number
compares with the scales of untied layers as it is. A layer's most important channel always stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock.errors import PruningError
from penstock.pruning.cutting import cut_channels, find_channels
from penstock.pruning.protocol import Budget, Pruned, nothing_left
from penstock.pruning.removable import Removable
from penstock.surgery.ties import Ties


@dataclass(frozen=True)
class NetworkSlimming:
    """`sparsity` is λ, the weight of the ℓ1 norm of all scales."""

    sparsity: float = 1e-5
    name: str = "network-slimming"

    def __post_init__(self) -> None:
        if not 0.0 <= self.sparsity < float("inf"):
            raise PruningError(f"sparsity: expected a number of at least 0, got {self.sparsity!r}")

    def penalty(self, network: nn.Module) -> Tensor | None:
        """λ · Σ |γ|: train with this added to the loss, then prune."""
        scales: list[Tensor] = [m.weight for m in network.modules() if isinstance(m, _BatchNorm) and m.affine]
        if not scales:
            raise PruningError(f"{type(network).__name__} has no batch norm with a scale to slim by")
        return self.sparsity * torch.cat(scales).abs().sum()

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Pruned:
        """A copy without the least important channels; its outputs are those of the masked network."""
        found = find_channels(network, example)
        ranked = rank(found)
        if not ranked:
            raise nothing_left("channel to remove", network, found.left_alone)
        count = _how_many(found, ranked, budget)
        total = found.channels()
        return cut_channels(
            found,
            {channel.root for channel in ranked[:count]},
            example,
            threshold=ranked[min(count, len(ranked) - 1)].importance,
            channels=(total, total - sum(channel.layers for channel in ranked[:count])),
        )


@dataclass(frozen=True)
class Channel:
    """One removable channel: its root, what it is worth, and how many layers' channels go with it."""

    importance: float
    place: float
    root: int
    layers: int


def rank(found: Removable) -> list[Channel]:
    """All channels that may go, least important first; each layer's best channel is not among them.

    Equal importances (an untrained network) are taken evenly from all layers, not layer after layer.
    """
    importance = _importance(found.traced, found.ties, found.roots)
    ties: dict[int, int] = {}
    places: dict[int, float] = {}
    stay: set[int] = set()
    for slots in found.ties.writes.values():
        roots = [found.ties.root(slot) for slot in slots]
        if not importance.keys() & set(roots):
            continue
        order = sorted(roots, key=lambda root: (importance.get(root, float("inf")), root))
        stay.add(order[-1])
        for place, root in enumerate(order):
            ties[root] = ties.get(root, 0) + 1
            places.setdefault(root, place / len(order))
    channels = [Channel(value, places[root], root, ties[root]) for root, value in importance.items()]
    channels = [channel for channel in channels if channel.root not in stay]
    return sorted(channels, key=lambda channel: (channel.importance, channel.place, channel.root))


def _importance(network: nn.Module, ties: Ties, roots: Iterable[int]) -> dict[int, float]:
    """{root: the largest |γ| of the norms on that channel}."""
    wanted = set(roots)
    importance: dict[int, float] = {}
    for name, slots in ties.carries.items():
        module = network.get_submodule(name)
        if not isinstance(module, _BatchNorm) or not module.affine:
            continue
        scales = module.weight.detach().abs()
        if not scales.isfinite().all():
            raise PruningError(f"the scales of {name!r} are not all finite; the training went wrong")
        for slot, scale in zip(slots, scales.tolist(), strict=True):
            root = ties.root(slot)
            if root in wanted:
                importance[root] = max(importance.get(root, 0.0), scale)
    return importance


def _how_many(found: Removable, ranked: list[Channel], budget: Budget) -> int:
    """How many of the ranked channels the budget removes."""
    if budget.ratio is not None:
        total = found.channels()
        most = sum(channel.layers for channel in ranked)
        if budget.ratio * total > most:
            raise PruningError(
                f"ratio {budget.ratio:g} would remove a whole layer: at least one channel of each stays, "
                f"so {most} of the {total} channels can go, {most / total:.4g} of them"
            )
        gone = 0
        for count, channel in enumerate(ranked):
            gone += channel.layers
            if gone > budget.ratio * total * (1 + 1e-9):
                return count
        return len(ranked)
    assert budget.saving is not None
    before = sum(found.macs().values())

    def saving(count: int) -> float:
        return before / sum(found.macs({channel.root for channel in ranked[:count]}).values())

    count = bisect_left(range(len(ranked) + 1), budget.saving - 1e-9, key=saving)
    if count > len(ranked):
        raise PruningError(
            f"saving {budget.saving:g}: with one channel left in each layer, "
            f"{saving(len(ranked)):.4g} is the most that can be had"
        )
    return count
