"""The paper's ResNet-18 table: gates at d = 1, FBS at 0.7, 0.6 (with two seeds) and 0.5, Network Slimming,
and one network for any density. Times are of trained winners, at 224 pixels, beside the dense runtimes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.cli.reproductions.comparison import LARGE, Variant, comparison, timing_steps, tradeoff
from penstock.cli.reproductions.plan import (
    Reproduction,
    Setting,
    Step,
    annealed_words,
    data_words,
    evaluated,
)

# Name, density, and what is added to the seed.
_GATED = (("d100", 1.0, 0), ("d70", 0.7, 0), ("d60", 0.6, 0), ("d60-again", 0.6, 1), ("d50", 0.5, 0))
_SLIMMED = 1.21
_ANY = "resnet18-any"
_ANY_AT = (1.0, 0.7, 0.6, 0.5)
_LEVELS = "0.5,0.6,0.7,1.0"


def _steps(setting: Setting) -> tuple[Step, ...]:
    out = setting.out
    dense = Path(setting.dense) if setting.dense else out / "resnet18-dense"
    made = [] if setting.dense else [dense_step(setting, "resnet18", "resnet18", dense)]
    made += _scores(setting, "resnet18-dense", dense)
    for what, density, further in _GATED:
        name = f"resnet18-{what}"
        again = replace(setting, seed=setting.seed + further)
        made.append(gated_step(again, name, dense, dense, density))
        made += _scores(setting, name, out / name, density)
    for saving in _savings(setting):
        name = _slimmed(saving)
        made.append(slimming_step(setting, name, dense, saving))
        made += _scores(setting, name, out / name)
    made.append(any_step(setting, _ANY, dense))
    made += _scores(setting, _ANY, out / _ANY, *_ANY_AT)
    for name, densities in (("resnet18-d70", (0.7,)), ("resnet18-d60", (0.6,)), (_ANY, _ANY_AT)):
        made += timing_steps(setting, name, densities)
    return tuple(made)


def _savings(setting: Setting) -> tuple[float, ...]:
    """Of Network Slimming."""
    return setting.savings or (_SLIMMED,)


def _slimmed(saving: float) -> str:
    return f"resnet18-ns-{saving:g}x"


def _scores(setting: Setting, name: str, model: Path, *densities: float) -> list[Step]:
    """At the size that choices were made at, and at the paper's."""
    return [
        evaluated(setting, name, model, *densities),
        evaluated(setting, f"{name}-{LARGE}", model, *densities, size=LARGE),
    ]


def dense_step(setting: Setting, name: str, model: str, out: Path) -> Step:
    """The dense network from `model`."""
    words = (
        *("train", model, "--out", str(out), *_shared(setting)),
        *("--recipe.epochs", str(setting.epochs), "--recipe.batch-size", "64"),
        *("--recipe.learning-rate", "0.1", "--recipe.smallest-area", "0.35"),
        *("--recipe.image-sizes", setting.growing()),
    )
    return Step(f"train {name}", words)


def gated_step(setting: Setting, name: str, start: Path, teacher: Path, density: float) -> Step:
    """Gates on `start`, trained down to `density` and distilled from `teacher`."""
    words = (
        *("train", str(start), "--out", str(setting.out / name), *_shared(setting)),
        # With one seed all densities see the same images, so the teacher is asked once.
        *("--teacher", str(teacher), "--lessons", str(setting.out / "lessons")),
        *("--density", f"{density:g}", *_distilled(setting)),
        *(*annealed_words("0.4"), "--recipe.choice-noise", "0.3", "--recipe.epochs", setting.part(0.3)),
    )
    return Step(f"train {name}", words)


def any_step(setting: Setting, name: str, start: Path) -> Step:
    """Gates on `start` for any density down to a half, with norms of their own at four densities."""
    words = (
        *("train", str(start), "--out", str(setting.out / name), *_shared(setting)),
        *("--teacher", str(start), *_distilled(setting)),
        *("--recipe.density-schedule", "any", "--recipe.any-low", "0.45", "--recipe.any-levels", _LEVELS),
        *("--recipe.any-near", "0.25", "--recipe.anneal-from", "0", "--recipe.anneal-to", "0.2"),
        *("--recipe.statistics", "winners", "--recipe.epochs", setting.part(0.3)),
    )
    return Step(f"train {name}", words)


def slimming_step(setting: Setting, name: str, start: Path, saving: float) -> Step:
    """Network Slimming of `start` to `saving` times fewer MACs."""
    words = (
        *("prune", str(start), "--out", str(setting.out / name), "--saving", f"{saving:g}"),
        *_shared(setting),
        *("--teacher", str(start), "--sparsity", "1e-4", "--sparsity-epochs", setting.part(0.1)),
        *("--finetune-epochs", setting.part(0.2), *_distilled(setting)),
    )
    return Step(f"slim {name}", words)


def _shared(setting: Setting) -> tuple[str, ...]:
    return (
        *data_words(setting),
        *("--recipe.schedule", "linear", "--recipe.average", "0.998", "--recipe.seed", str(setting.seed)),
        *("--recipe.threads", str(setting.threads)),
    )


def _distilled(setting: Setting) -> tuple[str, ...]:
    return (
        *("--recipe.distill", "0.7", "--recipe.label-smoothing", "0", "--recipe.batch-size", "64"),
        *("--recipe.learning-rate", "0.03", "--recipe.smallest-area", "0.35"),
        *("--recipe.image-sizes", setting.grown()),
    )


def _variants(setting: Setting) -> list[Variant]:
    said = "1.98×, −2.54 from d = 1"
    return [
        Variant("ResNet-18, dense", "resnet18-dense", "68.98 top-1"),
        Variant("gates, d = 1", "resnet18-d100", "+1.73", 1.0, series="FBS"),
        Variant("FBS, d = 0.7", "resnet18-d70", "1.62×", 0.7, "resnet18-d70", "FBS"),
        Variant("FBS, d = 0.6", "resnet18-d60", said, 0.6, "resnet18-d60", "FBS"),
        Variant("FBS, d = 0.6, another seed", "resnet18-d60-again", said, 0.6, series="FBS"),
        Variant("FBS, d = 0.5", "resnet18-d50", "–", 0.5, series="FBS"),
        *(
            Variant(f"Network Slimming, {saving:g}×", _slimmed(saving), "1.39×, −1.77", series="NS")
            for saving in _savings(setting)
        ),
        *(Variant(f"any density, d = {one:g}", _ANY, "–", one, _ANY, "any density") for one in _ANY_AT),
    ]


RESNET18_TABLE = Reproduction(
    "resnet18-table",
    "ResNet-18: gates at d = 1, FBS at d = 0.7 and 0.6, Network Slimming, any density; accuracy and times",
    _steps,
    lambda setting: comparison(setting, "resnet18-table", _variants(setting), _ANY),
    plots=lambda setting: tradeoff(setting, "resnet18-table", _variants(setting)),
)
