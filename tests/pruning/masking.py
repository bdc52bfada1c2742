"""Networks with random norms, and the masked copy that a cut network must answer like."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from penstock.pruning import Pruned


def randomised(network: nn.Module, seed: int = 0) -> nn.Module:
    """The network with random scales, shifts and statistics in its norms, ready to evaluate."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(-1.5, 1.5, generator=generator)
            module.bias.data.normal_(generator=generator)
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return network.eval()


def masked_copy(network: nn.Module, cut: Pruned, norm_of: dict[str, str]) -> nn.Module:
    """The network with γ = β = 0 in the norms of the channels that the cut says it removed."""
    masked = deepcopy(network)
    for layer in cut.layers:
        if layer.layer in norm_of:
            norm = masked.get_submodule(norm_of[layer.layer])
            gone = [channel for channel in range(layer.channels_before) if channel not in layer.kept]
            norm.weight.data[gone] = 0
            norm.bias.data[gone] = 0
    return masked


def norms_by_name(network: nn.Module) -> dict[str, str]:
    """{convolution: the batch norm after it}, in networks that define them one after the other."""
    names: dict[str, str] = {}
    last = ""
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            last = name
        elif isinstance(module, nn.BatchNorm2d):
            names[last] = name
    return names


def assert_same(wanted: Tensor, given: Tensor) -> None:
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4)
