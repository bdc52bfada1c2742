"""Noise on the choice of winners: who wins changes, what winners are worth does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training import tiny
from torch import Tensor, nn

from penstock.errors import TrainingError
from penstock.gating import GatedConv2d, winners_take_all
from penstock.training import Recipe
from penstock.training.fused import FusedLayers
from penstock.training.schedules import choice_noise


def layer(channels: int = 20, winners: float = 0.5) -> GatedConv2d:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, channels, 3, bias=False)
    return GatedConv2d(conv, nn.BatchNorm2d(channels, affine=False), density=winners).train()


@given(st.floats(0.0, 2.0), st.floats(0.01, 1.0), st.floats(0.0, 1.0))
def test_it_falls_in_a_straight_line_to_nothing(noise: float, until: float, share: float) -> None:
    recipe = Recipe().replace(choice_noise=noise, choice_noise_until=until)
    assert choice_noise(recipe, 0.0) == noise
    assert choice_noise(recipe, share) == pytest.approx(max(0.0, noise * (1 - share / until)), abs=1e-9)
    assert choice_noise(recipe, until) == choice_noise(recipe, 1.0) == 0.0
    assert choice_noise(Recipe().replace(choice_noise_until=until), share) == 0.0


@given(st.integers(1, 20), st.floats(0.01, 3.0), st.integers(0, 2**20))
def test_as_many_channels_win_and_with_their_own_saliencies(k: int, noise: float, seed: int) -> None:
    gated = layer()
    saliency = torch.rand(6, 20, generator=torch.Generator().manual_seed(seed)) + 0.1
    arithmetic = FusedLayers(gated)
    arithmetic.noise = noise
    torch.manual_seed(seed)
    gains = arithmetic.choose(gated, saliency, torch.tensor(k))
    won = gains != 0
    assert won.sum(dim=1).tolist() == [k] * 6
    assert torch.equal(gains[won], saliency[won])


def test_the_noise_is_measured_in_an_images_own_standard_deviations() -> None:
    """Scaled saliencies, with the same chance, choose the same winners; and much noise chooses by chance."""
    gated, saliency = layer(), torch.rand(400, 20)
    arithmetic = FusedLayers(gated)

    def chosen(values: Tensor, noise: float) -> Tensor:
        arithmetic.noise = noise
        torch.manual_seed(1)
        return arithmetic.choose(gated, values, torch.tensor(10)) != 0

    scales = torch.logspace(-2, 2, 400)[:, None]
    assert float((chosen(saliency, 0.3) == chosen(saliency * scales, 0.3)).float().mean()) > 0.999
    true = winners_take_all(saliency, 10) != 0
    kept = [float((chosen(saliency, noise) & true).float().sum() / true.sum()) for noise in (0.01, 0.3, 100)]
    assert kept[0] > 0.98
    assert 0.75 < kept[1] < 0.95
    assert 0.45 < kept[2] < 0.55


def test_inference_has_none_and_neither_has_a_layer_outside_of_training() -> None:
    gated = layer()
    x = torch.randn(4, 3, 8, 8)
    arithmetic = FusedLayers(gated)
    arithmetic.noise = 5.0
    with arithmetic:
        gated(x)
        noisy = gated.gains
        gated.eval()
        gated(x)
        quiet = gated.gains
    gated(x)
    assert noisy is not None
    assert quiet is not None
    assert gated.gains is not None
    assert torch.equal(quiet, gated.gains)
    assert not torch.equal(noisy, quiet)


@pytest.mark.parametrize("statistics", ["all", "winners"])
def test_a_run_changes_with_it_and_resumes_bit_for_bit(tmp_path: Path, statistics: str) -> None:
    plain = tiny.RICH.replace(statistics=statistics, epochs=2)
    recipe = plain.replace(choice_noise=0.3)
    without, _ = tiny.run(plain)
    whole, _ = tiny.run(recipe)
    assert not tiny.same_bits(tiny.weights(without), tiny.weights(whole))
    made, result = tiny.run(recipe, tmp_path, minutes=1e-9)
    while not result.finished:
        made, result = tiny.run(recipe, tmp_path, minutes=1e-9)
    assert tiny.same_bits(tiny.weights(whole), tiny.weights(made))


def test_bad_values_are_refused() -> None:
    with pytest.raises(TrainingError, match=r"gates\.choice_noise: expected a number of at least 0, got -1"):
        Recipe().replace(choice_noise=-1)
    with pytest.raises(
        TrainingError, match=r"gates\.choice_noise_until: expected a number from 0 to 1, got 2"
    ):
        Recipe().replace(choice_noise_until=2)
    with pytest.raises(TrainingError, match="compile"):
        Recipe().replace(choice_noise=0.3, compile=True)
