"""penstock evaluate RUN_OR_CHECKPOINT --density 0.5,0.7: accuracy, MACs, measured milliseconds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import tyro
from rich.console import Console

from penstock.cli.calibrating import Shown, ranges_for
from penstock.cli.images import ReadOptions, check_fits, first_images, preprocess_json, settle_preprocess
from penstock.cli.models import Model, find_model
from penstock.cli.scoring import parse_densities, score
from penstock.cli.trainable import find_scored
from penstock.datasets import Images, preprocess_of
from penstock.measuring.densities import Measured, measure
from penstock.reporting.comparison import agreement_words, comparison_table
from penstock.reporting.tables import to_json, to_rich
from penstock.reporting.terminal import print_table

_COUNTED = 64  # images whose masks are counted, which are timed, and on which engine and PyTorch are compared


@dataclass(frozen=True)
class Options:
    """Score a network: accuracy, MACs by both conventions, and milliseconds measured through the engine."""

    model: Model
    """A run's folder, a checkpoint, or the name of a shipped one."""
    data: str = ""
    """cifar10 or imagenette (their test parts), sample (1,000 embedded images), or a folder with
    val/CLASS/*.jpg. Default: what MODEL was trained on, else cifar10."""
    size: int = 0
    """The side to which photographs are scaled. Default: that of the training, else 224."""
    images: int = 0
    """The most images to score, equally many of each class; 0 takes all."""
    holdout: int = 0
    """Score the training images that `penstock train --holdout` left out: for choosing, before the test."""
    density: str = ""
    """Densities, as in 0.5,0.7; without any, the network's own."""
    precision: Shown = "auto"
    """int8 shows float32 and int8 side by side. Scales that the checkpoint does not hold (penstock quantize)
    are taken from training images. auto: int8 as well if the checkpoint holds scales."""
    engine: bool = True
    """--no-engine scores with PyTorch and measures no time."""
    threads: int = 1
    """Threads for the measured milliseconds."""
    seconds: float = 6.0
    """How long to measure; longer is steadier."""
    json: bool = False
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


def run(options: Options) -> int:
    densities = parse_densities(options.density)
    network = find_model(options.model, trust=options.reading)
    data = find_scored(options.model, options.data, options.size, options.holdout, options.images)
    assumed = settle_preprocess(network, options.model, data, options.reading)
    check_fits(network, data)
    console = Console(markup=False, stderr=True, quiet=options.json)
    with console.status(f"scoring {len(data):,} images"):
        scores = score(network, data, densities, engine=options.engine, say=console.log)
        ranges = None
        if options.engine:
            ranges = ranges_for(network, options.precision, options.model, options.data, options.size, data)
        int8 = [] if ranges is None else score(network, data, densities, say=console.log, ranges=ranges)
        prepare = preprocess_of(network, data)
        measured = measure(
            network,
            prepare(first_images(data, _COUNTED)),
            densities,
            engine=options.engine,
            threads=options.threads,
            seconds=options.seconds,
            ranges=ranges,
        )
    table = comparison_table(measured, scores, int8=int8)
    if options.json:
        said = as_json(options, data, measured, to_json(table))
        print(json.dumps(said | preprocess_json(prepare, assumed)))
        return 0
    shown = Console(markup=False, highlight=False, soft_wrap=True)
    shown.print(f"{options.model} on {len(data):,} images of {data.name}")
    print_table(shown, to_rich(table))
    shown.print(agreement_words(measured.rows) or f"No milliseconds: {measured.without_engine}.")
    for note in (measured.without_int8 and f"No int8: {measured.without_int8}", measured.busy):
        if note:
            shown.print(note)
    return 0


def as_json(options: Options, data: Images, measured: Measured, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything the table says, and how it was measured."""
    floats = (row for row in rows if row["precision"] == "float32")
    for row, cost in zip(floats, measured.rows, strict=False):
        if cost.agreement is not None:
            row["agreement"] = {
                "images": cost.agreement.images,
                "same_class": cost.agreement.same,
                "largest_difference": cost.agreement.difference,
            }
    return {
        "model": options.model,
        "data": data.name,
        "images": len(data),
        "threads": measured.threads,
        "instruction_set": measured.isa or None,
        "without_engine": measured.without_engine or None,
        "without_int8": measured.without_int8 or None,
        "busy": measured.busy or None,
        "rows": rows,
    }
