"""Milliseconds that can be compared: every contestant in turn, again and again, in one run.

The speed of a shared machine drifts by more than the differences one looks for, so nothing is timed on its
own: each round runs every contestant, in an order that rotates. The least time of many rounds is what the
work itself takes; what lies above it, the median included, is mostly the neighbours.

A contestant that follows another one finds its caches full of that one's data, which says something about the
other. One call does not drive that out: where data just fit into a shared cache, times fall for ten calls.
So a turn begins with calls that are not timed, for some milliseconds and at least one, and short calls are
repeated: every contestant is timed as in use, after itself.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor


@dataclass(frozen=True)
class Timing:
    """Milliseconds a call: the least, which is compared, and the median, which says how noisy it was."""

    least: float
    median: float
    calls: int


def interleave(
    contestants: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 4.0,
    least_rounds: int = 15,
    warm_up: int = 2,
    settle_milliseconds: float = 20.0,
    turn_milliseconds: float = 5.0,
) -> dict[str, Timing]:
    """Time all contestants for about `seconds` in all, but at least `least_rounds` rounds.

    A turn calls for `settle_milliseconds` untimed, then times calls until they have taken
    `turn_milliseconds`; at least one of each.
    """
    names = list(contestants)
    for name in names:
        for _ in range(warm_up):
            contestants[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    begin = time.perf_counter()
    for turn in itertools.count():
        if not names or (turn >= least_rounds and time.perf_counter() - begin > seconds):
            break
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            _call_for(settle_milliseconds, contestants[name])
            taken[name] += _call_for(turn_milliseconds, contestants[name])
    return {name: Timing(min(values), median(values), len(values)) for name, values in taken.items()}


def _call_for(milliseconds: float, call: Callable[[], object]) -> list[float]:
    """Milliseconds of every call, at least one, until they have taken so long."""
    taken: list[float] = []
    spent = 0.0
    while not taken or spent < milliseconds:
        before = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - before))
        spent += taken[-1]
    return taken


def busy_words() -> str:
    """What to say when other work takes the cores, so that times are upper bounds; empty when none does."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cores + 0.5:
        return ""
    return (
        f"The machine is busy (load {load:.0f} on {cores} cores): the times are upper bounds, and longer "
        "calls suffer most. Measure again when it is idle."
    )


def one_by_one(run: Callable[[Tensor], object], images: Sequence[Tensor]) -> Callable[[], object]:
    """A contestant that runs one image a call and takes the next image at the next call."""
    waiting = itertools.cycle(images)
    return lambda: run(next(waiting))
