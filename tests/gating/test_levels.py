"""Levels: values of a layer's own at each of several densities."""

from __future__ import annotations

import contextlib
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from penstock.errors import DensityError, LayerError
from penstock.gating import (
    GatedConv2d,
    fold_norm,
    level_edges,
    set_density,
    set_image_densities,
    set_levels,
    winner_count,
)
from penstock.training.fast_layers import FastLayers
from penstock.training.losses import parameter_groups

LEVELS = (0.3, 0.5, 1.0)


def layer(inputs: int = 3, outputs: int = 10, norm: bool = True) -> GatedConv2d:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    made = GatedConv2d(conv, nn.BatchNorm2d(outputs, affine=False) if norm else None, nn.ReLU())
    made.set_levels(LEVELS)
    with torch.no_grad():
        made.shift.normal_()
        made.gate.bias.uniform_(0.5, 1.5)
        if norm:
            made.norm.running_mean.normal_()
            made.norm.running_var.uniform_(0.5, 2)
    return made


def alone(made: GatedConv2d, row: int) -> GatedConv2d:
    """One level as a layer without levels."""
    twin = deepcopy(made)
    twin.density = LEVELS[row]
    twin.drop_levels()
    assert twin.levels == ()
    assert twin.shift.shape == (10,)
    return twin


def test_levels_change_nothing_at_first() -> None:
    conv = nn.Conv2d(3, 10, 3, bias=False)
    plain = GatedConv2d(conv, nn.BatchNorm2d(10, affine=False), nn.ReLU()).eval()
    with torch.no_grad():
        plain.norm.running_mean.normal_()
        plain.shift.normal_()
    leveled = deepcopy(plain)
    leveled.set_levels(LEVELS)
    x = torch.randn(2, 3, 6, 6)
    for density in (0.1, 0.4, 0.8, 1.0):
        plain.density = leveled.density = density
        torch.testing.assert_close(plain(x), leveled(x))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("density", "row"), [(0.1, 0), (0.3, 0), (0.4, 0), (0.5, 1), (0.7, 1), (0.85, 2)])
def test_the_nearest_level_serves(norm: bool, density: float, row: int) -> None:
    made = layer(norm=norm).eval()
    twin = alone(made, row)
    made.density = twin.density = density
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(made(x), twin(x))
    folded = fold_norm(made)
    features = nn.functional.conv2d(x.double(), folded.weight, padding=1) + folded.bias[row][:, None, None]
    assert made.gains is not None
    gains = (made.gains * folded.gain[row])[:, :, None, None]
    torch.testing.assert_close(made(x).double(), torch.relu(gains * features), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fast", [True, False])
def test_images_of_a_level_are_normalised_among_themselves(fast: bool) -> None:
    torch.manual_seed(1)
    made = layer(4, 10).train()
    x = torch.randn(9, 4, 8, 8)
    densities = torch.tensor([0.25, 0.3, 0.35, 0.5, 0.6, 0.9, 1.0, 1.0, 1.0])
    order = torch.arange(9) if fast else torch.randperm(9)  # the fast form wants them side by side
    twins = [alone(made, row).train() for row in range(3)]
    set_image_densities(made, densities[order])
    with FastLayers(made) if fast else contextlib.nullcontext():
        out = made(x[order])
    weights = torch.randn(9, 10, 8, 8)
    (out * weights[order]).sum().backward()
    for row, part in enumerate((slice(0, 3), slice(3, 5), slice(5, 9))):
        twin = twins[row]
        set_image_densities(twin, densities[part])
        wanted = twin(x[part])
        (wanted * weights[part]).sum().backward()
        places = torch.argsort(order)[part]
        torch.testing.assert_close(out[places], wanted, rtol=1e-4, atol=1e-4)
        for table, own in ((made.shift, twin.shift), (made.gate.bias, twin.gate.bias)):
            assert table.grad is not None
            torch.testing.assert_close(table.grad[row], own.grad, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(made.norm.running_mean[row], twin.norm.running_mean)
        torch.testing.assert_close(made.norm.running_var[row], twin.norm.running_var)
    total = sum((twin.conv.weight.grad for twin in twins), torch.zeros(()))
    torch.testing.assert_close(made.conv.weight.grad, total, rtol=1e-3, atol=1e-3)


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6, unique=True), st.integers(1, 300))
@settings(max_examples=100)
def test_a_level_itself_is_served_by_its_own_values(levels: list[float], channels: int) -> None:
    edges = level_edges(sorted(levels), channels)
    assert edges == sorted(edges)
    for row, level in enumerate(sorted(levels)):
        count = winner_count(level, channels)
        served = sum(count > edge for edge in edges)
        # With few channels two levels may have the same winners; then the lower serves both.
        assert served <= row
        assert served == row or winner_count(sorted(levels)[served], channels) <= count <= edges[served]


def test_bad_levels_are_refused_and_nothing_is_half_done() -> None:
    for bad in ((0.5,), (0.5, 0.3), (0.5, 0.5), (0.0, 1.0), ()):
        with pytest.raises(DensityError, match="level"):
            layer().set_levels(bad)
    made = layer()
    with pytest.raises(LayerError, match="already"):
        made.set_levels(LEVELS)
    untracked = GatedConv2d(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False, track_running_stats=False)
    )
    whole = GatedConv2d(nn.Conv2d(3, 4, 3, bias=False))
    network = nn.Sequential(whole, untracked)
    with pytest.raises(LayerError, match=r"'1'.*running statistics"):
        set_levels(network, LEVELS)
    assert whole.levels == ()
    with pytest.raises(LayerError, match="'0' has levels"):
        set_levels(nn.Sequential(made), (0.2, 1.0))


def test_rows_of_shifts_do_not_decay() -> None:
    network = nn.Sequential(layer())
    decayed, kept = parameter_groups(network, 0.1)
    assert [p.shape for p in decayed["params"]] == [network[0].conv.weight.shape]
    assert any(p is network[0].shift for p in kept["params"])


def test_the_density_of_a_whole_network_picks_the_level() -> None:
    network = nn.Sequential(layer()).eval()
    x: Tensor = torch.randn(1, 3, 5, 5)
    set_density(network, 0.3)
    low = network(x)
    set_density(network, 1.0)
    assert not torch.allclose(low, network(x))
    torch.testing.assert_close(network(x), alone(network[0], 2)(x))
