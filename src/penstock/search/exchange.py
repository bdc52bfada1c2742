"""Moving density between layers: a cost to keep below and a loss to lower, in; better densities, out.

From a uniform density that meets the budget, every layer is tried a notch lower and a notch higher. A layer
that is lowered pays for one that is raised; pairs are tried in the order of the loss that they promise. A
move is kept if the loss really falls and the budget really holds, both evaluated and not predicted. The
search ends when no pair of layers improves on what there is, or after `rounds`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.search.costs import Cost, Densities

Loss = Callable[[Densities], float]

TRIALS = 8  # a round ends after this many moves without a lower loss


@dataclass(frozen=True)
class Grid:
    """Densities that a layer may have: from `low` to 1 in steps of `step`."""

    low: float = 0.2
    step: float = 0.05

    def shift(self, value: float, notches: int) -> float:
        return min(1.0, max(self.low, round(value + notches * self.step, 6)))


class _Move(NamedTuple):
    """One layer at another density, and what that changes."""

    layer: str
    density: float
    loss: float
    cost: float


def uniform_density(names: tuple[str, ...], cost: Cost, budget: float, low: float) -> float:
    """The highest uniform density, to a thousandth, whose cost is within the budget; `low` must meet it."""
    below, above = low, 1.0
    if cost(dict.fromkeys(names, above)) <= budget:
        return above
    while above - below > 1e-3:
        middle = (below + above) / 2
        if cost(dict.fromkeys(names, middle)) <= budget:
            below = middle
        else:
            above = middle
    return below


def exchange(
    start: Densities,
    cost: Cost,
    loss: Loss,
    budget: float,
    grid: Grid,
    rounds: int,
    on_round: Callable[[int, float, float], None] | None = None,
) -> dict[str, float]:
    """Lower the loss at a cost within `budget`. on_round: (round, loss, cost) after each round."""
    best = dict(start)
    best_loss, best_cost = loss(best), cost(best)
    notches = 2  # coarse moves first: they stand out of the noise
    for number in range(rounds):
        better = _improve(best, best_loss, best_cost, cost, loss, budget, grid, notches)
        if better is None and notches > 1:
            notches = 1
        elif better is None:
            break
        else:
            best = better
            best_loss, best_cost = loss(best), cost(best)
        if on_round is not None:
            on_round(number + 1, best_loss, best_cost)
    return best


def _improve(
    now: dict[str, float],
    now_loss: float,
    now_cost: float,
    cost: Cost,
    loss: Loss,
    budget: float,
    grid: Grid,
    notches: int,
) -> dict[str, float] | None:
    """The first move, in order of promise, that lowers the loss within the budget; or None."""
    down: list[_Move] = []
    up: list[_Move] = []
    for name, value in now.items():
        for moves, shift in ((down, -notches), (up, notches)):
            moved = grid.shift(value, shift)
            if moved == value:
                continue
            trial = {**now, name: moved}
            moves.append(_Move(name, moved, loss(trial) - now_loss, cost(trial) - now_cost))
    # Where the budget has room, one density is raised alone; otherwise a lowered layer pays for it.
    trials = [(a.loss, {**now, a.layer: a.density}) for a in up if now_cost + a.cost <= budget]
    room = budget - now_cost
    for a, b in itertools.product(down, up):
        if a.layer == b.layer:
            continue
        # Either one notch down pays for several up, or one up needs several down. Losses are taken as linear.
        ups = math.floor((room - a.cost) / b.cost) if b.cost > 0 else 1
        downs = math.ceil((b.cost - room) / -a.cost) if a.cost < 0 else 1
        for lower, higher in {(1, max(1, ups)), (max(1, downs), 1)}:
            lowered = grid.shift(now[a.layer], -lower * notches)
            raised = grid.shift(now[b.layer], higher * notches)
            promise = lower * a.loss + higher * b.loss
            trials.append((promise, {**now, a.layer: lowered, b.layer: raised}))
    trials = [trial for trial in trials if trial[0] < 0 and cost(trial[1]) <= budget]
    trials.sort(key=lambda trial: trial[0])
    for _, trial in trials[:TRIALS]:
        if loss(trial) < now_loss:
            return trial
    return None
