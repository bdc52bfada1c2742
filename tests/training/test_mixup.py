"""Blended images: the formula, the loss that goes with it, and that a run without it is as before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.training import tiny
from torch import Tensor, nn

from penstock.errors import TrainingError
from penstock.training import train
from penstock.training.mixup import blend, draw_share, partners


@given(st.floats(0.01, 50.0), st.integers(0, 2**31), st.integers(0, 999), st.integers(0, 99_999))
def test_an_image_keeps_at_least_half_of_itself(mixup: float, seed: int, epoch: int, step: int) -> None:
    share = draw_share(mixup, seed, epoch, step)
    assert 0.5 <= share <= 1.0
    assert share == draw_share(mixup, seed, epoch, step)
    assert draw_share(0.0, seed, epoch, step) == 1.0


def test_shares_follow_the_beta_distribution() -> None:
    """Folded at one half: the mean of max(λ, 1 − λ) is 3/4 for Beta(1, 1), and nears 1 as mixup falls."""
    evenly = [draw_share(1.0, 0, 0, step) for step in range(4000)]
    assert abs(np.mean(evenly) - 0.75) < 0.01
    assert np.mean([draw_share(0.05, 0, 0, step) for step in range(400)]) > 0.95


@given(st.integers(1, 9), st.floats(0.5, 1.0), st.integers(0, 2**20))
def test_pixels_are_the_nearest_bytes_to_the_blend(images: int, share: float, seed: int) -> None:
    pixels = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (images, 3, 4, 5), dtype=np.uint8))
    exact = share * pixels.double() + (1 - share) * pixels.double().flip(0)
    blended = blend(pixels, share)
    assert blended.dtype == torch.uint8
    assert (blended.double() - exact).abs().max() <= 0.5 + 1e-4
    assert torch.equal(blend(pixels, 1.0), pixels)
    assert torch.equal(partners(partners(pixels)), pixels)


def test_the_loss_is_blended_as_the_pixels_are() -> None:
    """One step over the whole data set, from the logits that it had."""
    expected: list[float] = []

    def watch(_: nn.Module, logits: Tensor, labels: Tensor) -> None:
        own, other = (float(F.cross_entropy(logits.detach(), of)) for of in (labels, labels.flip(0)))
        share = draw_share(1.0, 0, 0, 0)
        expected.append(share * own + (1 - share) * other)

    recipe = tiny.RECIPE.replace(mixup=1.0, epochs=1, batch_size=50, label_smoothing=0.0)
    history = train(tiny.network(gated=False), tiny.data(), None, recipe, batch_loss=watch).history
    assert [history[0]["loss"]] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("amount", [-0.1, float("nan"), float("inf"), "much"])
def test_an_amount_that_is_none_is_refused(amount: object) -> None:
    with pytest.raises(TrainingError, match=r"recipe\.augmentation\.mixup: expected a number of at least 0"):
        tiny.RECIPE.replace(mixup=amount)
