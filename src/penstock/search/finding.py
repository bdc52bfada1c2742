"""Three ways to the densities of a budget: within a cost, to measured milliseconds, or down to an accuracy.

Each ends with the densities of the layers, and with the uniform density that the search started from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from penstock.engine import Engine
from penstock.search.costs import Cost
from penstock.search.exchange import Grid, exchange, uniform_density
from penstock.search.quality import Judge

_NEAR = 0.015  # measured milliseconds this close to the budget (as a share of it) are good enough
_TURNS = 6  # how often densities are corrected by measured milliseconds, at most
_HALVINGS = 6  # how often the range of costs is halved on the way to an accuracy
Say = Callable[[str], None]
Found = tuple[dict[str, float], float]


@dataclass
class Finder:
    """`cost` is kept within a ceiling, `judge` says what densities lose; example: images that are timed.

    losses: of the last search, at the uniform start and after each round.
    """

    engine: Engine
    example: Tensor
    cost: Cost
    judge: Judge
    grid: Grid
    rounds: int
    speak: Say
    losses: list[float] = field(default_factory=list)

    def everywhere(self, density: float) -> dict[str, float]:
        """One density for all gated layers."""
        return dict.fromkeys(self.engine.gated, density)

    def within(self, ceiling: float) -> Found:
        """The densities of least loss whose cost is at most `ceiling`."""
        start = uniform_density(tuple(self.engine.gated), self.cost, ceiling, self.grid.low)
        self.losses = [self.judge(self.everywhere(start)).loss]

        def on_round(number: int, loss: float, spent: float) -> None:
            self.losses.append(loss)
            self.speak(f"round {number}: loss {loss:.4f}, cost {spent:.4g} of {ceiling:.4g}")

        found = exchange(
            self.everywhere(start),
            self.cost,
            lambda densities: self.judge(densities).loss,
            ceiling,
            self.grid,
            self.rounds,
            on_round,
        )
        return found, start

    def to_the_clock(self, target: float) -> Found:
        """Scale the densities until the measured milliseconds are near the target, or take the nearest."""
        found, start = self.within(target)
        closest: tuple[float, Found] | None = None
        for _ in range(_TURNS):
            taken = self.milliseconds(found)
            self.speak(f"measured {taken:.4g} ms of {target:.4g}")
            at_top = all(value == 1.0 for value in found.values())
            off = abs(taken / target - 1)
            if off <= _NEAR or (at_top and taken < target):
                return found, start
            if closest is None or off < closest[0]:
                closest = (off, (found, start))
            # Time grows with a power of the density between 1 and 2.
            factor = (target / taken) ** 0.6
            found = {name: self._scaled(value, factor) for name, value in found.items()}
            start = self._scaled(start, factor)
        assert closest is not None
        return closest[1]

    def _scaled(self, density: float, factor: float) -> float:
        return min(1.0, max(self.grid.low, density * factor))

    def cheapest(self, drop: float) -> Found:
        """The least cost whose accuracy, on the images that choose, is within `drop` points of density 1."""
        full = self.everywhere(1.0)
        wanted = self.judge(full).top1 - drop
        below, above = self.cost(self.everywhere(self.grid.low)), self.cost(full)
        best: Found = (full, 1.0)
        for _ in range(_HALVINGS):
            middle = (below * above) ** 0.5
            trial = self.within(middle)
            top1 = self.judge(trial[0]).top1
            good = top1 >= wanted
            self.speak(f"cost {middle:.4g}: {top1:.2f}%, {'within' if good else 'below'} {wanted:.2f}%")
            if good:
                best, above = trial, middle
            else:
                below = middle
        return best

    def milliseconds(self, densities: Mapping[str, float]) -> float:
        """Of one image: the mean over the example's images of the least of repeated runs."""
        images = self.example.split(1)
        times = [self.engine.profile(x, dict(densities), repeats=15).milliseconds for x in images]
        return sum(times) / len(times)
