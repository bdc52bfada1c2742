"""Milliseconds of every step: a native program and one image in, the times and what each step did out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_runtime.native import native
from penstock_runtime.results import LayerTime, RunRecord


@dataclass(frozen=True)
class Steps:
    """The steps of a program, one entry each. layers: the counted layer a step belongs to, or -1."""

    names: list[str]
    kinds: list[str]
    layers: list[int]


@dataclass(frozen=True)
class Times:
    """steps: (run, step) in nanoseconds; whole: (run,) in seconds; algorithms: (layer,), by number."""

    steps: npt.NDArray[np.int64]
    whole: npt.NDArray[np.float64]
    algorithms: npt.NDArray[np.int32]


def time_runs(
    program: Any,
    image: npt.NDArray[np.float32],
    counts: Any,
    values: int,
    sizes: tuple[int, int],
    repeats: int,
) -> Times:
    """Run one image `repeats` times step by step and, in turns with that, as a whole.

    values: how many the program gives an image. sizes: its steps, and its counted layers.
    """
    steps, layers = sizes
    times = np.zeros((repeats, steps), np.int64)
    whole = np.zeros(repeats)
    algorithms = np.zeros(layers, np.int32)
    results = np.empty((1, values), np.float32)
    for run in range(repeats):
        program.run_timed(image, counts, results, times[run], algorithms)
        start = time.perf_counter()
        program.run(image, counts, results)
        whole[run] = time.perf_counter() - start
    return Times(times, whole, algorithms)


def layer_times(steps: Steps, times: Times, record: RunRecord) -> tuple[LayerTime, ...]:
    """The time of each step, and for a counted layer what it computed in that time."""
    return tuple(_layer_time(steps, op, times, record) for op in range(len(steps.names)))


def _layer_time(steps: Steps, op: int, times: Times, record: RunRecord) -> LayerTime:
    milliseconds = times.steps[:, op] * 1e-6
    least, median = float(milliseconds.min()), float(np.median(milliseconds))
    name, kind, layer = steps.names[op], steps.kinds[op], steps.layers[op]
    if layer < 0:
        return LayerTime(name, kind.lower(), least, median)
    macs = int(record.macs[0, layer])
    return LayerTime(
        name,
        kind.lower(),
        least,
        median,
        macs=macs,
        active_in=int(record.active_in[0, layer]),
        active_out=int(record.active_out[0, layer]),
        gflops=2e-6 * macs / least if least > 0 else None,
        algorithm=native().ALGORITHMS[times.algorithms[layer]] if kind == "Conv" else None,
    )
