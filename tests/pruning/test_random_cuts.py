"""Random residual networks: cutting them is masking them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pruning.masking import assert_same, masked_copy, norms_by_name, randomised
from torch import Tensor, nn

from penstock.accounting import account
from penstock.pruning import Budget, NetworkSlimming


class Residual(nn.Module):
    """A random small residual network: stages of blocks, with and without projections, concat, depthwise."""

    def __init__(self, widths: list[int], depths: list[int], kinds: list[str]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, padding=1), nn.BatchNorm2d(widths[0]), nn.ReLU())
        self.blocks = nn.ModuleList()
        channels = widths[0]
        for width, depth, kind in zip(widths, depths, kinds, strict=True):
            for _ in range(depth):
                block = _Block(channels, width, kind)
                self.blocks.append(block)
                channels = block.width
        self.head = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, channels: int, width: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        groups = width if kind == "depthwise" else 1
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        self.width = width + channels if kind == "concat" else width
        self.project = nn.Sequential(nn.Conv2d(channels, width, 1), nn.BatchNorm2d(width))
        self.plain_shortcut = channels == width

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        if self.kind == "concat":
            return self.act(torch.cat((x, y), dim=1))
        if self.kind == "plain":
            return self.act(y)
        return self.act(y + (x if self.plain_shortcut else self.project(x)))


@settings(max_examples=15)
@given(data=st.data())
def test_any_residual_network_is_cut_exactly(data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, 3))
    widths = data.draw(st.lists(st.integers(2, 12), min_size=stages, max_size=stages))
    depths = data.draw(st.lists(st.integers(1, 2), min_size=stages, max_size=stages))
    kinds = data.draw(
        st.lists(st.sampled_from(["plain", "sum", "concat", "depthwise"]), min_size=stages, max_size=stages)
    )
    ratio = data.draw(st.floats(0.0, 0.5))
    seed = data.draw(st.integers(0, 1000))
    torch.manual_seed(seed)
    network = randomised(Residual(widths, depths, kinds), seed)
    x = torch.randn(3, 3, 8, 8)
    cut = NetworkSlimming().prune(network, x[:1], Budget(ratio=ratio))
    with torch.no_grad():
        assert_same(masked_copy(network, cut, norms_by_name(network))(x), cut.network(x))
    modules = dict(cut.network.named_modules())
    for layer in cut.layers:
        assert modules[layer.layer].weight.shape[0] == layer.channels_after >= 1
    assert cut.channels_before * (1 - ratio) <= cut.channels_after + 1e-6
    assert cut.macs_after == account(cut.network, x[:1], "paper").macs
