"""Norm statistics over winners only, against channel-by-channel sums over the images that won."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from penstock.gating import GatedConv2d, set_image_densities
from penstock.training.fast_layers import FastLayers
from penstock.training.fused import FusedLayers
from penstock.training.winner_norm import norm_over_winners


def reference(z: Tensor, won: Tensor, mean: Tensor, variance: Tensor, momentum: float, eps: float) -> Tensor:
    """One channel at a time, its winning images picked out and handed to torch's own mean and variance."""
    channels = []
    for c in range(z.shape[1]):
        values = z[won[:, c], c].flatten()
        if not len(values):
            channels.append(z[:, c] * 0)
            continue
        channels.append((z[:, c] - values.mean()) / (values.var(correction=0) + eps).sqrt())
        mean[c] = (1 - momentum) * mean[c] + momentum * values.mean().detach()
        unbiased = values.var(correction=1) if len(values) > 1 else values.new_zeros(())
        variance[c] = (1 - momentum) * variance[c] + momentum * unbiased.detach()
    return torch.stack(channels, dim=1)


@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(1, 4)),
    share=st.floats(0.0, 1.0),
    momentum=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=60)
def test_values_gradients_and_statistics_are_those_of_the_winning_images(
    shape: tuple[int, int, int, int], share: float, momentum: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(shape, generator=generator, dtype=torch.float64) + 3
    won = torch.rand(shape[:2], generator=generator) < share
    weights = torch.randn(shape, generator=generator, dtype=torch.float64) * won[:, :, None, None]
    found = []
    for form in (reference, norm_over_winners):
        given_z = z.clone().requires_grad_()
        mean, variance = torch.full((shape[1],), 0.5).double(), torch.full((shape[1],), 2.0).double()
        out = form(given_z, won, mean, variance, momentum, 1e-3)
        (gradient,) = torch.autograd.grad((out * weights).sum(), given_z)
        found.append((out * won[:, :, None, None], gradient, mean, variance))
    for theirs, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def gated(density: float) -> GatedConv2d:
    torch.manual_seed(3)
    conv = nn.Conv2d(4, 20, 3, padding=1, bias=False)
    layer = GatedConv2d(conv, nn.BatchNorm2d(20, affine=False), nn.ReLU(), density=density)
    nn.init.normal_(layer.shift)
    return layer.train()


@pytest.mark.parametrize("kind", [FusedLayers, FastLayers])
def test_at_density_one_the_statistics_are_the_papers(kind: type[FusedLayers]) -> None:
    x = torch.randn(6, 4, 8, 8)
    layer = gated(1.0)
    with torch.no_grad():
        layer.gate.bias.fill_(5.0)  # every channel wins, with a saliency that is not zero
    twin = deepcopy(layer)
    with kind(layer, "winners"):
        mine = layer(x)
    torch.testing.assert_close(mine, twin(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.norm.running_var, twin.norm.running_var, rtol=1e-4, atol=1e-4)


def test_a_channel_that_never_won_keeps_its_statistics() -> None:
    layer = gated(0.25)
    with torch.no_grad():
        layer.gate.weight.zero_()
        layer.gate.bias.copy_(torch.arange(20.0).flip(0))  # channels 0 to 4 win in every image
    with FastLayers(layer, "winners"):
        layer(torch.randn(4, 4, 8, 8) + 2)
    moved = layer.norm.running_mean != 0
    assert moved.tolist() == [True] * 5 + [False] * 15


def test_each_level_takes_the_statistics_of_its_own_images() -> None:
    layer = gated(1.0)
    layer.set_levels((0.3, 1.0))
    x = torch.randn(6, 4, 8, 8)
    set_image_densities(layer, torch.tensor([0.3, 0.3, 0.3, 1.0, 1.0, 1.0]))
    with FastLayers(layer, "winners"):
        layer(x)
    alone = gated(1.0)
    alone.set_levels((0.3, 1.0))
    set_image_densities(alone, torch.tensor([0.3, 0.3, 0.3]))
    with FastLayers(alone, "winners"):
        alone(x[:3])
    torch.testing.assert_close(layer.norm.running_mean[0], alone.norm.running_mean[0])
    assert not torch.equal(layer.norm.running_mean[1], alone.norm.running_mean[1])


def test_frozen_norms_are_left_as_they_are() -> None:
    layer = gated(0.5)
    layer.norm.eval()
    x = torch.randn(4, 4, 8, 8)
    with FusedLayers(layer, "winners"):
        frozen = layer(x)
    torch.testing.assert_close(frozen, layer(x))
    assert not layer.norm.running_mean.any()
