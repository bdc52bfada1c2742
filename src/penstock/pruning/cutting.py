"""The cut itself, the same for every static method: which channels go in, the smaller network out.

Before it is handed out, the smaller network is compared with the masked one (γ = β = 0 in what went): they
must answer the same, or a wrong network would pass for a pruned one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from penstock.errors import PruningError
from penstock.gating import is_gated
from penstock.pruning.groups import Group, written
from penstock.pruning.protocol import LayerCut, Pruned
from penstock.pruning.removable import Removable, find_removable, mask_channels
from penstock.surgery.network import count_parameters


def find_channels(network: nn.Module, example: Tensor) -> Removable:
    """The removable channels of a network that has no gates yet."""
    if is_gated(network):
        raise PruningError("the network is gated: its norms have no scales to go by; prune before gating")
    for name, module in network.named_modules():
        for what, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise PruningError(
                    f"the {what} of {name!r} is not finite everywhere; the training went wrong"
                )
    return find_removable(network, example)


def cut_channels(
    found: Removable,
    gone: Collection[int],
    example: Tensor,
    *,
    threshold: float,
    channels: tuple[int, int],
    left_alone: dict[str, str] | None = None,
) -> Pruned:
    """Remove the channels with the roots `gone`; `found` is used up. channels: how many before and after."""
    before, after = found.macs(), found.macs(gone)
    weights_before = count_parameters(found.traced)
    cuts = []
    for name, width in {layer.name: int(layer.weights.weight.shape[0]) for layer in found.layers}.items():
        slots = found.outputs(name)
        kept = found.left(slots, gone) if slots else range(width)
        cuts.append(LayerCut(name, width, tuple(kept), before[name], after[name]))
    masked = deepcopy(found.traced).eval()
    mask_channels(masked, found.ties, gone)
    small: nn.Module = found.without(gone, example)
    _check(masked, small, example)
    return Pruned(
        network=small,
        layers=tuple(cuts),
        threshold=threshold,
        channels_before=channels[0],
        channels_after=channels[1],
        weights_before=weights_before,
        weights_after=count_parameters(small),
        left_alone=found.left_alone if left_alone is None else left_alone,
    )


def cut_groups(
    found: Removable,
    groups: Sequence[Group],
    kept: Sequence[Collection[int]],
    example: Tensor,
    left_alone: dict[str, str],
    threshold: float = math.nan,
) -> Pruned:
    """Remove the channels of `groups` whose roots are not in `kept`, group by group; `found` is used up."""
    gone: set[int] = set()
    for group, winners in zip(groups, kept, strict=True):
        gone |= set(group.roots) - set(winners)
    whole = written(found, groups)
    slots = [found.ties.root(slot) for slots in found.ties.writes.values() for slot in slots]
    channels = (whole, whole - sum(root in gone for root in slots))
    return cut_channels(found, gone, example, threshold=threshold, channels=channels, left_alone=left_alone)


def _check(masked: nn.Module, small: nn.Module, example: Tensor) -> None:
    """The smaller network must answer as the masked one does."""
    with torch.no_grad():
        wanted, given = masked(example[:1]), deepcopy(small).eval()(example[:1])
    if wanted.shape != given.shape or not torch.allclose(
        wanted, given, rtol=1e-3, atol=1e-3 * float(wanted.abs().max())
    ):
        raise PruningError(
            f"{type(small).__name__}: without the channels it answers otherwise than with them masked; "
            "its channels flow in a way that cannot be cut"
        )
