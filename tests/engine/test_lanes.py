"""Channels in the lanes: the same results, and a layout for every map that costs least."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.agreement import assert_agreement
from tests.engine.networks import Case, cases, enliven, randomise
from tests.engine.separable import separable_cases
from torch import Tensor, nn

import penstock.engine as engines
from penstock.engine import Engine, build_program
from penstock.engine.cut import Graph
from penstock.engine.lanes import Layouts
from penstock.engine.package import make_engine
from penstock.engine.steps import Affine, Conv, Layout, Network, Pack
from penstock.gating import gated_layers, set_density
from penstock.surgery import add_gates

_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def engine_of(network: nn.Module, images: Tensor, threads: int = 1, layouts: Layouts = "pixels") -> Engine:
    steps, program = build_program(network, images, layouts=layouts)
    densities = {s.name: s.gates.density for s in steps.steps if isinstance(s, Conv) and s.gates is not None}
    return make_engine(program, network, densities, threads, engines.chosen_isa())


def check_in_pixels(case: Case, isa: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_ISA", isa)
        engine = engine_of(case.network, case.images)
    assert_agreement(case.network, engine, case.images, case.text)


@settings(max_examples=40, suppress_health_check=_RELAXED)
@given(st.one_of(cases(), separable_cases()), st.sampled_from(engines.available_isas()))
def test_maps_in_pixels_equal_the_masked_network(case: Case, isa: str) -> None:
    check_in_pixels(case, isa)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(max_examples=1000, suppress_health_check=_RELAXED, derandomize=False)
@given(st.one_of(cases(), separable_cases()), st.sampled_from(engines.available_isas()))
def test_a_thousand_networks_in_pixels_equal_the_masked_network(case: Case, isa: str) -> None:
    check_in_pixels(case, isa)


@settings(max_examples=10, suppress_health_check=_RELAXED)
@given(st.one_of(cases(), separable_cases()), st.integers(2, 4))
def test_threads_change_no_bit_in_pixels(case: Case, threads: int) -> None:
    alone = engine_of(case.network, case.images)(case.images).numpy()
    shared = engine_of(case.network, case.images, threads)
    for image in range(len(case.images)):
        np.testing.assert_array_equal(alone[image], shared(case.images[image : image + 1]).numpy()[0])


class Inverted(nn.Module):
    """MobileNet's block: wide, depthwise, squeeze and excitation, narrow, plus what came in."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, kernel, padding=kernel // 2, groups=wide), nn.BatchNorm2d(wide), nn.SiLU()
        )
        self.squeeze, self.excite = nn.Conv2d(wide, channels, 1), nn.Conv2d(channels, wide, 1)
        self.narrow = nn.Sequential(nn.Conv2d(wide, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(self.expand(x))
        factors = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.narrow(y * factors)


def mobile() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1),
        nn.BatchNorm2d(24),
        nn.ReLU6(),
        Inverted(24, 3),
        nn.Conv2d(24, 40, 1, 2),
        nn.BatchNorm2d(40),
        nn.ReLU(),
        Inverted(40, 5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(40, 10),
    )


@pytest.mark.parametrize("density", [1.0, 0.6, 0.2])
def test_mobilenets_blocks_equal_the_masked_network_at_every_density(density: float) -> None:
    torch.manual_seed(1)
    images = torch.randn(2, 3, 33, 30)
    network = enliven(add_gates(randomise(mobile()), images), images)
    set_density(network, {name: density for name, _ in gated_layers(network)})
    assert_agreement(network, engine_of(network, images), images)


class Bottleneck(nn.Module):
    """ResNet-50's block, with a convolution in the shortcut where the channels change."""

    def __init__(self, channels: int, out: int, function: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 8, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, out, 1),
            nn.BatchNorm2d(out),
        )
        norm = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1), norm) if channels != out else nn.Identity()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(self.body(x) + self.shortcut(x))
        return result


