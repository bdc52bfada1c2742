"""penstock search MODEL --milliseconds 0.6: densities per layer that keep the most accuracy for a budget.

With --thresholds, thresholds per layer instead: images then differ in cost and their mean meets the budget.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from penstock.cli.images import ReadOptions, settle_preprocess
from penstock.cli.models import CHECKPOINT, Model, find_model
from penstock.cli.progress import TrainingDisplay
from penstock.cli.sources import choose, remember
from penstock.cli.trainable import find_data
from penstock.datasets import Images, gather, preprocess_of
from penstock.engine import compile
from penstock.errors import DensityError, TrainingError
from penstock.exporting import save
from penstock.files import write_atomically
from penstock.gating import set_density
from penstock.measuring.densities import least_times
from penstock.reporting.figures import save_figure
from penstock.reporting.figures.search import search_figure
from penstock.reporting.numbers import short_count
from penstock.reporting.tables import Column, Table, figure, to_rich, word
from penstock.reporting.terminal import print_table
from penstock.search import Budget, fit_budget, fit_thresholds
from penstock.training import finetune_recipe, train


@dataclass(frozen=True)
class Options:
    """Densities per layer for a budget; run the same command again to go on after an interruption.

    Give exactly one of --milliseconds, --macs, --saving and --top1-drop.
    """

    model: Model
    """A gated network: a run's folder, a checkpoint, or a shipped one; best trained for any density."""
    milliseconds: float | None = None
    """Of one image, measured on this machine; met within 3%."""
    macs: float | None = None
    """Executed multiply-adds of an image, as in 44e6."""
    saving: float | None = None
    """Times fewer multiply-adds than at density 1."""
    top1_drop: float | None = None
    """Points of accuracy to give away at most; the cheapest densities are looked for."""
    thresholds: bool = False
    """Keep the channels above thresholds instead of a fixed number; with --saving or --macs, which their mean
    over images then meets."""
    cap: float = 0.8
    """With --thresholds: the largest share of a layer's channels that one image may have."""
    finetune: int = 0
    """Epochs of training at the densities that were found, with the network at density 1 as teacher."""
    out: Path | None = None
    """A folder for the network at these densities, budget.json, search.png and the evaluations, by which the
    command resumes."""
    data: str = ""
    """cifar10, imagenette, sample (embedded), or a folder with train/CLASS/*.jpg and val/ or test/. Default:
    what MODEL was trained on, else cifar10."""
    size: int = 0
    """The side to which photographs are scaled. Default: that of MODEL's training, else 224."""
    holdout: int = 5000
    """Training images to choose and to report with, half each; the test part stays untouched."""
    images: int = 4000
    """Images to use at most."""
    low: float = 0.2
    """The lowest density a layer may get."""
    rounds: int = 12
    """Rounds of exchange between layers at most."""
    threads: int = 1
    """Of the engine that is measured."""
    json: bool = False
    """Print the budget as JSON."""
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


FURTHER = ("cap", "low", "rounds", "threads", "images", "holdout")
"""Options on a second page of help."""


def run(options: Options) -> int:
    console = Console(markup=False, stderr=True, quiet=options.json, highlight=False)
    check(options)
    source = choose(options.model, options.data, options.size, options.holdout)
    training, data = find_data(source.data, source.holdout, source.size)
    network = find_model(options.model, trust=options.reading)
    settle_preprocess(network, options.model, data, options.reading)
    if options.thresholds:
        with console.status("fitting thresholds"):
            said = with_thresholds(network, training, data, options)
    else:
        budget = look(network, data, console, options)
        if options.out is not None:
            figure_of = search_figure(budget.losses, budget.densities, budget.uniform)
            save_figure(figure_of, options.out / "search.png")
        said = asdict(budget)
        if options.finetune:
            said["finetuned_top1"] = finetune(network, budget, training, data, options)
        budget.apply(network)
        if not options.json:
            show(budget, said.get("finetuned_top1"), len(data))
    if options.out is not None:
        name = "thresholds.json" if options.thresholds else "budget.json"
        write_atomically(options.out / name, json.dumps(said, indent=2).encode())
        save(network, options.out / CHECKPOINT)
        remember(source, options.out)
        console.print(f"written: {options.out / CHECKPOINT} and {name}")
    if options.json:
        print(json.dumps(said))
    elif options.thresholds:
        print(threshold_words(said))
    return 0


def check(options: Options) -> None:
    """Refuse what does not go together, before anything is read."""
    if options.thresholds and (options.milliseconds or options.top1_drop or options.finetune):
        raise DensityError(
            "--thresholds meets --saving or --macs, and is not fine-tuned: train with "
            f"--recipe.threshold-cap {options.cap:g} instead"
        )
    if options.finetune < 0 or (options.finetune and options.out is None):
        raise TrainingError(
            f"--finetune {options.finetune}: expected a number of epochs, and --out FOLDER to keep the run in"
        )


