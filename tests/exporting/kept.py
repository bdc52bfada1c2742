"""Networks for checkpoints, and the check that one comes back the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from penstock.gating import gated_layers


def shaken(network: nn.Module) -> nn.Module:
    """Weights and statistics that no initialisation would give."""
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.normal_()
                module.bias.normal_()
                module.running_mean.normal_()  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return network.eval()


def gates_shaken(network: nn.Module) -> nn.Module:
    with torch.no_grad():
        for _, layer in gated_layers(network):
            layer.gate.weight.normal_(0, 0.01)
            layer.gate.bias.uniform_(0, 0.5)
            layer.shift.normal_()
    return network


class Mine(nn.Module):
    """A user's network: a residual sum, a depthwise convolution, a reshape with its sizes written out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.block = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.depthwise = nn.Conv2d(width, width, 3, groups=width, padding=1)
        self.last = nn.Conv2d(width, 6, 1)
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (x + self.bn(self.block(x))).relu()
        x = self.last(self.depthwise(x).relu()).relu()
        return self.head(nn.functional.adaptive_avg_pool2d(x, 4).view(-1, 96))


def same(first: nn.Module, second: nn.Module, x: Tensor) -> None:
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with torch.no_grad():
        expected = first.eval()(x)
        assert expected.isfinite().all()
        assert torch.equal(expected, second.eval()(x))
    densities = [{name: layer.density for name, layer in gated_layers(net)} for net in (first, second)]
    assert densities[0] == densities[1]
    winners = [{name: int(layer.winners) for name, layer in gated_layers(net)} for net in (first, second)]
    assert winners[0] == winners[1]
