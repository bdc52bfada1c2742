"""Network Slimming (Liu et al., ICCV 2017; the paper's rival): channels with small norm scales go.

    loss      += λ · Σ over norms of ‖γ‖₁,  λ = 1e-5, while the network trains before the cut
    importance = max over the norms tied to a channel of |γ|
    removed    = every channel whose importance is below one threshold, the same for the whole network

The maximum, so that a channel of a residual sum goes only when every summand says so, and so that one number
compares with the scales of untied layers as it is. A layer's most important channel always stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from penstock.errors import PruningError
from penstock.pruning.cost import layer_macs, macs_after
from penstock.pruning.groups import ChannelGroup, channel_groups, mask_channels, remove_channels
from penstock.pruning.protocol import Budget, LayerCut, Pruned


@dataclass(frozen=True)
class NetworkSlimming:
    """`sparsity` is λ, the weight of the ℓ1 norm of all scales."""

    sparsity: float = 1e-5
    name: str = "network-slimming"

    def penalty(self, network: nn.Module) -> Tensor | None:
        """λ · Σ |γ|: train with this added to the loss, then prune."""
        norms = [m.weight for m in network.modules() if isinstance(m, _BatchNorm) and m.weight is not None]
        if not norms:
            raise PruningError(f"{type(network).__name__} has no batch norm with a scale to slim by")
        return self.sparsity * torch.cat([scale.abs() for scale in norms]).sum()

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Pruned:
        """A copy without the least important channels; its outputs are those of the masked network."""
        groups = channel_groups(network, example)
        candidates = rank(network, groups)
        if not candidates:
            why = "; ".join(f"{group.layer}: {group.reason}" for group in groups) or "no convolution"
            raise PruningError(f"{type(network).__name__} has no channel to remove ({why})")
        macs = layer_macs(network, example)
        count = _how_many(network, groups, candidates, macs, budget)
        removed = _by_group(candidates[:count])
        small = remove_channels(network, example, removed)
        _check(network, small, example, groups, removed)
        after = layer_macs(small, example)
        gone: dict[str, set[int]] = {layer: set() for layer in macs}
        left_alone = dict.fromkeys(macs, "not a convolution")
        for group in groups:
            for writer in group.writers:
                gone[writer.layer].update(writer.among(removed.get(group.layer, ())))
                left_alone[writer.layer] = group.reason
        cuts = []
        for layer in macs:
            width = _width(network, layer)
            kept = tuple(channel for channel in range(width) if channel not in gone[layer])
            cuts.append(LayerCut(layer, width, kept, macs[layer], after[layer]))
        return Pruned(
            network=small,
            layers=tuple(cuts),
            threshold=candidates[min(count, len(candidates) - 1)].importance,
            weights_before=_weights(network),
            weights_after=_weights(small),
            left_alone={layer: reason for layer, reason in left_alone.items() if reason},
        )


@dataclass(frozen=True)
class Candidate:
    """One removable channel of a group, with what it is worth and how many layers' channels go with it."""

    importance: float
    place: float
    group: str
    channel: int
    layers: int


def rank(network: nn.Module, groups: Iterable[ChannelGroup]) -> list[Candidate]:
    """All channels that may go, least important first; each layer's best channel is not among them.

    Equal importances (an untrained network) are taken evenly from all layers, not layer after layer.
    """
    candidates: list[Candidate] = []
    for group in groups:
        if group.reason:
            continue
        importance = torch.zeros(group.size)
        for norm in group.norms:
            module = network.get_submodule(norm.layer)
            assert isinstance(module, _BatchNorm)
            scale = module.weight.detach().abs().float().cpu()
            importance.scatter_reduce_(0, torch.tensor(norm.roots), scale[list(norm.channels)], "amax")
        if not importance.isfinite().all():
            names = ", ".join(norm.layer for norm in group.norms)
            raise PruningError(f"the scales of {names} are not finite numbers; the training went wrong")
        values = importance.tolist()
        ties = Counter(root for writer in group.writers for root in writer.roots)
        # Layers side by side in a concatenation share a group, so each of them keeps a channel of its own.
        stay = {max(writer.roots, key=lambda root: (values[root], root)) for writer in group.writers}
        order = torch.argsort(importance, stable=True).tolist()
        candidates += [
            Candidate(values[channel], place / group.size, group.layer, channel, ties[channel])
            for place, channel in enumerate(order)
            if channel not in stay
        ]
    return sorted(candidates, key=lambda candidate: (candidate.importance, candidate.place))


def _how_many(
    network: nn.Module,
    groups: list[ChannelGroup],
    candidates: list[Candidate],
    macs: dict[str, int],
    budget: Budget,
) -> int:
    """How many of the ranked candidates the budget removes."""
    if budget.ratio is not None:
        total = sum(len(writer.roots) for group in groups if not group.reason for writer in group.writers)
        most = sum(candidate.layers for candidate in candidates) / total
        if budget.ratio > most:
            raise PruningError(
                f"ratio {budget.ratio:g} would remove a whole layer: at least one channel of each stays, "
                f"and the most that can go is {most:.4g} of the {total} channels"
            )
        gone = 0
        for count, candidate in enumerate(candidates):
            gone += candidate.layers
            if gone > budget.ratio * total + 1e-9 * total:
                return count
        return len(candidates)
    assert budget.saving is not None
    before = sum(macs.values())

    def saving(count: int) -> float:
        left = macs_after(network, macs, groups, _by_group(candidates[:count]))
        return before / left

    count = bisect_left(range(len(candidates) + 1), budget.saving - 1e-9, key=saving)
    if count > len(candidates):
        raise PruningError(
            f"saving {budget.saving:g}: with one channel left in each layer "
            f"{saving(len(candidates)):.4g} is the most that can be had"
        )
    return count


def _by_group(candidates: Iterable[Candidate]) -> dict[str, list[int]]:
    removed: dict[str, list[int]] = {}
    for candidate in candidates:
        removed.setdefault(candidate.group, []).append(candidate.channel)
    return removed


def _width(network: nn.Module, layer: str) -> int:
    module = network.get_submodule(layer)
    assert isinstance(module, _ConvNd | nn.Linear)
    return int(module.weight.shape[0])


def _weights(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _check(
    network: nn.Module,
    small: nn.Module,
    example: Tensor,
    groups: list[ChannelGroup],
    removed: dict[str, list[int]],
) -> None:
    """The smaller network must answer as the masked one: a cut that torch-pruning got wrong stops here."""
    masked = deepcopy(network).eval()
    mask_channels(masked, groups, removed)
    image, complaint = example[:1], ""
    with torch.no_grad():
        wanted = masked(image)
        try:
            given = deepcopy(small).eval()(image)
            if wanted.shape != given.shape:
                complaint = f"it answers {tuple(given.shape)} instead of {tuple(wanted.shape)}"
            elif not torch.allclose(wanted, given, rtol=1e-3, atol=1e-3 * float(wanted.abs().max())):
                complaint = f"its answers differ by up to {float((wanted - given).abs().max()):.2g}"
        except RuntimeError as error:
            complaint = f"it does not run: {error}"
    if complaint:
        raise PruningError(
            f"{type(network).__name__}: torch-pruning's smaller network is not the masked one ({complaint}); "
            "its channels flow in a way that cannot be cut"
        )
