"""penstock search MODEL --milliseconds 0.6: densities per layer that keep the most accuracy for a budget."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from penstock.cli.images import ReadOptions, settle_preprocess
from penstock.cli.models import CHECKPOINT, find_model
from penstock.cli.sources import choose, remember
from penstock.cli.trainable import find_data
from penstock.exporting import save
from penstock.files import write_atomically
from penstock.reporting.figures import save_figure
from penstock.reporting.figures.search import search_figure
from penstock.reporting.numbers import short_count
from penstock.reporting.tables import Column, Table, figure, to_rich, word
from penstock.reporting.terminal import print_table
from penstock.search import Budget, fit_budget


@dataclass(frozen=True)
class Options:
    """Densities per layer for a budget; run the same command again to go on after an interruption.

    Give exactly one of --milliseconds, --macs, --saving and --top1-drop.
    """

    model: Annotated[str, tyro.conf.Positional]
    """A gated network: a run's folder, a checkpoint, or a shipped one; best trained for any density."""
    milliseconds: float | None = None
    """Of one image, measured on this machine; met within 3%."""
    macs: float | None = None
    """Executed multiply-adds of an image, as in 44e6."""
    saving: float | None = None
    """Times fewer multiply-adds than at density 1."""
    top1_drop: float | None = None
    """Points of accuracy to give away at most; the cheapest densities are looked for."""
    out: Path | None = None
    """A folder for the network at these densities, budget.json, search.png and the evaluations, by which the
    command resumes."""
    data: str = ""
    """cifar10, imagenette, sample (embedded), or a folder with train/CLASS/*.jpg and val/ or test/. Default:
    what MODEL was trained on, else cifar10."""
    size: int = 0
    """The side to which photographs are scaled. Default: that of MODEL's training, else 224."""
    holdout: int = 5000
    """So many training images choose and report, half each; the test part stays untouched."""
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


FURTHER = ("low", "rounds", "threads", "images", "holdout")
"""Options on a second page of help."""


def run(options: Options) -> int:
    console = Console(markup=False, stderr=True, quiet=options.json, highlight=False)
    source = choose(options.model, options.data, options.size, options.holdout)
    _, data = find_data(source.data, source.holdout, source.size)
    network = find_model(options.model, trust=options.reading)
    settle_preprocess(network, options.model, data, options.reading)
    with console.status("searching") as status:
        budget = fit_budget(
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
            say=lambda words: status.update(f"searching: {words}"),
        )
    if options.out is not None:
        write_atomically(options.out / "budget.json", json.dumps(asdict(budget), indent=2).encode())
        budget.apply(network)
        save(network, options.out / CHECKPOINT)
        remember(source, options.out)
        save_figure(
            search_figure(budget.losses, budget.densities, budget.uniform), options.out / "search.png"
        )
    if options.json:
        print(json.dumps(asdict(budget)))
    else:
        show(budget, options)
    return 0


def show(budget: Budget, options: Options) -> None:
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
    if options.out is not None:
        console.print(f"written: {options.out / CHECKPOINT}, budget.json and search.png")
