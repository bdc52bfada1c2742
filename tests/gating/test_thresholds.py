from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penstock.errors import LayerError
from penstock.gating import GatedConv2d, fit_threshold, set_levels, winner_mask

# Few distinct values, so that ties and values equal to the threshold are the rule.
coarse_rows = st.lists(st.integers(0, 4).map(float), min_size=1, max_size=16)


@given(coarse_rows, st.data())
def test_winners_lie_above_the_threshold_at_most_k_and_ties_go_to_the_lower_index(
    row: list[float], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(row)))
    threshold = data.draw(st.sampled_from((0.0, 1.0, 1.5, 3.0)))
    above = [index for index in range(len(row)) if row[index] > threshold]
    best = sorted(sorted(above, key=lambda index: (-row[index], index))[:k])
    mask = winner_mask(torch.tensor([row]), k, torch.tensor(threshold))[0]
    assert mask.nonzero().flatten().tolist() == best


@given(st.integers(1, 40), st.integers(1, 24), st.data())
def test_a_fitted_threshold_meets_its_mean_and_its_cap(
    images: int, channels: int, data: st.DataObject
) -> None:
    saliency = torch.rand(
        images, channels, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    )
    most = data.draw(st.integers(1, channels))
    mean = data.draw(st.floats(0.0, 1.0)) * most
    counts = winner_mask(saliency, most, fit_threshold(saliency, mean, most)).sum(1)
    assert int(counts.max()) <= most
    assert int(counts.sum()) == round(mean * images)


def test_where_too_few_saliencies_are_above_zero_the_threshold_is_zero() -> None:
    saliency = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    assert float(fit_threshold(saliency, mean=2.0, most=3)) == 0.0
    assert winner_mask(saliency, 3, torch.tensor(0.0)).sum() == 2


def layer(threshold: float | None, density: float = 0.75) -> GatedConv2d:
    torch.manual_seed(5)
    made = GatedConv2d(
        nn.Conv2d(3, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12, affine=False),
        nn.ReLU(),
        density=density,
    )
    made.set_threshold(threshold)
    return made.eval()


def test_a_layer_computes_what_is_above_its_threshold_and_no_more_than_its_density() -> None:
    x = torch.randn(6, 3, 5, 5)
    gated = layer(1.2)
    out = gated(x)
    assert gated.saliency is not None
    saliency = gated.saliency.detach().numpy()
    for image in range(len(x)):
        order = np.argsort(-saliency[image], kind="stable")[: int(gated.winners)]
        wins = set(order[saliency[image][order] > np.float32(1.2)].tolist())
        assert set((gated.gains[image] != 0).nonzero().flatten().tolist()) == wins
        losers = [channel for channel in range(12) if channel not in wins]
        assert not out[image, losers].any()
    counts = (gated.gains != 0).sum(1)
    assert len(set(counts.tolist())) > 1  # images differ


def test_a_threshold_of_zero_changes_nothing() -> None:
    x = torch.randn(4, 3, 5, 5)
    assert torch.equal(layer(0.0)(x), layer(None)(x))


def test_a_threshold_is_copied_saved_with_the_weights_and_taken_away_again() -> None:
    gated = layer(1.2)
    assert "threshold" in gated.state_dict()
    assert "threshold" not in layer(None).state_dict()
    assert copy.deepcopy(gated).threshold == gated.threshold
    assert "threshold=" in repr(gated)
    gated.set_threshold(None)
    assert gated.threshold is None


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_threshold_that_is_no_number_from_zero_on_is_refused(value: float) -> None:
    with pytest.raises(LayerError, match="at least 0"):
        layer(None).set_threshold(value)


def test_levels_and_a_threshold_exclude_each_other() -> None:
    with_levels = layer(None)
    with_levels.set_levels((0.5, 1.0))
    with pytest.raises(LayerError, match="drop_levels"):
        with_levels.set_threshold(1.0)
    with pytest.raises(LayerError, match="takes no levels"):
        layer(1.0).set_levels((0.5, 1.0))
    with pytest.raises(LayerError, match="layer '0' has a threshold"):
        set_levels(nn.Sequential(layer(1.0)), (0.5, 1.0))
