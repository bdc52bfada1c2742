"""Dense networks: MACs against torch's own counter, memory against the paper's table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import penstock as ps
from penstock.accounting import Account, account

MIB, GIB = 2**20, 2**30


def on_meta(make: str, size: int) -> tuple[nn.Module, Tensor]:
    """Shapes are all that a dense count needs, so nothing is computed."""
    with torch.device("meta"):
        return getattr(ps.zoo, make)().eval(), torch.empty(1, 3, size, size)


def flop_counter_macs(network: nn.Module, images: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(images)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("make", "size"),
    [
        ("m_cifarnet", 32),
        ("resnet18", 224),
        ("resnet34", 224),
        ("resnet50", 224),
        ("vgg16_bn", 224),
        ("resnet18", 97),
    ],
)
def test_dense_macs_equal_torchs_flop_counter(make: str, size: int) -> None:
    network, images = on_meta(make, size)
    for convention in ("executed", "paper"):
        cost = account(network, images, convention)
        assert cost.macs == cost.dense_macs == flop_counter_macs(network, images)
        assert cost.saving == 1.0


class Attention(nn.Module):
    """Grouped, dilated, transposed and one-dimensional convolutions, a matrix product, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, dilation=2, padding=1)
        self.grouped = nn.Conv2d(8, 12, (3, 1), groups=4)
        self.up = nn.ConvTranspose2d(12, 6, 3, stride=2, groups=2)
        self.rows = nn.Linear(5, 7)
        self.line = nn.Conv1d(6, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.grouped(self.conv(x)))[..., :5]
        y = self.rows(y).flatten(2)
        return self.line(torch.matmul(y.transpose(1, 2), y))


def test_every_kind_of_layer_and_free_matrix_products_are_counted() -> None:
    network, images = Attention().eval(), torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        rows = network.rows(network.up(network.grouped(network.conv(images)))[..., :5]).flatten(2).shape[2]
    network.line = nn.Conv1d(rows, 4, 3)
    cost = account(network, images)
    assert cost.macs == flop_counter_macs(network, images)
    assert [layer.kind for layer in cost.layers] == ["conv", "conv", "conv", "linear", "conv", "other"]


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if float(x.sum()) > 0 else self.conv(-x)


def test_a_submodule_that_cannot_be_traced_is_counted_whole() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), Untraceable()).eval()
    images = torch.randn(1, 3, 8, 8)
    assert account(network, images).macs == flop_counter_macs(network, images)


def test_m_cifarnet_costs_what_the_paper_says_layer_by_layer() -> None:
    cost = account(*on_meta("m_cifarnet", 32))
    assert cost.macs == 174_301_824
    assert [layer.macs for layer in cost.layers] == [
        1_555_200, 33_177_600, 16_588_800, 33_177_600, 33_177_600, 14_155_776, 21_233_664, 21_233_664, 1_920,
    ]  # fmt: skip
    weights = sum(layer.dense_weight_bytes for layer in cost.layers) / 4
    assert weights == 1_293_898 - 10  # without fc's bias, which is no product


def memory(cost: Account) -> list[float]:
    per_image = [cost.weight_bytes / MIB, cost.activation_bytes / MIB, cost.peak_bytes / MIB]
    return [*per_image, cost.peak_bytes_for(128) / GIB]


@pytest.mark.parametrize("convention", ["executed", "paper"])
def test_the_papers_memory_table_dense(convention: str) -> None:
    vgg = memory(account(*on_meta("vgg16_bn", 224), convention))
    assert [round(vgg[0], 1), round(vgg[1], 1), round(vgg[2], 2), round(vgg[3], 2)] == [
        56.1,
        86.3,
        24.64,
        3.06,
    ]
    resnet = memory(account(*on_meta("resnet18", 224), convention))
    assert [round(resnet[0], 1), round(resnet[1], 1), round(resnet[2], 2), round(resnet[3], 3)] == [
        44.6, 17.8, 9.19, 0.455,
    ]  # fmt: skip


def test_the_papers_vgg_baseline_has_its_dense_layers_in_the_macs_and_not_in_the_memory() -> None:
    cost = account(*on_meta("vgg16_bn", 224))
    assert round(cost.macs / 1e9, 2) == 15.47
    assert [layer.name for layer in cost.layers if not layer.convolutional] == [
        "classifier.0",
        "classifier.3",
        "classifier.6",
    ]


def test_half_precision_halves_the_bytes() -> None:
    network, images = ps.zoo.m_cifarnet().eval(), torch.randn(1, 3, 32, 32)
    whole = account(network, images)
    half = account(network.to(torch.bfloat16), images.to(torch.bfloat16))
    assert half.macs == whole.macs
    assert half.weight_bytes * 2 == whole.weight_bytes
    assert half.activation_bytes * 2 == whole.activation_bytes


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "convnext_atto"])
def test_networks_of_other_libraries_equal_torchs_flop_counter(name: str) -> None:
    timm = pytest.importorskip("timm")
    network, images = timm.create_model(name).eval(), torch.randn(1, 3, 96, 96)
    assert account(network, images).macs == flop_counter_macs(network, images)
