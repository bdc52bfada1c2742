"""Networks and helpers that the tests of the pruning methods share."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from penstock.pruning import Calibration, Pruned
from penstock.pruning.removable import find_removable, mask_channels
from penstock.zoo import m_cifarnet, resnet18


def randomised(network: nn.Module, seed: int = 0) -> nn.Module:
    """The network with random scales, shifts and statistics in its norms, ready to evaluate."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(0, 0.3, generator=generator)
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return network.eval()


def from_timm(name: str) -> nn.Module:
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that is not of this torch
        pytest.skip(f"timm cannot be imported: {error}")
    return timm.create_model(name, num_classes=10)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "m_cifarnet": (m_cifarnet, 16),
    "resnet18": (lambda: resnet18(classes=10), 32),
    "timm resnet10t": (lambda: from_timm("resnet10t"), 32),
    "timm mobilenetv2_035": (lambda: from_timm("mobilenetv2_035"), 32),
}


class Chain(nn.Module):
    """Three convolutions in a row and a linear layer: small enough to be solved by hand."""

    def __init__(self, widths: tuple[int, int, int] = (6, 8, 5), bias: bool = False) -> None:
        super().__init__()
        first, second, third = widths
        self.conv1, self.norm1 = nn.Conv2d(3, first, 3, bias=bias), nn.BatchNorm2d(first)
        self.conv2, self.norm2 = nn.Conv2d(first, second, 3, stride=2, padding=1), nn.BatchNorm2d(second)
        self.conv3, self.norm3 = nn.Conv2d(second, third, 1), nn.BatchNorm2d(third)
        self.fc = nn.Linear(third, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.fc(torch.relu(self.norm3(self.conv3(x))).mean((2, 3)))


def images(count: int, size: int = 12, seed: int = 0) -> Calibration:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=draw)
    return Calibration(torch.randn(count, 3, size, size, generator=draw), labels)


def masked_twin(network: nn.Module, cut: Pruned, example: Tensor) -> nn.Module:
    """The original with γ = β = 0 where channels went, and the weights that the cut fitted anew put in.

    Every channel of it is still there; so its answer does not depend on anything having been removed rightly.
    """
    found = find_removable(network, example)
    kept = {layer.layer: set(layer.kept) for layer in cut.layers}
    gone = {
        found.ties.root(slot)
        for name, slots in found.ties.writes.items()
        for place, slot in enumerate(slots)
        if place not in kept[name]
    }
    twin = deepcopy(found.traced).eval()
    for name, slots in found.ties.reads.items():
        small, whole = cut.network.get_submodule(name), twin.get_submodule(name)
        inputs, outputs = found.left(slots, gone), sorted(kept[name])
        whole.weight.data[torch.tensor(outputs)[:, None], torch.tensor(inputs)] = small.weight.data
        if whole.bias is not None:
            whole.bias.data[outputs] = small.bias.data
    for name, slots in found.ties.carries.items():
        small, places = cut.network.get_submodule(name).state_dict(), found.left(slots, gone)
        for key, tensor in twin.get_submodule(name).state_dict().items():
            if tensor.dim():
                tensor[places] = small[key]
    mask_channels(twin, found.ties, gone)
    return twin
