"""Exchange finds what brute force finds where layers are independent, and never breaks its budget."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.search.costs import _fit
from penstock.search.exchange import Grid, exchange, uniform_density

NAMES = ("a", "b", "c")
positive = st.floats(0.1, 3.0)


def models(prices: list[float], worths: list[float]):  # type: ignore[no-untyped-def]
    def cost(d: Mapping[str, float]) -> float:
        return sum(price * d[name] for price, name in zip(prices, NAMES, strict=True))

    def loss(d: Mapping[str, float]) -> float:
        return sum(worth * (1 - d[name]) ** 2 for worth, name in zip(worths, NAMES, strict=True))

    return cost, loss


@given(st.lists(positive, min_size=3, max_size=3), st.floats(0.25, 0.99))
def test_the_uniform_density_is_the_highest_that_the_budget_allows(prices: list[float], share: float) -> None:
    cost, _ = models(prices, prices)
    budget = share * sum(prices)
    found = uniform_density(NAMES, cost, budget, 0.2)
    assert cost(dict.fromkeys(NAMES, found)) <= budget
    assert found == pytest.approx(share, abs=2e-3)


@given(
    st.lists(positive, min_size=3, max_size=3),
    st.lists(positive, min_size=3, max_size=3),
    st.floats(0.4, 0.9),
)
def test_exchange_lowers_the_loss_within_the_budget_close_to_the_best_there_is(
    prices: list[float], worths: list[float], share: float
) -> None:
    cost, loss = models(prices, worths)
    grid = Grid(low=0.2, step=0.1)
    budget = share * sum(prices)
    start = dict.fromkeys(NAMES, uniform_density(NAMES, cost, budget, grid.low))
    found = exchange(start, cost, loss, budget, grid, rounds=60)
    assert cost(found) <= budget
    assert loss(found) <= loss(start)
    assert all(grid.low <= value <= 1 for value in found.values())
    # Brute force over the points that the moves can reach from this start.
    reach = sorted({grid.shift(start["a"], n) for n in range(-9, 10)})
    choices = itertools.product(reach, repeat=3)
    best = min(
        loss(dict(zip(NAMES, choice, strict=True)))
        for choice in choices
        if cost(dict(zip(NAMES, choice, strict=True))) <= budget
    )
    # A move changes two layers at most, so it may stop short of the best: by less than a notch is worth.
    notch = max(worths) * grid.step
    assert loss(found) - best <= 0.25 * (loss(start) - best) + 0.5 * notch


def test_exchange_moves_density_to_the_layer_that_needs_it() -> None:
    cost, loss = models([1.0, 1.0, 1.0], [3.0, 0.1, 0.1])
    found = exchange(dict.fromkeys(NAMES, 0.5), cost, loss, 1.5, Grid(), rounds=40)
    assert found["a"] > 0.8 > max(found["b"], found["c"])


def test_costs_are_fitted_without_negative_coefficients() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(10, 60, 40), rng.uniform(10, 60, 40)
    x = np.stack([np.ones(40), a, b, a * b], axis=1)
    true = np.array([0.02, 0.001, 0.0, 0.0004])
    found = _fit(x, x @ true + rng.normal(0, 1e-4, 40))
    assert (found >= 0).all()
    np.testing.assert_allclose(x @ found, x @ true, rtol=0.02)
