"""Networks that show mistakes: gates whose winners depend on the image, batch norms that are not fresh."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import penstock as ps
from penstock.gating import gated_layers

Awaken = Callable[[nn.Module, Tensor], nn.Module]


def _awaken(network: nn.Module, images: Tensor) -> nn.Module:
    for _, layer in gated_layers(network):
        nn.init.normal_(layer.gate.weight, std=0.2 / layer.conv.in_channels**0.5)
        nn.init.uniform_(layer.gate.bias, 0.9, 1.1)
        nn.init.normal_(layer.shift, 0.2, 0.2)
    for module in network.modules():
        module.training = isinstance(module, nn.BatchNorm2d)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # one batch settles the statistics
            module.reset_running_stats()
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0.1, 0.2)
    with torch.no_grad():
        network(images)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_var is not None
            module.running_var.clamp_(min=0.1)  # on a 1×1 map four images may hardly vary
    return network.eval()


@pytest.fixture(scope="session")
def awaken() -> Awaken:
    """awaken(network, images): random gates, and norms that fit the images, in eval mode."""
    return _awaken


@pytest.fixture(scope="session")
def gated_pair() -> Callable[[nn.Module, int], tuple[nn.Module, Tensor]]:
    """gated_pair(network, size): a gated, awake copy and four images of different strength."""

    def make(network: nn.Module, size: int) -> tuple[nn.Module, Tensor]:
        images = torch.randn(4, 3, size, size) * torch.linspace(0.5, 1.5, 4)[:, None, None, None]
        return _awaken(ps.add_gates(network.eval(), images), images), images

    return make
