"""Milliseconds that can be compared: every contestant in turn, again and again, in one run.

The speed of a shared machine drifts by more than the differences one looks for, so nothing is timed on its
own: each round runs every contestant, in an order that rotates. The least time of many rounds is what the
work itself takes; what lies above it, the median included, is mostly the neighbours.

A contestant that follows another one finds its caches full of that one's data, which says something about the
other. One call does not drive that out: where data just fit into a shared cache, times fall for ten calls.
So a turn begins with calls that are not timed, for some milliseconds and at least one, and short calls are
repeated: every contestant is timed as in use, after itself.

On a busy machine the scheduler interrupts long calls more often than short ones, and after every interruption
the caches are full of the other work, so that even the least times say nothing about each other. Three things
tell: a turn waited for the processor, the least call took longer than the processor time it used, or two
passes disagree. Turns that waited are left out as long as there are others. While a time is not steady,
measuring goes on for a while; a time that is still not steady in the end is not compared.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

_INTERRUPTED = 1.15  # a call that took more than this many times the processor time it used was interrupted
_WAITED = 0.03  # of a turn; who waits longer for the processor is disturbed
_DISAGREE = 1.10  # two passes disagree when their least times differ by more than this factor


@dataclass(frozen=True)
class Timing:
    """Milliseconds a call: the least, which is compared, and the median, which says how noisy it was.

    `processor`: what the least call used of the processor, all threads together; `again`: the least of the
    other pass, odd rounds against even ones; `waited`: the share of the least call's turn in which the
    process was ready to run and other work had the processor. None where that is not known.
    """

    least: float
    median: float
    calls: int
    processor: float | None = None
    again: float | None = None
    waited: float | None = None

    @property
    def steady(self) -> bool:
        """Whether it may be compared: its turn did not wait, nothing interrupted it, two passes agree."""
        alone = self.waited is None or self.waited <= _WAITED
        whole = self.processor is None or self.least <= _INTERRUPTED * self.processor
        return alone and whole and (self.again is None or self.again <= _DISAGREE * self.least)


def ratio(slower: Timing | None, faster: Timing | None) -> float | None:
    """How many times as fast `faster` is; None unless both were measured and are steady."""
    if slower is None or faster is None or not (slower.steady and faster.steady):
        return None
    return slower.least / faster.least


def interleave(
    contestants: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 4.0,
    least_rounds: int = 15,
    warm_up: int = 2,
    settle_milliseconds: float = 20.0,
    turn_milliseconds: float = 5.0,
    patience: float = 3.0,
) -> dict[str, Timing]:
    """Time all contestants for about `seconds` in all, but at least `least_rounds` rounds.

    A turn calls for `settle_milliseconds` untimed, then times calls until they have taken
    `turn_milliseconds`; at least one of each. While a time is not steady, go on for up to `patience` times
    as long.
    """
    names = list(contestants)
    for name in names:
        for _ in range(warm_up):
            contestants[name]()
    taken: dict[str, list[_Call]] = {name: [] for name in names}
    begin = time.perf_counter()
    for turn in itertools.count():
        spent = time.perf_counter() - begin
        if not names or (turn >= least_rounds and spent > seconds):
            found = {name: _timing(calls) for name, calls in taken.items()}
            if spent > patience * seconds or all(one.steady for one in found.values()):
                return found
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            taken[name] += _take_turn(contestants[name], turn, settle_milliseconds, turn_milliseconds)
    raise AssertionError("the loop above ends by returning")


@dataclass(frozen=True)
class _Call:
    """One call: milliseconds by the clock and by the processor; its round, and the share its turn waited."""

    clock: float
    processor: float
    turn: int = 0
    waited: float = 0.0


def _timing(calls: Sequence[_Call]) -> Timing:
    """What all the calls of a contestant say."""
    alone = [call for call in calls if call.waited <= _WAITED]
    least = min(alone or calls, key=lambda call: call.clock)
    others = [call for call in calls if call.turn % 2 != least.turn % 2]
    other = [call.clock for call in others if call.waited <= _WAITED] or [call.clock for call in others]
    return Timing(
        least.clock,
        median(call.clock for call in calls),
        len(calls),
        least.processor,
        min(other, default=None),
        least.waited,
    )


def _take_turn(call: Callable[[], object], turn: int, settle: float, timed: float) -> list[_Call]:
    """Untimed calls for `settle` milliseconds, then `timed` milliseconds of calls that are returned."""
    waiting, begin = _milliseconds_waited(), time.perf_counter()
    _call_for(settle, call)
    taken = _call_for(timed, call)
    spent = 1000 * (time.perf_counter() - begin)
    waited = max(0.0, _milliseconds_waited() - waiting) / spent if spent else 0.0
    return [replace(one, turn=turn, waited=waited) for one in taken]


def _milliseconds_waited() -> float:
    """For how long threads of this process have been ready to run without a processor.

    Linux counts that for every thread. Elsewhere the least call's own processor time has to tell.
    """
    nanoseconds = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            nanoseconds += int(path.read_text().split()[1])
        except (OSError, ValueError, IndexError):  # the thread has just ended, or another kernel's format
            continue
    return nanoseconds / 1e6


def _call_for(milliseconds: float, call: Callable[[], object]) -> list[_Call]:
    """Call again and again, at least once, until `milliseconds` have passed; returns every call."""
    taken: list[_Call] = []
    spent = 0.0
    while not taken or spent < milliseconds:
        used, before = time.process_time(), time.perf_counter()
        call()
        after = time.perf_counter()
        taken.append(_Call(1000 * (after - before), 1000 * (time.process_time() - used)))
        spent += taken[-1].clock
    return taken


def busy_words() -> str:
    """What to say when other work takes the cores, so that times are upper bounds; empty when none does."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cores + 0.5:
        return ""
    return (
        f"The machine is busy (load {load:.0f} on {cores} cores): the times are upper bounds. Only those are "
        "compared that had a core to themselves; measure again when it is idle."
    )


def unsteady_words(names: Sequence[str]) -> str:
    """What to say when the times of these may not be compared; empty without any."""
    if not names:
        return ""
    return (
        f"Not compared: {'; '.join(names)}. Other work interrupted these calls, so their times are upper "
        "bounds and their ratios would mislead; measure again on an idle machine."
    )


def at_density(run: Callable[..., Any], density: float | None) -> Callable[[Tensor], Any]:
    """An engine as a function of images alone, at one density or, with None, at the network's own."""
    return run if density is None else lambda x: run(x, density)


def one_by_one(run: Callable[[Tensor], object], images: Sequence[Tensor]) -> Callable[[], object]:
    """A contestant that takes the next of `images` (or of batches of them) at each call, over and over."""
    waiting = itertools.cycle(images)
    return lambda: run(next(waiting))
