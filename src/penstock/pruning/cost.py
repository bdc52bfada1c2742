"""Multiply-accumulates of a dense network, layer by layer: counted as it runs, or foretold for a cut.

    MACs of a convolution after a cut = MACs · (inputs left / inputs) · (outputs left / outputs)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils.flop_counter import FlopCounterMode

from penstock.pruning.groups import ChannelGroup


def layer_macs(network: nn.Module, example: Tensor) -> dict[str, int]:
    """{convolution or linear layer: MACs for one image, without bias}, in the order of definition."""
    copy = deepcopy(network).to("meta").eval()  # counting needs shapes only
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        copy(example[:1].to("meta"))
    flops = {name.partition(".")[2]: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    layers = [name for name, module in network.named_modules() if isinstance(module, _ConvNd | nn.Linear)]
    return {name: flops.get(name, 0) // 2 for name in layers}


def macs_after(
    network: nn.Module,
    macs: Mapping[str, int],
    groups: Iterable[ChannelGroup],
    removed: Mapping[str, Iterable[int]],
) -> float:
    """What `network`, which costs `macs` layer by layer, would cost without the channels `removed`."""
    share = dict.fromkeys(macs, 1.0)
    gone: dict[tuple[str, bool], int] = {}
    for group in groups:
        for members, writes in ((group.writers, True), (group.readers, False)):
            for member in members:
                lost = len(member.among(removed.get(group.layer, ())))
                gone[member.layer, writes] = gone.get((member.layer, writes), 0) + lost
    for (layer, writes), lost in gone.items():
        module = network.get_submodule(layer)
        if not writes and isinstance(module, _ConvNd) and module.groups > 1:
            continue  # depthwise: it reads what it writes, and a channel lost is lost once
        inputs, outputs = _widths(module)
        share[layer] *= 1 - lost / (outputs if writes else inputs)
    return sum(count * share[layer] for layer, count in macs.items())


def _widths(module: nn.Module) -> tuple[int, int]:
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    assert isinstance(module, _ConvNd)
    return module.in_channels, module.out_channels
