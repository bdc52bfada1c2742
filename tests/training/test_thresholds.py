"""Training with thresholds: images differ in their winners, the mean is the density, and runs resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training.tiny import RECIPE, data, network
from torch import nn

import penstock as ps
from penstock.errors import TrainingError
from penstock.gating import GatedConv2d, gated_layers, winner_count
from penstock.training import Recipe
from penstock.training.fast_layers import FastLayers
from penstock.training.fused import FusedLayers

CAPPED = RECIPE.replace(density=0.5, threshold_cap=0.75, average=0.8, choice_noise=0.3)


def wide(threshold: float = 0.0) -> GatedConv2d:
    torch.manual_seed(3)
    layer = GatedConv2d(
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32, affine=False), nn.ReLU(), density=0.5
    )
    layer.set_threshold(threshold)
    return layer.train()


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_batch_has_the_density_on_average_and_the_cap_at_most(noise: float) -> None:
    layer = wide()
    arithmetic = FusedLayers(layer, cap=0.7)
    arithmetic.noise = noise
    with arithmetic:
        layer(torch.randn(24, 16, 6, 6).abs() * torch.rand(24, 16, 1, 1))
    assert layer.gains is not None
    counts = (layer.gains != 0).sum(1)
    assert abs(int(counts.sum()) - 24 * 16) <= 2  # a winner of the noise may have a saliency of 0
    assert int(counts.max()) <= winner_count(0.7, 32)
    assert len(set(counts.tolist())) > 3


def test_the_layers_threshold_follows_the_batches() -> None:
    layer = wide()
    x = torch.randn(24, 16, 6, 6).abs() * torch.rand(24, 16, 1, 1)
    with FusedLayers(layer, cap=0.8):
        layer(x)
        assert layer.threshold is not None
        first = float(layer.threshold)
        layer(x * 3)
    assert first > 0
    assert float(layer.threshold) != first
    assert abs(float(layer.threshold) - first) < 2 * first


def test_the_kernels_that_skip_have_the_gradients_of_the_masked_layer() -> None:
    # One image has no winner at all: its saliencies lie far below the others'.
    x = torch.randn(12, 16, 9, 9).abs() * torch.rand(12, 16, 1, 1)
    x[5] *= 1e-3
    found = []
    for kind in (FusedLayers, FastLayers):
        layer = wide()
        layer.density = 0.25
        nn.init.zeros_(layer.gate.bias)
        own = x.clone().requires_grad_()
        with kind(layer, "winners", 0.8):
            out = layer(own)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        assert layer.gains is not None
        assert not layer.gains[5].any()
        found.append([out.detach(), own.grad, *(p.grad for p in layer.parameters())])
    for plain, fast in zip(*found, strict=True):
        assert plain is not None
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()))


@pytest.mark.parametrize("statistics", ["all", "winners"])
def test_a_trained_network_meets_its_density_on_the_training_images(statistics: str) -> None:
    gated, images = network(), data()
    ps.train(gated, images, data(20, seed=1), CAPPED.replace(statistics=statistics))
    with torch.no_grad():
        gated(gated.preprocess(images.images))
    for _, layer in gated_layers(gated):
        assert layer.density == 0.75
        assert layer.gains is not None
        share = float((layer.gains != 0).float().mean())
        reachable = float((layer.saliency > 0).float().mean())
        assert share == pytest.approx(min(0.5, reachable), abs=0.02)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, parts = network(), network()
    ps.train(whole, data(), None, CAPPED)
    for epochs in (2, 4):
        # Stopped between epochs: as a run that is killed and started again.
        part = network() if epochs == 2 else parts
        stop = _Stop(epochs)
        try:
            ps.train(part, data(), None, CAPPED, out=tmp_path, on_epoch=stop)
        except KeyboardInterrupt:
            assert epochs == 2
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, parts.state_dict()[name]), name


class _Stop:
    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def __call__(self, metrics: dict[str, float], _: nn.Module) -> None:
        if self.epochs == metrics["epoch"] == 2:
            raise KeyboardInterrupt


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(TrainingError, match="one mean density of all layers"):
        Recipe().replace(density_schedule="any", threshold_cap=0.8)
    with pytest.raises(TrainingError, match="threshold_cap changes at every step"):
        Recipe().replace(compile=True, threshold_cap=0.8)
    gated = network()
    gated.first.set_threshold(0.5)
    with pytest.raises(TrainingError, match="would not follow the training"):
        ps.train(gated, data(), None, RECIPE)
