"""The executed convention: the masks that occurred, counted a second time by naive loops over channels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import penstock as ps
from penstock.accounting import account
from penstock.errors import InputError
from penstock.gating import gated_layers

MIB = 2**20


class Small(nn.Module):
    """A stem, a residual block with a grouped convolution, a concatenation, pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a = nn.Conv2d(8, 12, 3, padding=1, groups=2, bias=False)
        self.bn_a = nn.BatchNorm2d(12)
        self.b = nn.Conv2d(12, 8, 1, bias=False)
        self.bn_b = nn.BatchNorm2d(8)
        self.c = nn.Conv2d(8, 4, 3, stride=2)
        self.d = nn.Conv2d(12, 6, 1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        y = self.bn_b(self.b(self.bn_a(self.a(x)).relu()))
        z = (x + y).relu()
        c = self.c(z).relu()
        joined = torch.cat([c, nn.functional.max_pool2d(z, 3, 2)], dim=1)
        return self.fc(self.d(joined).relu().mean((2, 3)))


def randomised(network: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for _, layer in gated_layers(network):
        with torch.no_grad():
            layer.gate.weight.copy_(torch.randn(layer.gate.weight.shape, generator=generator))
            layer.gate.bias.copy_(torch.randn(layer.gate.bias.shape, generator=generator))  # some g are 0
    return network


def naive_small(gains: dict[str, Tensor], image: int) -> dict[str, int]:
    """Channel by channel, for the network above on 9×9 images."""
    on = {name: [float(value) != 0 for value in gain[image]] for name, gain in gains.items()}
    total = [first or second for first, second in zip(on["stem"], on["b"], strict=True)]
    inputs = {"stem": [True] * 3, "a": on["stem"], "b": on["a"], "c": total, "d": [*on["c"], *total]}
    taps, side, groups = (
        {"stem": 9, "a": 9, "b": 1, "c": 9, "d": 1},
        {"stem": 9, "a": 9, "b": 9, "c": 4, "d": 4},
        {"a": 2},
    )
    macs = {}
    for name, active in inputs.items():
        parts, positions = groups.get(name, 1), side[name] ** 2
        count = 0
        for o, computed in enumerate(on[name]):
            if not computed:
                continue
            group = o // (len(on[name]) // parts)
            width = len(active) // parts
            count += sum(active[group * width : (group + 1) * width]) * taps[name] * positions
        macs[name] = count + sum(active) * len(on[name]) + sum(on[name]) * positions
    macs["fc"] = sum(on["d"]) * 5
    return macs


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.floats(0.05, 1.0))
def test_executed_macs_equal_a_naive_count_image_by_image(seed: int, density: float) -> None:
    torch.manual_seed(seed)
    images = torch.randn(5, 3, 9, 9)
    gated = randomised(ps.add_gates(Small().eval(), images, density=density), seed)
    cost = account(gated, images)
    with torch.no_grad():
        gated(images)
    gains = {name: layer.gains for name, layer in gated_layers(gated) if layer.gains is not None}
    assert set(gains) == {"stem", "a", "b", "c", "d"}
    for image in range(5):
        expected = naive_small(gains, image)
        assert {layer.name: int(layer.image_macs[image]) for layer in cost.layers} == expected
        assert int(cost.image_macs[image]) == sum(expected.values())
    assert cost.image_macs.dtype == torch.int64
    assert cost.macs == pytest.approx(float(cost.image_macs.double().mean()))
    assert cost.macs_min <= cost.macs <= cost.macs_max


def test_a_winner_with_saliency_zero_is_not_computed() -> None:
    images = torch.randn(2, 3, 9, 9)
    gated = ps.add_gates(Small().eval(), images)
    with torch.no_grad():
        gated.get_submodule("a").gate.bias.fill_(-1.0)  # density 1, and yet nobody is computed
        gated.get_submodule("a").gate.weight.zero_()
    cost = account(gated, images)
    assert cost["a"].active_out == 0
    assert cost["a"].macs == cost["a"].gate_macs == 8 * 12
    assert cost["b"].active_in == 0


def test_at_density_one_the_cost_is_the_dense_one_and_the_gates() -> None:
    images = torch.randn(2, 3, 32, 32)
    dense = ps.zoo.m_cifarnet().eval()
    cost = account(ps.add_gates(dense, images), images)
    assert cost.macs - sum(layer.gate_macs for layer in cost.layers) == cost.dense_macs == 174_301_824
    assert cost.saving < 1.0


def test_bytes_follow_the_active_channels() -> None:
    images = torch.randn(1, 3, 9, 9)
    gated = randomised(ps.add_gates(Small().eval(), images, density=0.5), 3)
    cost = account(gated, images)
    c = cost["c"]
    assert c.weight_bytes == 4 * 9 * c.active_in * c.active_out
    assert c.activation_bytes == 4 * (c.active_in * 81 + c.active_out * 16)
    assert c.peak_bytes == c.weight_bytes + c.activation_bytes
    assert c.dense_weight_bytes == 4 * 9 * 8 * 4
    assert cost.peak_bytes == max(layer.peak_bytes for layer in cost.layers)
    assert cost.weight_bytes == sum(layer.weight_bytes for layer in cost.layers)
    assert cost.peak_bytes_for(2) == max(
        layer.dense_weight_bytes + 2 * layer.activation_bytes for layer in cost.layers
    )


def test_resnet18_with_random_gates_at_0_6_comes_near_the_union_rule() -> None:
    images = torch.randn(1, 3, 224, 224)
    gated = ps.add_gates(ps.zoo.resnet18(), images, density=0.6)
    for _, layer in gated_layers(gated):
        nn.init.uniform_(layer.gate.bias, 1.0, 2.0)  # φ is 0: each layer draws its channels on its own
    cost = account(gated, images)
    # ⌈0.6·C⌉ is a little more than 0.6·C, so these lie a little above the table's 20.2 / 12.2 / 4.67.
    assert cost.weight_bytes / MIB == pytest.approx(20.2, rel=0.03)
    assert cost.activation_bytes / MIB == pytest.approx(12.2, rel=0.03)
    assert cost.peak_bytes / MIB == pytest.approx(4.67, rel=0.03)
    assert cost.saving == pytest.approx(2.30, rel=0.03)


def test_accounting_leaves_the_network_as_it_was() -> None:
    images = torch.randn(3, 3, 9, 9)
    gated = ps.add_gates(Small(), images, density=0.5).train()
    before = {name: tensor.clone() for name, tensor in gated.state_dict().items()}
    account(gated, images)
    assert gated.training
    assert all(layer.gains is None for _, layer in gated_layers(gated))
    assert all(torch.equal(before[name], tensor) for name, tensor in gated.state_dict().items())


def test_many_images_are_counted_as_if_one_by_one() -> None:
    images = torch.randn(130, 3, 9, 9)  # more than one chunk
    gated = randomised(ps.add_gates(Small().eval(), images, density=0.4), 1)
    cost = account(gated, images)
    assert cost.images == 130
    assert cost.macs_std > 0
    for index in (0, 63, 64, 129):
        assert int(cost.image_macs[index]) == account(gated, images[index : index + 1]).macs


def test_wrong_images_and_conventions_are_refused() -> None:
    network, images = ps.zoo.m_cifarnet().eval(), torch.randn(2, 3, 32, 32)
    with pytest.raises(InputError, match=r"'published'|executed, paper"):
        account(network, images, "published")
    with pytest.raises(InputError, match=r"images: .*\(3, 32, 32\)"):
        account(network, images[0])
    with pytest.raises(InputError, match=r"images: .*4 channels"):
        account(network, torch.randn(2, 4, 32, 32))
    with pytest.raises(InputError, match=r"images: .*uint8.*preprocess"):
        account(network, torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    with pytest.raises(InputError, match="images: "):
        account(network, images[:0])
    with pytest.raises(InputError, match="images: "):
        account(network, "images")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"batch: .*0"):
        account(network, images).peak_bytes_for(0)


def test_an_unknown_layer_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match=r"'conv9'.*conv0"):
        account(ps.zoo.m_cifarnet().eval(), torch.randn(1, 3, 32, 32))["conv9"]
