"""What a choice of densities costs: densities in, MACs or predicted milliseconds out.

MACs are counted by the engine on a few images, so that unions of lists in residual sums count as they
occur. Milliseconds are predicted from a few measured profiles. A convolution that reads `a` channels and
computes `b` of them takes about

    t = c₀ + c₁·a + c₂·b + c₃·a·b        (gates and transforms grow with a or b, products with a·b)

and the coefficients of every step are fitted to the least times of its profiles. What is left over (sums,
pooling, the call itself) is fitted as one more step over the mean share of active channels.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from penstock.engine import Engine, RunRecord

Densities = Mapping[str, float]
Cost = Callable[[Densities], float]
Reals = npt.NDArray[np.float64]

_RANDOM_PROFILES = 12  # besides the uniform ones
_REPEATS = 7  # each profile is timed this often, and the least time counts


@dataclass(frozen=True)
class MacCost:
    """Mean executed MACs an image."""

    engine: Engine
    images: Tensor  # (image, channel, height, width), a few

    def __call__(self, densities: Densities) -> float:
        return float(self.engine.macs(self.images, dict(densities)).mean())


@dataclass(frozen=True)
class TimeCost:
    """Predicted milliseconds an image; `coefficients`: four for every layer, and a last row for the rest."""

    engine: Engine
    images: Tensor
    coefficients: Reals
    scale: float = 1.0  # the time of a whole call, divided by the sum of its steps

    def __call__(self, densities: Densities) -> float:
        record = self.engine.record(self.images, dict(densities))
        return self.scale * float((_features(record) * self.coefficients).sum())


def measure_time_cost(
    engine: Engine, images: Tensor, low: float, seed: int, on_step: Callable[[int, int], None] | None = None
) -> TimeCost:
    """Profile the engine at uniform and at random densities of at least `low`, and fit the model.

    images: (image, channel, height, width), a few; each profile runs one of them.
    """
    rng = random.Random(seed)
    grid = [low + (1.0 - low) * share for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    settings: list[dict[str, float]] = [dict.fromkeys(engine.gated, value) for value in grid]
    settings += [{name: rng.uniform(low, 1.0) for name in engine.gated} for _ in range(_RANDOM_PROFILES)]
    features, targets, wholes = [], [], []
    for number, setting in enumerate(settings):
        x = images[number % len(images) : number % len(images) + 1]
        profile = engine.profile(x, setting, repeats=_REPEATS)
        record = engine.record(x, setting)
        features.append(_features(record))
        by_layer = {step.name: step.milliseconds for step in profile.layers}
        known = [by_layer.get(name, 0.0) for name in record.layers]
        every = sum(step.milliseconds for step in profile.layers)
        targets.append([*known, every - sum(known)])
        wholes.append(profile.milliseconds / every if every > 0 else 1.0)
        if on_step is not None:
            on_step(number + 1, len(settings))
    x_all, y_all = np.array(features), np.array(targets)  # (setting, row, 4), (setting, row)
    rows = [_fit(x_all[:, row], y_all[:, row]) for row in range(y_all.shape[1])]
    return TimeCost(engine, images, np.array(rows), float(np.median(wholes)))


def _features(record: RunRecord) -> Reals:
    """(layer + 1, 4): 1, a, b, a·b of every counted layer, means over images; the last row is the rest."""
    read = record.active_in.astype(np.float64).mean(axis=0)
    computed = record.active_out.astype(np.float64).mean(axis=0)
    both = (record.active_in.astype(np.float64) * record.active_out).mean(axis=0)
    layers = np.stack([np.ones_like(read), read, computed, both], axis=1)
    rest = np.array([[1.0, read.sum(), computed.sum(), 0.0]])
    return np.concatenate([layers, rest])


def _fit(x: Reals, y: Reals) -> Reals:
    """Least squares with coefficients that are not negative: more channels never cost less.

    Columns whose coefficient comes out negative are dropped one by one. x: (setting, 4), y: (setting,).
    """
    scale: Any = np.maximum(np.abs(x).max(axis=0), 1e-12)
    kept = [column for column in range(x.shape[1]) if np.abs(x[:, column]).max() > 0]
    while kept:
        found, *_ = np.linalg.lstsq((x / scale)[:, kept], y, rcond=None)
        worst = int(found.argmin())
        if found[worst] >= 0:
            whole = np.zeros(x.shape[1])
            whole[kept] = found
            return np.asarray(whole / scale)
        del kept[worst]
    return np.zeros(x.shape[1])
