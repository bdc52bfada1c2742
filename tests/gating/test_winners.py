from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DensityError
from penstock.gating import check_density, winner_count, winner_mask, winners_take_all

# Few distinct values, so that ties are the rule.
coarse_rows = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=24)


@given(coarse_rows, st.data())
def test_exactly_k_are_kept_the_largest_magnitudes_and_ties_go_to_the_lower_index(
    row: list[float], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(row)))
    best = sorted(range(len(row)), key=lambda index: (-abs(row[index]), index))[:k]
    mask = winner_mask(torch.tensor([row]), k)[0]
    assert mask.nonzero().flatten().tolist() == sorted(best)
    assert mask.sum() == k


@given(coarse_rows, st.data())
def test_k_may_be_a_tensor(row: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(row)))
    saliency = torch.tensor([row, row[::-1]])
    assert torch.equal(winner_mask(saliency, k), winner_mask(saliency, torch.tensor(k)))


def test_rows_compete_apart_from_each_other() -> None:
    saliency = torch.tensor([[1.0, -3.0, 2.0], [9.0, 8.0, -7.0]])
    assert winners_take_all(saliency, 2).tolist() == [[0.0, -3.0, 2.0], [9.0, 8.0, 0.0]]


def test_many_ties_on_a_wide_row_keep_the_first_k() -> None:
    # Wide enough for the sort's vectorised and parallel paths.
    mask = winner_mask(torch.ones(3, 5000), 1234)
    assert torch.equal(mask, (torch.arange(5000) < 1234).expand(3, -1))


@given(st.integers(1, 100), st.integers(1, 4096))
def test_k_is_the_exact_ceiling_for_densities_in_hundredths(hundredths: int, channels: int) -> None:
    exact = math.ceil(Fraction(hundredths, 100) * channels)
    assert winner_count(hundredths / 100, channels) == exact


@pytest.mark.parametrize(
    ("density", "channels", "k"), [(0.55, 100, 55), (0.7, 10, 7), (0.07, 100, 7), (0.29, 100, 29)]
)
def test_a_floating_point_hair_buys_no_channel(density: float, channels: int, k: int) -> None:
    assert winner_count(density, channels) == k


def test_k_is_never_zero_and_never_more_than_the_channels() -> None:
    assert winner_count(1e-12, 64) == 1
    assert winner_count(1.0, 64) == 64
    assert winner_count(0.501, 4) == 3


def test_gradients_flow_through_the_winners_only() -> None:
    saliency = torch.tensor([[0.1, 0.9, 0.5, 0.3]], requires_grad=True)
    (winners_take_all(saliency, 2) * torch.tensor([10.0, 20.0, 30.0, 40.0])).sum().backward()
    assert saliency.grad is not None
    assert saliency.grad.tolist() == [[0.0, 20.0, 30.0, 0.0]]


@given(st.integers(2, 12), st.data())
def test_gradcheck_of_winners_take_all(channels: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, channels))
    # Spread values: finite differences must not change who wins.
    order = data.draw(st.permutations(range(channels)))
    signs = data.draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=channels, max_size=channels))
    row = [sign * (place + 1) for sign, place in zip(signs, order, strict=True)]
    saliency = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: winners_take_all(s, k), (saliency,))


@pytest.mark.parametrize(
    "density", [0, 0.0, -0.5, 1.0000001, 2, float("nan"), float("inf"), True, None, "0.5", [0.5], "half"]
)
def test_a_density_outside_its_range_is_refused_with_what_was_given(density: object) -> None:
    with pytest.raises(DensityError) as caught:
        check_density(density)
    assert repr(density) in str(caught.value)
    assert "]0, 1]" in str(caught.value)


@pytest.mark.parametrize("density", [1, 0.5, np.float64(0.5), np.float32(0.5), torch.tensor(0.5), 1e-9])
def test_numbers_of_every_library_are_densities(density: object) -> None:
    assert check_density(density) == float(density)  # type: ignore[arg-type]


def test_a_tensor_of_many_numbers_is_not_a_density() -> None:
    with pytest.raises(DensityError, match=r"\]0, 1\]"):
        check_density(torch.tensor([0.5, 0.6]))
