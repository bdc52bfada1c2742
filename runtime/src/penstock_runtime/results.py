"""What an engine says about a run: counts per image, and times per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class RunRecord:
    """What a run did, image by image, counted while it ran.

    macs: (image, layer): multiply-accumulates of every counted layer, predictor and boosting included.
    active_in, active_out: (image, layer): channels read and channels computed.
    winners: {gated layer: bool (image, channel)}: the channels that were computed.
    saliencies: {gated layer: float (image, channel)}: g, before the winners were chosen.
    """

    outputs: npt.NDArray[np.float32]
    layers: tuple[str, ...]
    macs: npt.NDArray[np.int64]
    active_in: npt.NDArray[np.int32]
    active_out: npt.NDArray[np.int32]
    winners: dict[str, npt.NDArray[np.bool_]]
    saliencies: dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class LayerTime:
    """One step of the engine. Counts and GFLOPS are None for all but convolutions and linear layers."""

    name: str
    kind: str
    milliseconds: float  # the least of the repeats
    median_milliseconds: float
    macs: int | None = None
    active_in: int | None = None
    active_out: int | None = None
    gflops: float | None = None  # 2 · MACs / the least time
    algorithm: str | None = None


@dataclass(frozen=True)
class Profile:
    """Times of every step of one image; `milliseconds` is the least and the median of whole runs."""

    layers: tuple[LayerTime, ...]
    milliseconds: float
    median_milliseconds: float
    macs: int
    repeats: int
    threads: int
    isa: str


@dataclass(frozen=True)
class Guess:
    """A class that an image may show. name: empty when the network does not say."""

    index: int
    name: str
    probability: float


@dataclass(frozen=True)
class Classification:
    """The likeliest classes of one image, likeliest first, and how long the network took for it."""

    guesses: tuple[Guess, ...]
    milliseconds: float


def likeliest(scores: npt.ArrayLike, classes: Sequence[str], top: int) -> tuple[Guess, ...]:
    """scores: (class,), before the softmax → the `top` likeliest classes, likeliest first.

    >>> likeliest([0.0, 2.0], ["cat", "dog"], 1)[0].name
    'dog'
    """
    values = np.asarray(scores, np.float64).reshape(-1)
    weights = np.exp(values - values.max())
    chances = weights / weights.sum()
    order = np.argsort(-chances, kind="stable")[: max(top, 1)].tolist()
    return tuple(Guess(i, classes[i] if i < len(classes) else "", float(chances[i])) for i in order)
