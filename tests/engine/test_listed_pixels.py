"""The engine at listed pixels: equal to PyTorch, counting what it computed, and refusing what it cannot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pruning.networks import images, randomised
from torch import Tensor, nn

import penstock as ps
from penstock.errors import CompileError, PenstockError
from penstock.pruning import Budget, ChannelGating, LowCostLayers, Perforated
from penstock.pruning.lccl import CheapMap
from penstock.pruning.perforated import PerforatedConv, nearest_positions, top_mask
from penstock.pruning.pixels import Candidate


class Two(nn.Module):
    """A dense convolution, then one whose place a layer that skips pixels takes, a norm, an activation."""

    def __init__(self, conv: nn.Conv2d, activation: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, conv.in_channels, 3, padding=1)
        self.second, self.norm, self.activation = conv, nn.BatchNorm2d(conv.out_channels), activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.norm(self.second(torch.relu(self.first(x)))))
        return y


def sizes(draw: st.DrawFn) -> tuple[nn.Conv2d, int, int]:
    kernel, stride = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    inputs, outputs = draw(st.integers(1, 20)), draw(st.integers(1, 30))
    padding, dilation = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    bias = draw(st.booleans())
    reach = dilation * (kernel - 1) + 1
    height, width = (draw(st.integers(max(1, reach - 2 * padding), 19)) for _ in "hw")
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=bias)
    return conv, height, width


@st.composite
def cases(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 99)))
    conv, height, width = sizes(draw)
    kind = draw(st.sampled_from(["fixed", "decided"]))
    activation = draw(st.sampled_from([nn.ReLU(), nn.SiLU(), nn.Tanh(), nn.Identity()]))
    network = randomised(Two(conv, activation)).eval()
    x = torch.randn(3, 3, height, width)
    with torch.no_grad():
        _, _, h, w = conv(torch.zeros(1, conv.in_channels, height, width)).shape
    candidate = Candidate(
        "second", conv, conv.weight[0].numel() * conv.out_channels * h * w, (1, h, w), False
    )
    layer: nn.Module
    if kind == "fixed":
        layer = PerforatedConv(candidate)
        layer.perforate(top_mask(torch.rand(h, w), draw(st.floats(0.05, 1.0))), torch.Generator())
    else:
        layer = CheapMap(candidate)
        randomised(layer)
        layer.threshold.fill_(draw(st.floats(-1.0, 1.5)))
    traced = torch.fx.symbolic_trace(network)
    traced.set_submodule("second", layer.eval())
    return traced.eval(), x


@settings(max_examples=60, deadline=None)
@given(cases())
def test_listed_pixels_equal_pytorch_and_are_all_that_is_counted(
    case: tuple[nn.Module, Tensor],
) -> None:
    network, x = case
    with torch.no_grad():
        wanted = network(x)
    work = network.get_submodule("second").work.executed
    for threads in (1, 2):
        engine = ps.compile(network, x[:1], threads=threads)
        torch.testing.assert_close(engine(x), wanted, rtol=1e-4, atol=1e-4)
    record = engine.record(x)
    macs = dict(zip(record.layers, torch.as_tensor(record.macs).T, strict=True))
    done = macs["second"] + macs.get("second.cheap", 0)
    torch.testing.assert_close(done.double(), work.double(), rtol=1e-6, atol=0.5)


def test_pruned_networks_run_in_the_engine() -> None:
    network, data = randomised(ps.zoo.m_cifarnet()), images(8, 16)
    for method in (Perforated(masks="uniform"), LowCostLayers()):
        if isinstance(method, Perforated):
            found = method.prune(network, data.images[:1], Budget(saving=2.0), data)
        else:
            found = method.prune(network, data.images[:1], Budget(saving=2.0))
            method.settle(found.network, data, Budget(saving=2.0))
        made = found.network.eval()
        engine = ps.compile(made, data.images[:1])
        with torch.no_grad():
            torch.testing.assert_close(engine(data.images), made(data.images), rtol=1e-4, atol=1e-4)
        counted = found.cost(made, data.images).executed
        assert float(engine.macs(data.images).mean()) == pytest.approx(counted, rel=1e-6)


def test_a_map_that_is_not_finite_is_refused_and_not_taken_for_skipped_pixels() -> None:
    torch.manual_seed(0)
    network = torch.fx.symbolic_trace(Two(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()).eval())
    layer = CheapMap(Candidate("second", network.second, 1, (4, 8, 8), False)).eval()
    with torch.no_grad():
        layer.cheap.weight.fill_(3e38)
        network.first.weight.fill_(1.0)
    network.set_submodule("second", layer)
    engine = ps.compile(network.eval(), torch.zeros(1, 3, 8, 8))
    with pytest.raises(PenstockError, match="second"):
        engine(torch.full((1, 3, 8, 8), 9.0))


def test_channel_gating_is_refused_by_name() -> None:
    made = ChannelGating(parts=2).prune(
        randomised(ps.zoo.m_cifarnet()), torch.zeros(1, 3, 16, 16), Budget(saving=1.5)
    )
    with pytest.raises(CompileError, match="GatedSums, which skips parts of a pixel's sum"):
        ps.compile(made.network.eval(), torch.zeros(1, 3, 16, 16))


def test_ties_in_the_list_do_not_matter_and_one_pixel_is_enough() -> None:
    torch.manual_seed(0)
    network = torch.fx.symbolic_trace(Two(nn.Conv2d(4, 9, 3, padding=1), nn.ReLU()).eval())
    layer = PerforatedConv(Candidate("second", network.second, 1, (9, 7, 5), False)).eval()
    mask = torch.zeros(7, 5, dtype=torch.bool)
    mask[3, 2] = True
    layer.perforate(mask, torch.Generator())
    assert torch.equal(nearest_positions(mask, torch.Generator()), torch.full((35,), 17))
    network.set_submodule("second", layer)
    x = torch.randn(2, 3, 7, 5)
    with torch.no_grad():
        torch.testing.assert_close(ps.compile(network.eval(), x[:1])(x), network(x), rtol=1e-4, atol=1e-4)
