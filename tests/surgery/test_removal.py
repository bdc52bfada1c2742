"""Physical removal: same outputs, fewer weights, the same number of winners; plain networks too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.surgery.networks import MODELS, quick, randomise, stir_gates
from tests.surgery.random_networks import Net, networks
from torch import Tensor, nn

from penstock import zoo
from penstock.gating import GatedConv2d, gated_layers, set_density, winner_count
from penstock.surgery import (
    add_gates,
    channel_flow,
    explain,
    keep_channels,
    removal_report,
    remove_unused,
    trace,
    weight_layers,
)
from penstock.surgery.ties import find_ties

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(5))


def assert_same_outputs(one: nn.Module, other: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        expected, actual = one(images), other(images)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@settings(max_examples=40)
@given(network=networks(), density=st.floats(0.2, 1.0), dead=st.floats(0.1, 0.9), seed=st.integers(0, 99))
def test_on_random_networks_unused_channels_go_and_the_outputs_stay(
    network: Net, density: float, dead: float, seed: int
) -> None:
    randomise(network, seed).eval()
    gated = add_gates(network, IMAGES)
    if not explain(gated).gated:
        return
    set_density(gated, density)
    stir_gates(gated, IMAGES, dead=dead, seed=seed)
    winners = {name: int(layer.winners) for name, layer in gated_layers(gated)}
    small = remove_unused(gated, IMAGES)
    assert_same_outputs(gated, small, IMAGES)
    for name, layer in gated_layers(small):
        assert int(layer.winners) == min(winners[name], layer.conv.out_channels)
        assert layer.conv.out_channels >= 1
    report = removal_report(small)
    assert report.weights_after == sum(layer.weights.weight.numel() for layer in weight_layers(small))
    assert report.parameters_after == sum(p.numel() for p in small.parameters())
    again = remove_unused(small, IMAGES)
    assert removal_report(again).weights_saved == 0


@pytest.mark.soak
@settings(max_examples=1500)
@given(network=networks(), density=st.floats(0.2, 1.0), dead=st.floats(0.1, 0.9), seed=st.integers(0, 9999))
def test_on_very_many_random_networks_the_outputs_stay(
    network: Net, density: float, dead: float, seed: int
) -> None:
    inner = test_on_random_networks_unused_channels_go_and_the_outputs_stay.hypothesis
    inner.inner_test(network, density, dead, seed)


@pytest.mark.parametrize(
    "name", ["zoo m_cifarnet", "zoo resnet18", "timm densenet121", "timm mobilenetv3_large_100"]
)
def test_real_networks_lose_their_unused_channels(name: str) -> None:
    build, size, _, _ = MODELS[name]
    images = torch.randn(3, 3, size, size)
    gated = add_gates(quick(build).eval(), images, density=0.6)
    stir_gates(gated, images, dead=0.5)
    small = remove_unused(gated, images)
    assert_same_outputs(gated, small, images)
    report = removal_report(small)
    assert report.weights_after < 0.95 * report.weights_before
    assert report.weights_ratio == report.weights_before / report.weights_after
    assert channel_flow(small).keys() == channel_flow(gated).keys()
    told = explain(small)
    for width in report.layers:
        assert told[width.name].out_channels == width.after <= width.before


def test_every_channel_that_lost_goes_from_a_chain() -> None:
    gated = add_gates(zoo.m_cifarnet().eval(), torch.randn(2, 3, 32, 32), density=0.5)
    with torch.no_grad():
        for _, layer in gated_layers(gated):
            layer.gate.bias.copy_(torch.arange(len(layer.gate.bias)) + 1.0)  # the upper half always wins
    small = remove_unused(gated, torch.randn(3, 3, 32, 32))
    assert [(width.before, width.after) for width in removal_report(small).layers] == [
        (64, 32),
        (64, 32),
        (128, 64),
        (128, 64),
        (128, 64),
        (192, 96),
        (192, 96),
        (192, 96),
    ]
    layer = small.get_submodule("conv5")
    assert isinstance(layer, GatedConv2d)
    assert layer.gate.weight.shape == (64, 96)
    assert layer.density == 1.0
    assert torch.equal(layer.gate.bias, torch.arange(96, 192) + 1.0)
    assert small.get_submodule("fc").weight.shape == (10, 96)
    original = gated.get_submodule("conv5")
    assert isinstance(original, GatedConv2d)
    assert original.conv.out_channels == 192


def test_the_images_may_come_in_batches_with_labels() -> None:
    gated = add_gates(zoo.m_cifarnet().eval(), torch.randn(2, 3, 32, 32), density=0.5)
    images = torch.randn(6, 3, 32, 32)
    stir_gates(gated, images, dead=0.3)
    whole = remove_unused(gated, images)
    pieces = remove_unused(gated, [(batch, torch.zeros(2)) for batch in images.split(2)])
    assert removal_report(whole) == removal_report(pieces)
    assert_same_outputs(whole, pieces, images)


def test_the_mode_and_the_original_stay_as_they_were() -> None:
    gated = add_gates(zoo.m_cifarnet().train(), torch.randn(2, 3, 32, 32), density=0.5)
    before = {name: tensor.clone() for name, tensor in gated.state_dict().items()}
    small = remove_unused(gated, torch.randn(2, 3, 32, 32))
    assert all(module.training for module in small.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in gated.state_dict().items())


def test_winners_stay_as_many_for_every_width() -> None:
    for width in range(1, 200):
        for winners in range(1, width + 1):
            assert winner_count(min(1.0, winners / width), width) == winners


class Product(nn.Module):
    """Two gated convolutions multiplied: a winner of one may meet a loser of the other and never be read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3), nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.a(x)) * F.relu(self.b(x)))