@pytest.mark.parametrize("isa", engines.available_isas())
@pytest.mark.parametrize("density", [1.0, 0.6, 0.2])
def test_sums_at_the_end_of_a_convolution_equal_the_masked_network(
    density: float, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISA", isa)
    torch.manual_seed(2)
    images = torch.randn(2, 3, 25, 23)
    functions = (nn.ReLU(), nn.ReLU6(), nn.Identity(), nn.ReLU())
    blocks = [Bottleneck(12 if place == 0 else 70, 70, one) for place, one in enumerate(functions)]
    network = nn.Sequential(nn.Conv2d(3, 12, 1), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = enliven(add_gates(randomise(network), images), images)
    set_density(network, {name: density for name, _ in gated_layers(network)})
    steps, _ = build_program(network, images, layouts="pixels")
    sums = [step for step in steps.steps if isinstance(step, Conv) and len(step.inputs) == 2]
    assert len(sums) == len(blocks)
    engine = engine_of(network, images)
    assert_agreement(network, engine, images)
    shared = engine_of(network, images, threads=3)
    np.testing.assert_array_equal(engine(images).numpy(), shared(images).numpy())


class Dense(nn.Module):
    """DenseNet's layer: all maps so far side by side, a norm, a function, two convolutions."""

    def __init__(self, channels: int, growth: int, function: nn.Module) -> None:
        super().__init__()
        self.norm, self.function = nn.BatchNorm2d(channels), function
        self.body = nn.Sequential(
            nn.Conv2d(channels, 20, 1), nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, growth, 3, padding=1)
        )

    def forward(self, maps: list[Tensor]) -> Tensor:
        result: Tensor = self.body(self.function(self.norm(torch.cat(maps, 1))))
        return result


class DenseBlock(nn.Module):
    """Widths are no multiples of a vector."""

    def __init__(self) -> None:
        super().__init__()
        functions = (nn.ReLU(), nn.Hardswish(), nn.ReLU6(), nn.ReLU())
        self.first = nn.Conv2d(3, 9, 3, padding=1)
        self.layers = nn.ModuleList(Dense(9 + 21 * place, 21, one) for place, one in enumerate(functions))
        self.last = nn.Linear(9 + 21 * len(functions), 6)

    def forward(self, x: Tensor) -> Tensor:
        maps = [torch.relu(self.first(x))]
        for layer in self.layers:
            maps.append(layer(maps))
        result: Tensor = self.last(torch.cat(maps, 1).mean((2, 3)))
        return result


@pytest.mark.parametrize("isa", engines.available_isas())
@pytest.mark.parametrize("density", [1.0, 0.5])
def test_norms_of_concatenations_equal_the_masked_network(
    density: float, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISA", isa)
    torch.manual_seed(3)
    images = torch.randn(2, 3, 13, 11)
    network = enliven(add_gates(randomise(DenseBlock()), images), images)
    set_density(network, {name: density for name, _ in gated_layers(network)})
    steps, _ = build_program(network, images, layouts="pixels")
    joined = [step for step in steps.steps if isinstance(step, Affine) and len(step.inputs) > 1]
    assert len(joined) >= 3
    engine = engine_of(network, images)
    assert_agreement(network, engine, images)
    shared = engine_of(network, images, threads=3)
    np.testing.assert_array_equal(engine(images).numpy(), shared(images).numpy())


def layouts_of(network: nn.Module, images: Tensor) -> tuple[Network, list[bool]]:
    steps, _ = build_program(network.eval(), images)
    return steps, [steps.values[s.output].in_pixels for s in steps.steps if isinstance(s, Conv)]


def test_a_mobilenet_has_its_channels_in_the_lanes_from_the_image_on() -> None:
    steps, pixels = layouts_of(mobile(), torch.randn(1, 3, 64, 64))
    assert all(pixels)
    assert not any(
        isinstance(step, Pack) and steps.values[step.output].layout is Layout.PLANES for step in steps.steps
    )


def test_three_by_three_layers_stay_in_planes_where_winograd_is_faster() -> None:
    layers = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()) for _ in range(3)]
    network = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), *layers, nn.AdaptiveAvgPool2d(1))
    _, pixels = layouts_of(network, torch.randn(1, 3, 32, 32))
    assert not any(pixels)


def test_a_bottleneck_changes_layout_around_its_three_by_three_layer() -> None:
    body = nn.Sequential(
        nn.Conv2d(256, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 256, 1)
    )
    network = nn.Sequential(nn.Conv2d(3, 256, 1), nn.ReLU(), body, nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    steps, pixels = layouts_of(network, torch.randn(1, 3, 56, 56))
    assert pixels == [True, True, False, True]
    assert sum(isinstance(step, Pack) for step in steps.steps) == 2


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_the_least_of_all(seed: int) -> None:
    chance = random.Random(seed)
    nodes = 7
    edges = [
        (a, b, float(chance.randint(0, 9)))
        for a, b in itertools.permutations(range(nodes), 2)
        if chance.random() < 0.5
    ]
    graph = Graph(nodes)
    for a, b, capacity in edges:
        graph.add(a, b, capacity)

    def cost(side: set[int]) -> float:
        return sum(capacity for a, b, capacity in edges if a in side and b not in side)

    rest = range(1, nodes - 1)
    sides = ({0, *some} for n in range(nodes) for some in itertools.combinations(rest, n))
    found = graph.cut(0, nodes - 1)
    assert 0 in found
    assert nodes - 1 not in found
    assert cost(found) == min(map(cost, sides))
