"""penstock sweep runs/x --densities 1.0,0.9,0.8: the paper's sweep, one accuracy/cost curve.

Each density is fine-tuned from the one before (`--epochs`), or, for a network trained for any density, only
scored (`--epochs 0`). The folder then holds `curve.json` and a run for each density; the same command goes on
where it stopped.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from torch import nn

from penstock.accounting import account
from penstock.cli.images import ReadOptions, first_images
from penstock.cli.keeping import prepare_process, train_and_keep
from penstock.cli.models import CHECKPOINT, Model
from penstock.cli.progress import TrainingDisplay
from penstock.cli.recipes import SweepRecipe, plain_recipe
from penstock.cli.scoring import parse_densities
from penstock.cli.sources import choose
from penstock.cli.trainable import example_of, find_start, find_teacher
from penstock.datasets import Images, preprocess_of
from penstock.errors import DensityError, TrainingError
from penstock.files import write_atomically
from penstock.gating import is_gated, set_density
from penstock.reporting.terminal import WholeWords, print_table
from penstock.surgery import add_gates
from penstock.training import Score, evaluate

_COUNTED = 500  # images whose masks are counted


@dataclass(frozen=True)
class Options:
    """One accuracy/cost curve over densities; run the same command again to go on."""

    model: Model
    """A run's folder, a checkpoint, or a zoo name; without gates it gets some."""
    densities: str = "1.0,0.9,0.8,0.7,0.6,0.5,0.4,0.3"
    """In the order in which they are trained, each from the one before."""
    out: Path | None = None
    """The sweep's folder. Default: sweep/ below the run's."""
    epochs: int = 5
    """Epochs of fine-tuning at each density; 0 scores a network trained for any density as it is."""
    data: str = ""
    """cifar10, imagenette, sample (embedded), or a folder with train/CLASS/*.jpg and val/ or test/. Default:
    what MODEL was trained on, else cifar10."""
    size: int = 0
    """The side to which photographs are scaled. Default: that of MODEL's training, else 224."""
    holdout: int = 0
    """Training images to hold out and score on, instead of the test part."""
    teacher: str = ""
    """A network to distil from (MODEL syntax); needs --recipe.distill."""
    json: bool = False
    """Print the curve as JSON."""
    recipe: SweepRecipe = field(default_factory=lambda: SweepRecipe(learning_rate=0.02))
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


def run(options: Options) -> int:
    recipe = prepare_process(plain_recipe(options.recipe))
    densities = parse_densities(options.densities, "--densities")
    if not densities:
        raise DensityError("--densities: expected at least one, as in 1.0,0.9,0.8")
    out = options.out or (Path(options.model) / "sweep" if Path(options.model).is_dir() else None)
    if out is None:
        raise TrainingError(f"--out: MODEL {options.model!r} is no run's folder, so say where the sweep goes")
    if options.epochs < 0:
        raise TrainingError(f"--epochs: expected 0 or more, got {options.epochs}")
    source = choose(options.model, options.data, options.size, options.holdout)
    train_data, test_data, network = find_start(options.model, source, recipe.seed, options.reading)
    teacher = find_teacher(options.teacher, network, None, options.reading)
    lessons = out / "lessons" if teacher is not None else None  # every density sees the same batches
    curve: dict[str, Any] = {
        "version": 1,
        "method": "FBS",
        "network": options.model,
        "data": test_data.name,
        "baseline": None,
        "points": [],
    }
    if not is_gated(network):
        if options.epochs == 0:
            raise TrainingError(
                f"MODEL {options.model!r} has no gates, so --epochs 0 would score untrained ones"
            )
        curve["baseline"] = point(network, test_data, evaluate(network, test_data), None, None)
        curve["baseline"]["macs"] = curve["baseline"]["macs_paper"]
        network = add_gates(network, example_of(network, train_data))
    for density in densities:
        if options.epochs:
            folder = out / f"d{round(100 * density):02d}"
            step = replace(recipe, epochs=options.epochs, density=density)
            network = deepcopy(network)
            with TrainingDisplay(step.epochs, title=f"d {density:g}", quiet=options.json) as display:
                result = train_and_keep(
                    network, train_data, test_data, step, folder, source, display, teacher, lessons=lessons
                )
            assert result.score is not None
            score, checkpoint = result.score, f"{folder.name}/{CHECKPOINT}"
        else:
            set_density(network, density)
            score, checkpoint = evaluate(network, test_data), None
        curve["points"].append(point(network, test_data, score, density, checkpoint))
        write_atomically(out / "curve.json", json.dumps(curve, indent=2).encode())
    if options.json:
        print(json.dumps(curve))
    else:
        show(curve, out)
    return 0


def point(
    network: nn.Module, data: Images, score: Score, density: float | None, checkpoint: str | None
) -> dict[str, Any]:
    """One setting: accuracy, and MACs by both conventions."""
    prepare = preprocess_of(network, data)
    images = prepare(first_images(data, _COUNTED))
    return {
        "density": density,
        "ratio": None,
        "top1": score.top1,
        "top5": score.top5,
        "macs_paper": account(network, images[:1], "paper").macs,
        "macs_executed": account(network, images, "executed").macs,
        "checkpoint": checkpoint,
    }


def show(curve: dict[str, Any], out: Path) -> None:
    """The curve as a table."""
    table = WholeWords(title=f"{curve['network']} on {curve['data']}")
    for heading in ("density", "top-1", "top-5", "MACs (paper)", "MACs (executed)"):
        table.add_column(heading, justify="right")
    for one in [*filter(None, [curve["baseline"]]), *curve["points"]]:
        density = "no gates" if one["density"] is None else f"{one['density']:g}"
        macs = (f"{one[key]:,.0f}" for key in ("macs_paper", "macs_executed"))
        table.add_row(density, f"{one['top1']:.2f}%", f"{one['top5']:.2f}%", *macs)
    console = Console(markup=False)
    print_table(console, table)
    console.print(f"curve: {out / 'curve.json'}", highlight=False)
