"""Depthwise convolutions between gates: counted from the masks that occurred, channel by channel."""

from __future__ import annotations

import torch
from tests.accounting.test_executed_convention import randomised
from torch import Tensor, nn

import penstock as ps
from penstock.accounting import account
from penstock.gating import gated_layers, winner_count

IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(2))


class Separable(nn.Module):
    """1×1 to 12 channels, 5×5 depthwise of stride 2, squeeze-excite, 1×1 to 6, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, 12, 1)
        self.deep = nn.Conv2d(12, 12, 5, stride=2, padding=2, groups=12)
        self.squeeze = nn.Conv2d(12, 2, 1)
        self.excite = nn.Conv2d(2, 12, 1)
        self.project = nn.Conv2d(12, 6, 1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.silu(self.deep(self.expand(x).relu()))
        factors = self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return self.fc(self.project(y * factors).relu().mean((2, 3)))


def _gated() -> nn.Module:
    return randomised(ps.add_gates(Separable().eval(), IMAGES, density=0.5), seed=4)


def test_constants_cost_one_mac_an_output_and_are_read_by_predictors_and_linear_layers() -> None:
    gated = _gated()
    counts = account(gated, IMAGES)
    with torch.no_grad():
        gated(IMAGES)
    gains = {name: layer.gains for name, layer in gated_layers(gated)}
    assert set(gains) == {"expand", "project"}
    for image in range(len(IMAGES)):
        wide, out = (int((gains[name][image] != 0).sum()) for name in ("expand", "project"))
        assert counts["expand"].image_macs[image] == 3 * wide * 64 + 3 * 12 + wide * 64
        assert counts["deep"].image_macs[image] == 25 * 16 * wide
        assert counts["squeeze"].image_macs[image] == 12 * 2  # pooled constants are numbers like any other
        product = wide * out * 16 + (12 - wide) * out
        assert counts["project"].image_macs[image] == product + 12 * 6 + out * 16
        assert counts["fc"].image_macs[image] == out * 5
    assert (counts["deep"].active_in, counts["project"].active_in) == (counts["deep"].active_out,) * 2


def test_the_papers_convention_knows_zeros_only() -> None:
    counts = account(_gated(), IMAGES, convention="paper")
    half = winner_count(0.5, 12)
    assert counts["deep"].macs == 25 * 16 * half
    assert counts["project"].macs == 12 * 3 * 16 + 12 * 6 + 6 * 16
