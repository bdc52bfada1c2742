from __future__ import annotations

import pytest
import torch

from penstock.gating import SUMMARIES, SaliencyPredictor, summarise


@pytest.mark.parametrize(
    ("summary", "expected"),
    [("l1", 10 / 4), ("l2", 30**0.5 / 4), ("linf", 4 / 4), ("variance", 7.25 / 4)],
)
def test_every_summary_carries_the_papers_factor_in_front(summary: str, expected: float) -> None:
    x = torch.tensor([[[[1.0, -2.0], [3.0, -4.0]]]])  # mean -0.5, mean of squares 7.5
    assert summarise(x, summary).item() == pytest.approx(expected)


@pytest.mark.parametrize("summary", SUMMARIES)
def test_a_channel_of_zeros_summarises_to_zero(summary: str) -> None:
    # The next layer relies on it: a skipped input channel adds nothing to the predictor either.
    x = torch.randn(2, 3, 4, 5)
    x[:, 1] = 0
    assert (summarise(x, summary)[:, 1] == 0).all()


@pytest.mark.parametrize("summary", SUMMARIES)
def test_summaries_read_channels_last_memory_alike(summary: str) -> None:
    x = torch.randn(2, 6, 5, 7)
    strided = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(summarise(strided, summary), summarise(x, summary))


@pytest.mark.parametrize("summary", SUMMARIES)
def test_gradients_at_a_channel_of_zeros_are_finite(summary: str) -> None:
    # Skipped channels are exactly zero, and the ℓ2 norm has a corner there.
    x = torch.zeros(1, 2, 3, 3, requires_grad=True)
    summarise(x, summary).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_an_unknown_summary_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'median'.*l1, l2, linf, variance"):
        summarise(torch.ones(1, 1, 1, 1), "median")
    with pytest.raises(ValueError, match="'median'"):
        SaliencyPredictor(3, 4, "median")


def test_the_papers_initialisation_has_he_variance_by_fan_in_and_a_bias_of_one() -> None:
    predictor = SaliencyPredictor(200, 3000)
    assert predictor.weight.std().item() == pytest.approx((2 / 200) ** 0.5, rel=0.02)
    assert abs(predictor.weight.mean().item()) < 1e-3
    assert (predictor.bias == 1).all()
