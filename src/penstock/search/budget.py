"""fit_budget: a gated network, images and a budget in; a density for every gated layer out.

Start from a network trained for any density: others lose much away from the density they were trained at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from penstock.datasets import Images, gather, preprocess_of
from penstock.engine import Engine, compile
from penstock.errors import DataError, DensityError, LayerError
from penstock.files import digest
from penstock.gating import is_gated, set_density
from penstock.search.costs import Cost, MacCost, measure_time_cost
from penstock.search.exchange import TRIALS, Grid, exchange, uniform_density
from penstock.search.quality import Judge, read_log

_COUNTED = 8  # MACs are counted on this many images
_NEAR = 0.015  # measured milliseconds this close to the budget (as a share of it) are good enough
_TURNS = 6  # how often densities are corrected by measured milliseconds, at most
Say = Callable[[str], None]


@dataclass(frozen=True)
class Budget:
    """Densities per layer, what they cost, and what they keep.

    top1 and full_top1 (every layer at density 1) are in percent, on images that no choice saw. milliseconds
    are measured, for one image; macs are executed, mean over images.
    """

    densities: dict[str, float]
    milliseconds: float
    macs: float
    saving: float  # MACs at density 1 / MACs
    top1: float
    full_top1: float
    uniform: float  # the uniform density of the same cost
    uniform_top1: float
    chosen_on: int  # number of images on which the densities were chosen
    reported_on: int  # number of other images, on which the accuracies above were measured
    evaluations: int
    losses: tuple[float, ...]  # on the images chosen_on counts: of the uniform start, then after each round

    def apply(self, network: nn.Module) -> None:
        """Set these densities in a network with the same gated layers."""
        set_density(network, self.densities)


def fit_budget(
    gated: nn.Module,
    data: Images,
    *,
    milliseconds: float | None = None,
    macs: float | None = None,
    saving: float | None = None,
    top1_drop: float | None = None,
    images: int = 4000,
    low: float = 0.2,
    rounds: int = 12,
    threads: int = 1,
    seed: int = 0,
    log: Path | None = None,
    say: Say | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Budget:
    """Find the densities per layer that keep the most accuracy within a budget.

    Exactly one of: milliseconds (one image, measured here), macs (executed, mean of an image), saving (times
    fewer MACs than at density 1), top1_drop (points of accuracy to give away at most; then the cheapest is
    looked for). data: labelled images that were not trained on; half of at most `images` of them choose, the
    other half reports. low: the lowest density a layer may get. log: a file where evaluations are kept; the
    same call goes on from there. progress: called with the number of evaluations so far and the most that
    there may be, at a fixed budget. The network itself is left as it is: `Budget.apply` sets the densities.

    >>> import penstock as ps
    >>> _, few = ps.datasets.hold_out(ps.datasets.sample(), 24)
    >>> gated = ps.zoo.pretrained("m_cifarnet-cifar10-any")
    >>> budget = ps.fit_budget(gated, few, saving=2.0, rounds=1)
    >>> len(budget.densities), budget.saving > 1.8
    (8, True)
    >>> budget.apply(gated)
    """
    wanted = {"milliseconds": milliseconds, "macs": macs, "saving": saving, "top1_drop": top1_drop}
    kind, value = _one_of(wanted)
    if not is_gated(gated):
        raise LayerError("fit_budget: the network has no gated layer; call add_gates and train it first")
    grid = Grid(low=low)
    if not 0.0 < low < 1.0:
        raise DensityError(f"low: expected a density between 0 and 1, got {low!r}")
    prepare = preprocess_of(gated, data)
    if len(data) < 2:
        raise DataError(f"{data.name}: expected images to choose by and others to report on, got {len(data)}")
    pixels, labels = gather(data, images)
    example = prepare(pixels[:_COUNTED])
    engine = compile(gated, example, threads=threads)
    stamp = _stamp(gated, pixels, low)
    known = {} if log is None else read_log(log, stamp)
    judge = Judge(engine, pixels[::2], labels[::2], prepare, known, log)
    reporter = Judge(engine, pixels[1::2], labels[1::2], prepare)
    names = tuple(engine.gated)
    if progress is not None:
        most = rounds * (2 * len(names) + TRIALS)
        judge.tell = lambda asked: progress(min(asked, most), most)
    full = dict.fromkeys(names, 1.0)
    count = MacCost(engine, example)
    speak: Say = say if say is not None else lambda words: None

    cost: Cost = count
    if kind == "milliseconds":
        speak("profiling layers")
        cost = measure_time_cost(engine, example, low, seed)
    ceiling = _ceiling(kind, value, cost, count, names, low, full)
    losses: list[float] = []
    optimise = partial(_optimise, cost, judge, names, grid, rounds, speak, losses)
    if kind == "top1_drop":
        found, start = _cheapest(optimise, cost, judge, value, names, low, full, speak)
    elif kind == "milliseconds":
        found, start = _to_the_clock(optimise, engine, example, value, ceiling, low, speak)
    else:
        found, start = optimise(ceiling)
    after, whole = reporter(found), reporter(full)
    spent = count(found)
    return Budget(
        densities=found,
        milliseconds=_clock(engine, example, found),
        macs=spent,
        saving=count(full) / spent,
        top1=after.top1,
        full_top1=whole.top1,
        uniform=start,
        uniform_top1=reporter(dict.fromkeys(names, start)).top1,
        chosen_on=len(judge.labels),
        reported_on=len(reporter.labels),
        evaluations=judge.asked,
        losses=tuple(losses),
    )


def _one_of(wanted: Mapping[str, float | None]) -> tuple[str, float]:
    given = {name: value for name, value in wanted.items() if value is not None}
    if len(given) != 1:
        said = ", ".join(given) or "none"
        raise DensityError(f"fit_budget: give exactly one of {', '.join(wanted)}; got {said}")
    ((kind, value),) = given.items()
    good = isinstance(value, int | float) and value == value and 0 < value < float("inf")
    if not good or (kind == "saving" and value < 1):
        raise DensityError(
            f"fit_budget: {kind}: expected a positive number (a saving: 1 or more), got {value!r}"
        )
    return kind, float(value)


def _ceiling(
    kind: str,
    value: float,
    cost: Cost,
    count: MacCost,
    names: tuple[str, ...],
    low: float,
    full: dict[str, float],
) -> float:
    """The budget in the unit of `cost`; refused if even the lowest densities cost more."""
    if kind == "top1_drop":
        return float("inf")
    ceiling = count(full) / value if kind == "saving" else value
    least = cost(dict.fromkeys(names, low))
    if least > ceiling:
        unit = "ms" if kind == "milliseconds" else "MACs"
        raise DensityError(
            f"fit_budget: {kind}={value:g} cannot be met: with every layer at density {low:g} an image costs "
            f"{least:,.4g} {unit}; ask for more, or give a lower `low`"
        )
    return ceiling


def _optimise(
    cost: Cost,
    judge: Judge,
    names: tuple[str, ...],
    grid: Grid,
    rounds: int,
    speak: Say,
    losses: list[float],
    ceiling: float,
) -> tuple[dict[str, float], float]:
    """Densities of least loss within the ceiling, and the uniform density that they started from."""
    start = uniform_density(names, cost, ceiling, grid.low)
    losses[:] = [judge(dict.fromkeys(names, start)).loss]

    def on_round(number: int, loss: float, spent: float) -> None:
        losses.append(loss)
        speak(f"round {number}: loss {loss:.4f}, cost {spent:.4g} of {ceiling:.4g}")

    found = exchange(
        dict.fromkeys(names, start), cost, lambda d: judge(d).loss, ceiling, grid, rounds, on_round
    )
    return found, start


def _to_the_clock(
    optimise: Callable[[float], tuple[dict[str, float], float]],
    engine: Engine,
    example: Tensor,
    target: float,
    ceiling: float,
    low: float,
    speak: Say,
) -> tuple[dict[str, float], float]:
    """Scale the densities until the measured milliseconds lie close to the target, or take the closest."""
    found, start = optimise(ceiling)
    closest: tuple[float, dict[str, float], float] | None = None
    for _ in range(_TURNS):
        taken = _clock(engine, example, found)
        speak(f"measured {taken:.4g} ms of {target:.4g}")
        at_top = all(value == 1.0 for value in found.values())
        off = abs(taken / target - 1)
        if off <= _NEAR or (at_top and taken < target):
            return found, start
        if closest is None or off < closest[0]:
            closest = (off, found, start)
        # Time grows with a power of the density between 1 and 2.
        factor = (target / taken) ** 0.6
        found = {name: min(1.0, max(low, value * factor)) for name, value in found.items()}
        start = min(1.0, max(low, start * factor))
    assert closest is not None
    return closest[1:]


def _cheapest(
    optimise: Callable[[float], tuple[dict[str, float], float]],
    cost: Cost,
    judge: Judge,
    drop: float,
    names: tuple[str, ...],
    low: float,
    full: dict[str, float],
    speak: Say,
) -> tuple[dict[str, float], float]:
    """The least cost whose accuracy, on the images that choose, lies within `drop` points of density 1."""
    wanted = judge(full).top1 - drop
    below, above = cost(dict.fromkeys(names, low)), cost(full)
    best: tuple[dict[str, float], float] = (full, 1.0)
    for _ in range(6):
        middle = (below * above) ** 0.5
        trial = optimise(middle)
        good = judge(trial[0]).top1 >= wanted
        speak(
            f"cost {middle:.4g}: {judge(trial[0]).top1:.2f}%, {'within' if good else 'below'} {wanted:.2f}%"
        )
        if good:
            best, above = trial, middle
        else:
            below = middle
    return best


def _clock(engine: Engine, example: Tensor, densities: Mapping[str, float]) -> float:
    """Milliseconds of one image: the mean over some images of the least of repeated runs."""
    times = [engine.profile(x, dict(densities), repeats=15).milliseconds for x in example.split(1)]
    return sum(times) / len(times)


def _stamp(gated: nn.Module, pixels: Tensor, low: float) -> str:
    """What a log of evaluations belongs to."""
    known = f"{digest(dict(gated.state_dict()))} {digest({'images': pixels})} {low}"
    return hashlib.sha256(known.encode()).hexdigest()
