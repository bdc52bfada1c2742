"""fit_budget: a gated network, images and a budget in; a density for every gated layer out.

Start from a network trained for any density: others lose much away from the density they were trained at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from penstock.datasets import Images, gather, preprocess_of
from penstock.engine import compile
from penstock.errors import DataError, DensityError, LayerError
from penstock.files import digest
from penstock.gating import is_gated, set_density
from penstock.search.costs import Cost, MacCost, measure_time_cost
from penstock.search.exchange import TRIALS, Grid
from penstock.search.finding import Finder, Say
from penstock.search.quality import Judge, read_log

_COUNTED = 8  # MACs are counted on this many images


@dataclass(frozen=True)
class Budget:
    """Densities per layer, what they cost, and what they keep.

    top1 and full_top1 (every layer at density 1) are in percent, on images that no choice saw. milliseconds
    are measured, for one image; macs are executed, mean over images.

    >>> import penstock as ps
    >>> _, few = ps.datasets.hold_out(ps.datasets.sample(), 8)
    >>> gated = ps.zoo.pretrained("m_cifarnet-cifar10-any")
    >>> budget = ps.fit_budget(gated, few, saving=2.0, rounds=0)
    >>> budget.chosen_on, budget.reported_on
    (4, 4)
    >>> budget.apply(gated)
    >>> gated.conv0.density == budget.densities["conv0"]
    True
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
    if progress is not None:
        most = rounds * (2 * len(engine.gated) + TRIALS)
        judge.tell = lambda asked: progress(min(asked, most), most)
    count = MacCost(engine, example)
    speak: Say = say if say is not None else lambda words: None
    cost: Cost = count
    if kind == "milliseconds":
        speak("profiling layers")
        cost = measure_time_cost(engine, example, low, seed)
    finder = Finder(engine, example, cost, judge, grid, rounds, speak)
    full = finder.everywhere(1.0)
    if kind == "top1_drop":
        found, start = finder.cheapest(value)
    else:
        ceiling = count(full) / value if kind == "saving" else value
        _check_reachable(kind, value, ceiling, cost(finder.everywhere(low)), low)
        found, start = finder.to_the_clock(value) if kind == "milliseconds" else finder.within(ceiling)
    spent = count(found)
    return Budget(
        densities=found,
        milliseconds=finder.milliseconds(found),
        macs=spent,
        saving=count(full) / spent,
        top1=reporter(found).top1,
        full_top1=reporter(full).top1,
        uniform=start,
        uniform_top1=reporter(finder.everywhere(start)).top1,
        chosen_on=len(judge.labels),
        reported_on=len(reporter.labels),
        evaluations=judge.asked,
        losses=tuple(finder.losses),
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


def _check_reachable(kind: str, value: float, ceiling: float, least: float, low: float) -> None:
    """Refuse a budget that even the lowest densities exceed. least: what they cost, in the ceiling's unit."""
    if least > ceiling:
        unit = "ms" if kind == "milliseconds" else "MACs"
        raise DensityError(
            f"fit_budget: {kind}={value:g} cannot be met: with every layer at density {low:g} an image costs "
            f"{least:,.4g} {unit}; ask for more, or give a lower `low`"
        )


def _stamp(gated: nn.Module, pixels: Tensor, low: float) -> str:
    """What a log of evaluations belongs to."""
    known = f"{digest(dict(gated.state_dict()))} {digest({'images': pixels})} {low}"
    return hashlib.sha256(known.encode()).hexdigest()