def look(network: nn.Module, data: Images, console: Console, options: Options) -> Budget:
    """The search, with a bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=options.json) as bar:
        task = bar.add_task("searching", total=None)
        return fit_budget(
            network,
            data,
            milliseconds=options.milliseconds,
            macs=options.macs,
            saving=options.saving,
            top1_drop=options.top1_drop,
            images=options.images,
            low=options.low,
            rounds=options.rounds,
            threads=options.threads,
            log=None if options.out is None else options.out / "evaluations.jsonl",
            say=lambda words: bar.update(task, description=words),
            progress=lambda done, most: bar.update(task, completed=done, total=most),
        )


def finetune(network: nn.Module, budget: Budget, training: Images, data: Images, options: Options) -> float:
    """Train at the densities found, in place; the accuracy on all held-out images, in percent."""
    assert options.out is not None
    teacher = deepcopy(network)
    set_density(teacher, 1.0)
    budget.apply(network)
    recipe = finetune_recipe(options.finetune).replace(
        density=1.0, density_schedule="own", learning_rate=0.01, choice_noise=0.0
    )
    with TrainingDisplay(recipe.epochs, quiet=options.json) as display:
        folder = options.out / "finetune"
        result = train(
            network, training, data, recipe, out=folder, teacher=teacher, on_step=display.step,
            on_epoch=display.epoch,
        )  # fmt: skip
    assert result.score is not None
    return result.score.top1


def with_thresholds(network: nn.Module, training: Images, data: Images, options: Options) -> dict[str, Any]:
    """Fit thresholds to training images, in place, and say what they cost and keep on the held-out ones."""
    found = fit_thresholds(
        network, training, macs=options.macs, saving=options.saving, cap=options.cap, images=options.images
    )
    found.apply(network)
    prepare = preprocess_of(network, data)
    pixels, labels = gather(data, options.images)
    engine = compile(network, prepare(pixels[:1]), threads=options.threads)
    records = [engine.record(prepare(part)) for part in pixels.split(250)]
    macs = np.concatenate([record.macs.sum(axis=1) for record in records])
    answers = np.concatenate([record.outputs.argmax(axis=1) for record in records])
    times = least_times(engine, prepare(pixels[:64]))
    return asdict(found) | {
        "held_out": {
            "images": len(labels),
            "macs": float(macs.mean()),
            "macs_p50": float(np.percentile(macs, 50)),
            "macs_p95": float(np.percentile(macs, 95)),
            "milliseconds_p50": float(np.percentile(times, 50)),
            "milliseconds_p95": float(np.percentile(times, 95)),
            "top1": 100 * float((answers == labels.numpy()).mean()),
        }
    }


def threshold_words(said: dict[str, Any]) -> str:
    """What the thresholds cost and keep, in two lines."""
    held = said["held_out"]
    return (
        f"{short_count(said['macs'])} MACs an image on {said['images']:,} training images "
        f"({said['saving']:.2f}x fewer), {short_count(held['macs'])} on {held['images']:,} held-out ones "
        f"(p50 {short_count(held['macs_p50'])}, p95 {short_count(held['macs_p95'])})\n"
        f"{held['milliseconds_p50']:.3g} ms an image (p50), {held['milliseconds_p95']:.3g} (p95), measured; "
        f"top-1 {held['top1']:.2f}%"
    )


def show(budget: Budget, finetuned: float | None, held_out: int) -> None:
    """The densities, what they cost, and what they keep."""
    rows = tuple((word(name), figure(value, f"{value:.3f}")) for name, value in budget.densities.items())
    columns = (Column("layer", "layer", numeric=False), Column("density", "density"))
    table = Table("densities", "", columns, rows)
    console = Console(markup=False, highlight=False, soft_wrap=True)
    print_table(console, to_rich(table))
    console.print(
        f"{budget.milliseconds:.3g} ms an image (measured), {short_count(budget.macs)} MACs "
        f"({budget.saving:.2f}x fewer)"
    )
    console.print(
        f"top-1 {budget.top1:.2f}% on {budget.reported_on:,} images that no choice saw; "
        f"{budget.full_top1:.2f}% at density 1; {budget.uniform_top1:.2f}% at the uniform density "
        f"{budget.uniform:.3f} of equal cost"
    )
    if finetuned is not None:
        console.print(f"top-1 {finetuned:.2f}% after fine-tuning, on all {held_out:,} held-out images")