def test_a_winner_that_is_never_read_stays_because_another_would_win_in_its_place() -> None:
    faint, bright = torch.full((1, 3, 8, 8), 0.5), torch.full((1, 3, 8, 8), 2.0)
    gated = add_gates(Product().eval(), faint)
    set_density(gated, {"a": 1 / 3})
    a, b = gated.get_submodule("a"), gated.get_submodule("b")
    assert isinstance(a, GatedConv2d)
    assert isinstance(b, GatedConv2d)
    with torch.no_grad():
        for layer in (a, b):
            layer.shift.fill_(9.0)
        a.gate.weight[0, 1] = 1.0  # channel 1 wins on the bright image, channel 0 on the faint one
        a.gate.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
        b.gate.bias.copy_(torch.tensor([-1.0, 1.0, -1.0]))  # and channel 0 is multiplied by zero
    images = torch.cat([faint, bright])
    small = remove_unused(gated, images)
    assert_same_outputs(gated, small, images)
    assert [width.after for width in removal_report(small).layers] == [2, 2, 4]


class Bottleneck(nn.Module):
    """A plain residual network: `stem` and `out` are tied by the sum, `inner` is free."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 6, 1)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.slope = nn.PReLU(6)
        self.out = nn.Conv2d(6, 8, 1)
        self.fc = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        y = self.slope(self.depthwise(self.inner(x)))
        return self.fc(F.max_pool2d(self.out(y) + x, 2).view(-1, 8 * 16))


def test_a_plain_network_keeps_the_channels_it_is_told_to() -> None:
    model = randomise(Bottleneck()).eval()
    small = keep_channels(
        model, IMAGES, {"stem": [0, 2, 5], "out": [2, 7], "inner": torch.arange(6) % 2 == 0}
    )
    widths = {width.name: width.after for width in removal_report(small).layers}
    assert widths == {"stem": 4, "inner": 3, "depthwise": 3, "out": 4}
    assert small.get_submodule("fc").in_features == 4 * 16
    with torch.no_grad():
        gone = torch.tensor([1, 3, 4, 6])
        model.norm.weight[gone] = 0
        model.norm.bias[gone] = 0
        model.out.weight[gone] = 0
        model.out.bias[gone] = 0
        model.out.weight[:, 1::2] = 0
    assert_same_outputs(model, small, IMAGES)


def test_a_channel_stays_when_one_of_the_summands_keeps_it() -> None:
    small = keep_channels(Bottleneck(), IMAGES, {"stem": [0]})
    assert small.get_submodule("stem").out_channels == 8


def test_the_networks_output_and_grouped_convolutions_keep_their_channels() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.ReLU(),
        nn.Conv2d(8, 6, 1),
        nn.Flatten(),
    ).eval()
    small = keep_channels(model, IMAGES, {name: [0] for name in ("0", "2", "4")})
    assert [width.after for width in removal_report(small).layers] == [8, 8, 6]
    assert_same_outputs(model, small, IMAGES)


def test_a_layer_that_runs_twice_loses_the_same_channels_in_both_runs() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again, self.last = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.again(self.again(self.first(x).relu()).relu()))

    small = keep_channels(Again(), IMAGES, {"first": [1, 2], "again": [2, 3]})
    assert small.get_submodule("again").weight.shape[:2] == (3, 3)
    assert small(IMAGES).shape == (4, 2, 8, 8)


@settings(max_examples=40)
@given(network=networks(), seed=st.integers(0, 99))
def test_on_random_plain_networks_shrinking_equals_silencing(network: Net, seed: int) -> None:
    randomise(network, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    traced = trace(network, IMAGES)
    widths = {layer.name: layer.weights.weight.shape[0] for layer in weight_layers(traced)}
    keep = {name: (torch.rand(width, generator=generator) < 0.6) for name, width in widths.items()}
    keep = {name: mask for name, mask in keep.items() if mask.any()}
    small = keep_channels(network, IMAGES, keep)

    # The same channels silenced where they are read: the outputs must agree.
    ties = find_ties(traced)
    stay = ties.pinned()
    for name, slots in ties.writes.items():
        mask = keep.get(name, torch.ones(len(slots), dtype=torch.bool))
        stay |= {ties.root(slot) for slot, on in zip(slots, mask.tolist(), strict=True) if on}
    for slots in ties.writes.values():
        if not any(ties.root(slot) in stay for slot in slots):
            stay.add(ties.root(slots[0]))
    with torch.no_grad():
        for name, slots in ties.reads.items():
            gone = [place for place, slot in enumerate(slots) if ties.root(slot) not in stay]
            traced.get_submodule(name).weight[:, gone] = 0
    assert_same_outputs(traced, small, IMAGES)
