"""A served network: a compiled file in; its engine, what it costs, and what it keeps at a density, out."""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import penstock_runtime as pr
from penstock_runtime.errors import FileError

_GRID = 6  # densities whose service time is measured at the start
_RUNS = 5  # of which the least counts


@dataclass(frozen=True)
class Curve:
    """Numbers at densities, straight between them, flat outside."""

    densities: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, density: float) -> float:
        place = bisect.bisect_left(self.densities, density)
        if place == 0:
            return self.values[0]
        if place == len(self.densities):
            return self.values[-1]
        low, high = self.densities[place - 1], self.densities[place]
        share = (density - low) / (high - low)
        return self.values[place - 1] + share * (self.values[place] - self.values[place - 1])


@dataclass(frozen=True)
class Model:
    """One loaded file. stamp: what the file looked like when it was read; service: density → milliseconds."""

    name: str
    path: Path
    stamp: tuple[int, int, int]
    engine: pr.Engine
    service: Curve
    accuracy: Curve | None  # density → top-1 percent, if the file says

    @property
    def channels(self) -> int:
        return self.engine.input_shape[0]


def stamp_of(path: Path) -> tuple[int, int, int]:
    """What changes when a file is replaced or rewritten."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def load_model(path: Path, name: str | None = None, floor: float = 0.1, ceiling: float = 1.0) -> Model:
    """Load a compiled file on one thread, and time it between floor and ceiling on this machine.

    The bytes are read, not mapped: copying a new file over the old one would change what is mapped, and a
    process that reads beyond the end of a file that was cut off is killed.
    """
    stamp = stamp_of(path)
    engine = _read(path)
    known = [one for one in engine.info.measured if one.top1 is not None]
    known.sort(key=lambda one: one.density)
    accuracy = None
    if known:
        accuracy = Curve(tuple(one.density for one in known), tuple(float(one.top1 or 0) for one in known))
    return Model(name or path.stem, path, stamp, engine, _time(engine, floor, ceiling), accuracy)


def _read(path: Path) -> pr.Engine:
    try:
        return pr.Engine(path.read_bytes())
    except FileError as error:
        said = str(error).removeprefix("the file in memory: ")
        raise FileError(f"{path}: {said}") from None


def _time(engine: pr.Engine, floor: float, ceiling: float) -> Curve:
    """The least milliseconds of one random image at densities from floor to ceiling."""
    image = np.random.default_rng(0).standard_normal((1, *engine.input_shape), np.float32)
    steps = _GRID if engine.gated and floor < ceiling else 1
    densities = [float(value) for value in np.linspace(ceiling if steps == 1 else floor, ceiling, steps)]
    values = []
    for density in densities:
        times = []
        for _ in range(_RUNS):
            before = time.perf_counter()
            engine(image, density=density if engine.gated else None)
            times.append(1000 * (time.perf_counter() - before))
        values.append(min(times))
    rising = np.maximum.accumulate(values)  # noise must not make a higher density look cheaper
    return Curve(tuple(densities), tuple(float(value) for value in rising))
