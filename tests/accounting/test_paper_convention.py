"""The paper's own arithmetic: its tables, and the rules that reproduce them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.accounting import account
from penstock.gating import GatedConv2d, gated_layers

MIB = 2**20


@pytest.fixture(scope="module")
def m_cifarnet() -> nn.Module:
    return ps.add_gates(ps.zoo.m_cifarnet(), torch.randn(1, 3, 32, 32))


@pytest.fixture(scope="module")
def resnet18() -> nn.Module:
    return ps.add_gates(ps.zoo.resnet18(), torch.randn(1, 3, 224, 224))


def test_m_cifarnet_at_half_density_saves_3_93_times(m_cifarnet: nn.Module) -> None:
    ps.set_density(m_cifarnet, 0.5)
    cost = account(m_cifarnet, torch.randn(1, 3, 32, 32), "paper")
    assert cost.macs == 44_346_752
    assert round(cost.saving, 2) == 3.93
    assert cost["fc"].macs == 960
    # The paper's table, to its own precision.
    assert [round(cost[f"conv{i}"].macs / 1e6, 1) for i in range(1, 8)] == [8.4, 4.2, 8.3, 8.3, 3.6, 5.4, 5.4]


@pytest.mark.parametrize("density", [0.1, 0.33, 0.7, 0.9, 1.0])
def test_the_formula_holds_layer_by_layer_at_any_density(m_cifarnet: nn.Module, density: float) -> None:
    ps.set_density(m_cifarnet, density)
    cost = account(m_cifarnet, torch.randn(1, 3, 32, 32), "paper")
    channels = [3, 64, 64, 128, 128, 128, 192, 192, 192]
    sides = [30, 30, 15, 15, 15, 8, 8, 8]
    for i, side in enumerate(sides):
        c_in, c_out = channels[i], channels[i + 1]
        active_in = c_in if i == 0 else math.ceil(density * c_in - 1e-6)
        products = 9 * active_in * math.ceil(density * c_out - 1e-6) * side * side
        assert cost.layers[i].macs == products + c_in * c_out + c_out * side * side
        assert cost.layers[i].gate_macs == c_in * c_out + c_out * side * side


def test_density_by_layer_counts_each_side_by_its_own_layer(m_cifarnet: nn.Module) -> None:
    ps.set_density(m_cifarnet, 1.0)
    ps.set_density(m_cifarnet, {"conv3": 0.25})
    cost = account(m_cifarnet, torch.randn(1, 3, 32, 32), "paper")
    assert cost["conv3"].macs == 9 * 128 * 32 * 225 + 128 * 128 + 128 * 225
    assert cost["conv4"].macs == 9 * 32 * 128 * 225 + 128 * 128 + 128 * 225


@pytest.mark.parametrize(("density", "printed"), [(0.7, 1.62), (0.6, 1.98)])
def test_resnet18_saves_what_the_paper_says_within_one_percent(
    resnet18: nn.Module, density: float, printed: float
) -> None:
    ps.set_density(resnet18, density)
    cost = account(resnet18, torch.randn(1, 3, 224, 224), "paper")
    assert cost.saving == pytest.approx(printed, rel=0.01)


def test_resnet18_memory_at_density_0_6(resnet18: nn.Module) -> None:
    ps.set_density(resnet18, 0.6)
    cost = account(resnet18, torch.randn(1, 3, 224, 224), "paper")
    assert round(cost.weight_bytes / MIB, 1) == 20.2
    assert round(cost.activation_bytes / MIB, 1) == 12.2
    assert round(cost.peak_bytes / MIB, 2) == 4.67
    assert cost.peak_bytes_for(128) / 1e9 == pytest.approx(0.31, rel=0.06)  # the paper's cloud column


def slim_vgg(share: float, gates: bool) -> nn.Module:
    """VGG-16 with every layer narrowed by the same share, as a stand-in for the paper's slimmed one."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            narrow = round(share * width)
            conv = nn.Conv2d(channels, narrow, 3, padding=1, bias=False)
            layers += [GatedConv2d(conv) if gates else conv, nn.ReLU()]
            channels = narrow
        layers.append(nn.MaxPool2d(2))
    dense = (nn.Linear(channels * 49, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1000))
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def test_a_vgg_slimmed_to_7_9_gmacs_saves_about_3_and_5_2_times() -> None:
    # The paper slims VGG-16 from 15.47G to 7.90G first; which channels it dropped where is not known.
    with torch.device("meta"):  # only shapes are needed
        images = torch.empty(1, 3, 224, 224)
        original, slim, gated = slim_vgg(1.0, False), slim_vgg(0.711, False), slim_vgg(0.711, True)
    assert round(account(original, images).macs / 1e9, 2) == 15.47
    assert account(slim, images).macs / 1e9 == pytest.approx(7.90, rel=0.01)
    for density, printed in ((0.8, 3.01), (0.6, 5.23)):
        ps.set_density(gated, density)
        assert account(gated, images, "paper", original).saving == pytest.approx(printed, rel=0.005)


def test_saving_can_be_told_against_a_larger_original() -> None:
    images = torch.randn(1, 3, 32, 32)
    gated = ps.add_gates(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), images)
    larger = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3))
    own, other = account(gated, images), account(gated, images, original=larger)
    assert other.macs == own.macs
    assert other.saving * own.original_macs == pytest.approx(own.saving * account(larger, images).macs)


def test_the_paper_convention_is_the_same_for_every_image(m_cifarnet: nn.Module) -> None:
    ps.set_density(m_cifarnet, 0.5)
    cost = account(m_cifarnet, torch.randn(3, 3, 32, 32), "paper")
    assert cost.image_macs.tolist() == [44_346_752] * 3
    assert cost.macs_std == 0
    assert len(list(gated_layers(m_cifarnet))) == sum(layer.kind == "gated conv" for layer in cost.layers)
