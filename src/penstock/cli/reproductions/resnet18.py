"""The paper's ResNet-18 table: gates at d = 1, FBS at 0.7 and 0.6, and Network Slimming."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.reproductions.comparison import Variant, comparison
from penstock.cli.reproductions.plan import Reproduction, Setting, Step, evaluated
from penstock.reporting.tables import Table

_DENSITIES = (1.0, 0.7, 0.6)
_SLIMMED = 1.21


def _steps(setting: Setting) -> tuple[Step, ...]:
    out = setting.out
    dense = out / "resnet18-dense"
    made = [
        dense_step(setting, "resnet18", "resnet18", dense),
        evaluated(setting, "resnet18-dense", dense),
    ]
    for density in _DENSITIES:
        name = f"resnet18-d{100 * density:.0f}"
        made.append(gated_step(setting, name, dense, dense, density))
        made.append(evaluated(setting, name, out / name, density))
    made.append(slimming_step(setting, "resnet18-ns", dense, _SLIMMED))
    made.append(evaluated(setting, "resnet18-ns", out / "resnet18-ns"))
    return tuple(made)


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
        *("--teacher", str(teacher), "--density", f"{density:g}", *_distilled(setting)),
        *("--recipe.epochs", setting.part(0.3)),
    )
    return Step(f"train {name}", words)


def slimming_step(setting: Setting, name: str, start: Path, saving: float) -> Step:
    """Network Slimming of `start` to `saving` times fewer MACs."""
    words = (
        *(
            "prune",
            str(start),
            "--out",
            str(setting.out / name),
            "--saving",
            f"{saving:g}",
            *_shared(setting),
        ),
        *("--teacher", str(start), "--sparsity", "1e-4", "--sparsity-epochs", setting.part(0.1)),
        *("--finetune-epochs", setting.part(0.2), *_distilled(setting)),
    )
    return Step(f"slim {name}", words)


def _shared(setting: Setting) -> tuple[str, ...]:
    return (
        *("--data", setting.data, "--size", str(setting.size), "--holdout", str(setting.holdout)),
        *("--recipe.schedule", "linear", "--recipe.average", "0.996", "--recipe.seed", str(setting.seed)),
        *("--recipe.threads", str(setting.threads)),
    )


def _distilled(setting: Setting) -> tuple[str, ...]:
    return (
        *("--recipe.distill", "0.7", "--recipe.label-smoothing", "0", "--recipe.batch-size", "64"),
        *("--recipe.learning-rate", "0.03", "--recipe.smallest-area", "0.35"),
        *("--recipe.density-schedule", "anneal", "--recipe.anneal-from", "0", "--recipe.anneal-to", "0.4"),
        *("--recipe.image-sizes", setting.grown()),
    )


def _table(setting: Setting) -> Table:
    variants = [
        Variant("ResNet-18, dense", "resnet18-dense", "68.98 top-1"),
        Variant("gates, d = 1", "resnet18-d100", "+1.73"),
        Variant("FBS, d = 0.7", "resnet18-d70", "1.62×"),
        Variant("FBS, d = 0.6", "resnet18-d60", "1.98×, −2.54 from d = 1"),
        Variant("Network Slimming", "resnet18-ns", "1.39×, −1.77"),
    ]
    return comparison(setting, "resnet18-table", variants)


RESNET18_TABLE = Reproduction(
    "resnet18-table", "ResNet-18: gates at d = 1, FBS at d = 0.7 and 0.6, Network Slimming", _steps, _table
)
