"""int8: lists pass through depthwise convolutions, to the bit what it is when all channels are stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.networks import Case, Excite, Residual, activation, enliven, randomise, randomise_levels
from tests.engine.test_int8 import check
from torch import nn

import penstock.engine as engines
from penstock.engine.steps import Conv
from penstock.gating import gated_layers, set_density
from penstock.quantizing import calibrate
from penstock.surgery import add_gates

_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
_FUNCTIONS = ("relu", "relu6", "silu", "hardswish", "leaky_relu", "none")


def _part(draw: st.DrawFn, conv: nn.Conv2d) -> list[nn.Module]:
    norm = [nn.BatchNorm2d(conv.out_channels)] if draw(st.booleans()) else []
    return [conv, *norm, activation(draw(st.sampled_from(_FUNCTIONS)))]


def _block(draw: st.DrawFn, channels: int) -> tuple[nn.Module, int]:
    """Expand, depthwise, perhaps squeeze-excite, project; its readers are a 1×1 convolution, or others."""
    hidden, out = draw(st.integers(6, 48)), draw(st.integers(6, 24))
    kernel, stride = draw(st.sampled_from((3, 5))), draw(st.sampled_from((1, 1, 2)))
    parts = _part(draw, nn.Conv2d(channels, hidden, 1, bias=draw(st.booleans())))
    spatial = nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=draw(st.booleans()))
    parts += _part(draw, spatial)
    if draw(st.booleans()):
        parts.append(Excite(hidden, draw(st.sampled_from((nn.Sigmoid(), nn.Hardsigmoid())))))
    reader = draw(st.sampled_from(("project", "project", "project", "padded", "pool", "sum")))
    if reader == "pool":
        parts.append(nn.MaxPool2d(2, 1))
    if reader == "sum":
        parts.append(Residual(nn.Conv2d(hidden, hidden, 1), nn.Identity(), activation("relu")))
    size = 3 if reader == "padded" else 1
    return nn.Sequential(*parts, *_part(draw, nn.Conv2d(hidden, out, size, padding=size // 2))), out


@st.composite
def cases(draw: st.DrawFn) -> Case:
    torch.manual_seed(draw(st.integers(0, 2**31)))
    images = torch.randn(2, draw(st.integers(1, 3)), draw(st.integers(9, 15)), draw(st.integers(9, 15)))
    channels = draw(st.integers(6, 24))
    layers = _part(draw, nn.Conv2d(images.shape[1], channels, 3, padding=1))
    for _ in range(draw(st.integers(1, 2))):
        made, channels = _block(draw, channels)
        layers.append(made)
    if draw(st.booleans()):
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5)]
    network = randomise(nn.Sequential(*layers))
    gated = add_gates(network, images, summary=draw(st.sampled_from(("l1", "l1", "l2", "linf", "variance"))))
    enliven(gated.eval(), images, centre=draw(st.sampled_from((1.0, 0.2))))
    if draw(st.integers(0, 2)) == 0:
        randomise_levels(gated, (0.3, 1.0))
    densities = {name: draw(st.sampled_from((1.0, 0.7, 0.5, 0.3))) for name, _ in gated_layers(gated)}
    set_density(gated, densities)
    return Case(gated, images, repr(network))


@settings(max_examples=40, suppress_health_check=_RELAXED)
@given(cases(), st.integers(1, 3))
def test_depthwise_convolutions_that_keep_lists_equal_the_reference_that_stores_all(
    case: Case, threads: int
) -> None:
    check(case, threads)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(max_examples=1000, suppress_health_check=_RELAXED, derandomize=False)
@given(cases(), st.integers(1, 2))
def test_a_thousand_networks_with_depthwise_convolutions_equal_the_reference(
    case: Case, threads: int
) -> None:
    check(case, threads)


def test_a_depthwise_convolution_and_what_follows_compute_the_listed_channels_alone() -> None:
    torch.manual_seed(0)
    network = randomise(
        nn.Sequential(
            nn.Conv2d(3, 32, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.SiLU(),
            nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False),
            nn.BatchNorm2d(32),
            nn.SiLU(),
            Excite(32, nn.Sigmoid()),
            nn.Conv2d(32, 16, 1),
            nn.ReLU(),
        )
    )
    images = torch.randn(4, 3, 9, 9)
    gated = enliven(add_gates(network, images).eval(), images)
    ranges = calibrate(gated, images)
    steps, _ = engines.build_program(gated, images, ranges)
    assert [step.keeps_list for step in steps.steps if isinstance(step, Conv)] == [False, True, False]
    engine = engines.compile(gated, images, precision="int8", calibration=ranges)
    half = engine.record(images[:1], density=0.5)
    depthwise = engine.layers.index("3")
    assert half.active_out[0, depthwise] == 16
    assert np.isfinite(half.outputs).all()
