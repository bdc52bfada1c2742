"""The paper's first result figure in full: accuracy against MACs, and against milliseconds.

    FBS       gates on the dense network, trained at each of nine densities
    NS        Network Slimming at eight savings
    NS+FBS    gates on one slimmed network, trained at each of six densities
    any       the shipped network for any density, at ten
    budget    densities per layer found for five savings, on the same network
    threshold thresholds fitted to training images for five mean savings, on the same network

Every point is scored on the test part once, in float32 and in int8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from penstock.cli.reproductions.plan import (
    CIFAR_WORDS,
    Defaults,
    Reproduction,
    Setting,
    Step,
    annealed_words,
    data_words,
    distilled_words,
    evaluated,
)
from penstock.cli.reproductions.tradeoff_table import (
    THRESHOLDS,
    Point,
    measure_curves,
    tradeoff_plots,
    tradeoff_table,
)
from penstock.errors import DataError

_NAME = "cifar-tradeoff"
_DENSE, _ANY = "m_cifarnet-cifar10-dense", "m_cifarnet-cifar10-any"
_SERIES = ("fbs", "ns", "ns-fbs", "any", "budget", THRESHOLDS)
_FBS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
_NS = (1.1, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 6.0)
_SLIMMED = 1.19  # the paper's, on which its gates stand
_NS_FBS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
_ANY_AT = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3)
_BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Plan:
    """The points and the steps that make them, as the setting asks."""

    setting: Setting

    def chosen(self) -> tuple[str, ...]:
        """Which series."""
        unknown = [one for one in self.setting.methods if one not in _SERIES]
        if unknown:
            raise DataError(f"--methods: there is no {unknown[0]!r}; there are: {', '.join(_SERIES)}")
        return self.setting.methods or _SERIES

    def seeds(self) -> tuple[int, ...]:
        return self.setting.seeds or (self.setting.seed,)

    def folder(self, what: str, seed: int) -> str:
        """The name of a run's folder and of its files."""
        return f"{_NAME}-{what}-e{self.setting.epochs}-s{seed}"

    def points(self) -> list[Point]:
        """Every point, in the order of the series, whether it is there or not."""
        savings = self.setting.savings
        made = []
        for series in self.chosen():
            if series == "any":
                made += [Point("any", f"d = {d:g}", (f"{_NAME}-any",), _ANY, d) for d in _ANY_AT]
            elif series in ("budget", THRESHOLDS):
                made += [
                    self._point(series, f"{s:g}×", f"{series}-{s:g}x", (0,)) for s in savings or _BUDGETS
                ]
            elif series == "ns":
                made += [self._point("NS", f"{s:g}×", f"ns-{s:g}x", self.seeds()) for s in savings or _NS]
            else:
                densities = _FBS if series == "fbs" else _NS_FBS
                label = "FBS" if series == "fbs" else "NS+FBS"
                made += [
                    self._point(label, f"d = {d:g}", f"{series}-d{100 * d:.0f}", self.seeds())
                    for d in densities
                ]
        return made

    def _point(self, series: str, label: str, what: str, seeds: tuple[int, ...]) -> Point:
        return Point(series, label, tuple(self.folder(what, seed) for seed in seeds))

    def steps(self) -> tuple[Step, ...]:
        """All of them; the cheapest first, the others seed by seed."""
        chosen, setting = self.chosen(), self.setting
        made = [self._scored(f"{_NAME}-dense", self.start())]
        if "any" in chosen:
            made.append(self._scored(f"{_NAME}-any", _ANY, _ANY_AT))
        for series in ("budget", THRESHOLDS):
            if series in chosen:
                for saving in setting.savings or _BUDGETS:
                    made += self._searched(series, saving)
        for seed in self.seeds():
            if "fbs" in chosen:
                for density in _FBS:
                    made += self._gated(f"fbs-d{100 * density:.0f}", self.start(), density, seed)
            if "ns" in chosen:
                for saving in setting.savings or _NS:
                    made += self._slimmed(f"ns-{saving:g}x", saving, seed)
            if "ns-fbs" in chosen:
                made += self._slimmed("slim", _SLIMMED, seed)
                slim = str(setting.out / self.folder("slim", seed))
                for density in _NS_FBS:
                    made += self._gated(f"ns-fbs-d{100 * density:.0f}", slim, density, seed)
        return tuple(made)

    def start(self) -> str:
        return self.setting.dense or _DENSE

    def _scored(self, name: str, model: str, densities: tuple[float, ...] = ()) -> Step:
        """Accuracy in both precisions, into NAME.json."""
        return evaluated(self.setting, name, Path(model), *densities, int8=True)

    def _searched(self, series: str, saving: float) -> list[Step]:
        name = self.folder(f"{series}-{saving:g}x", 0)
        out, setting = str(self.setting.out / name), self.setting
        words = (
            *("search", _ANY, "--saving", f"{saving:g}", "--out", out),
            *data_words(setting),
            *(("--thresholds",) if series == THRESHOLDS else ()),
        )
        found = Step(f"search {name}", words, optional=True)
        return [found, replace(self._scored(name, out), optional=True)]

    def _gated(self, what: str, start: str, density: float, seed: int) -> list[Step]:
        name = self.folder(what, seed)
        out = str(self.setting.out / name)
        words = (
            *("train", start, "--out", out, "--density", f"{density:g}"),
            *(*annealed_words("0.5"), *self._shared(seed)),
        )
        return [Step(f"train {name}", words), self._scored(name, out)]

    def _slimmed(self, what: str, saving: float, seed: int) -> list[Step]:
        name = self.folder(what, seed)
        out = str(self.setting.out / name)
        words = (
            *("prune", self.start(), "--out", out, "--saving", f"{saving:g}", "--sparsity", "3e-4"),
            *("--sparsity-epochs", self.setting.part(0.5), "--finetune-epochs", str(self.setting.epochs)),
            *self._shared(seed),
        )
        return [Step(f"prune {name}", words), self._scored(name, out)]

    def _shared(self, seed: int) -> tuple[str, ...]:
        return (*distilled_words(self.setting, self.start(), seed, "0.03"), *CIFAR_WORDS)


CIFAR_TRADEOFF = Reproduction(
    _NAME,
    "M-CifarNet on CIFAR-10: accuracy against cost, FBS, NS, NS+FBS, any density, budgets, thresholds",
    lambda setting: Plan(setting).steps(),
    lambda setting: tradeoff_table(setting, _NAME, Plan(setting).points()),
    Defaults("cifar10", 32, 3, 5000),
    lambda setting, again: measure_curves(
        setting, _NAME, Plan(setting).start(), Plan(setting).points(), again
    ),
    lambda setting: tradeoff_plots(setting, _NAME, Plan(setting).points()),
)
