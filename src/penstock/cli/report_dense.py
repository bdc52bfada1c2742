"""The dense network beside the runs of a report: which one it is, and what it keeps in other runtimes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

from penstock.cli.images import ReadOptions, check_fits, find_images, in_memory, settle_preprocess
from penstock.cli.models import find_model, load_trusted
from penstock.cli.scoring import score, score_runtime
from penstock.cli.sources import Source, remembered, start_of
from penstock.cli.trainable import find_scored
from penstock.datasets import ImageArrays, preprocess_of
from penstock.errors import PenstockError
from penstock.gating import is_gated
from penstock.measuring.runtimes import Runtime, dense_runtimes
from penstock.reporting import Run
from penstock.reporting.comparison import Accuracy

_CALIBRATED = 64  # images that set the ranges of the int8 networks


@dataclass(frozen=True)
class Dense:
    """The dense network in other runtimes, and its accuracy in each."""

    runtimes: dict[str, Runtime] = field(default_factory=dict)
    accuracies: dict[str, Accuracy] = field(default_factory=dict)
    float32: Accuracy | None = None
    notes: tuple[str, ...] = ()


class Shown:
    """The images that each network is shown, read once. data: what the user names; most: how many."""

    def __init__(self, data: str, most: int) -> None:
        self.data, self.most = data, most
        self.known: dict[tuple[str, int, int], ImageArrays] = {}

    def to(self, one: Run) -> ImageArrays:
        """What the user names, else what the run was trained on, at its size; the sample for CIFAR-10."""
        own = remembered(one.folder) or Source()
        name = self.data or ("sample" if own.data == "cifar10" else own.data)
        key = (name, own.size, own.holdout)
        if key not in self.known:
            if self.data or name == "sample":
                self.known[key] = find_images(name, self.most, size=own.size)
            else:
                self.known[key] = in_memory(find_scored(str(one.folder), "", 0, 0, self.most))
        return self.known[key]


def look_at_dense(
    runs: Sequence[Run], shown: Shown, names: Sequence[str], threads: int, reading: ReadOptions, model: str
) -> Dense:
    """The dense network, prepared for the runtimes `names` and scored in each precision. runs: at least one.

    It is `model` if that is given, else the first of the runs without gates, else what a run began with.
    """
    for one, called, network in _candidates(runs, reading, model):
        if is_gated(network):
            if model:
                raise PenstockError(f"--dense {model}: this network has gates; name one without")
            continue
        try:
            data = shown.to(one)
            settle_preprocess(network, called, data, reading, quiet=not model)
            check_fits(network, data)
        except PenstockError:
            if model:
                raise
            continue  # look_into says it
        x = preprocess_of(network, data)(data.images[:_CALIBRATED])
        found = dense_runtimes(network, x[:1], names, threads, x)
        runtimes = {f"dense, {name}": runtime for name, runtime in found.run.items()}
        (float32,) = score(network, data, ())
        accuracies = {
            name: float32 if runtime.precision == "float32" else score_runtime(runtime, data, network)
            for name, runtime in runtimes.items()
        }
        problems = tuple(f"dense, {name}: {why}" for name, why in found.problems.items())
        return Dense(runtimes, accuracies, float32, problems)
    note = "No network without gates was found, so the plots have no dense lines; --dense MODEL names one."
    return Dense(notes=(note,))


def _candidates(
    runs: Sequence[Run], reading: ReadOptions, model: str
) -> Iterator[tuple[Run, str, nn.Module]]:
    """Networks that may be the dense one, the best first, each with the run whose images it is shown."""
    if model:
        yield runs[0], model, find_model(model, trust=reading)
        return
    for one in runs:
        assert one.checkpoint is not None
        try:
            network = load_trusted(one.checkpoint, reading)
        except PenstockError:
            continue  # look_into says it
        yield one, one.name, network
    for one in runs:
        try:
            start = start_of((remembered(one.folder) or Source()).start)
            if not start:
                continue
            network = find_model(start, trust=reading)
        except PenstockError:
            continue
        yield one, start, network
