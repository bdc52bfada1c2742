"""penstock quantize MODEL --data cifar10: the scales of int8 into a checkpoint, and what int8 loses."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from penstock.cli.calibrating import IMAGES, calibration_images
from penstock.cli.images import ReadOptions, check_fits, in_memory, settle_preprocess
from penstock.cli.models import Model, find_model
from penstock.cli.trainable import find_scored
from penstock.datasets import preprocess_of
from penstock.errors import DataError
from penstock.exporting import save
from penstock.measuring.precision import Precision, weigh_precision
from penstock.quantizing import calibrate
from penstock.reporting.terminal import WholeWords, print_table


@dataclass(frozen=True)
class Options:
    """Calibrate a network for int8, say what each layer loses, and write the scales into a checkpoint."""

    model: Model
    """A run's folder, a checkpoint, or the name of a shipped one."""
    data: str = ""
    """cifar10, imagenette or a folder (calibrated on training images, scored on the test part), or sample
    (1,000 embedded images). Default: what MODEL was trained on, else cifar10."""
    size: int = 0
    """The side to which photographs are scaled. Default: that of the training, else 224."""
    calibration: int = IMAGES
    """Images that are run to find how large values become."""
    images: int = 0
    """The most images to score, equally many of each class; 0 takes all."""
    tolerance: float = 0.2
    """Points of top-1 that int8 may lose; the layers that lose most stay in float32 until it holds."""
    out: Path | None = None
    """Where to write the checkpoint with its scales; without it nothing is written."""
    json: bool = False
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


def run(options: Options) -> int:
    if not options.tolerance >= 0:
        raise DataError(f"--tolerance {options.tolerance}: expected 0 or more points")
    network = find_model(options.model, trust=options.reading)
    data = in_memory(find_scored(options.model, options.data, options.size, 0, options.images))
    chosen = calibration_images(options.model, options.data, options.size, options.calibration, data)
    settle_preprocess(network, options.model, data, options.reading)
    check_fits(network, data)
    prepare = preprocess_of(network, data)
    console = Console(markup=False, stderr=True, quiet=options.json)
    with console.status(f"calibrating on {len(chosen):,} images, scoring {len(data):,}"):
        ranges = calibrate(network, prepare(chosen.images))
        found = weigh_precision(
            network, prepare(data.images), data.labels, ranges, options.tolerance, say=console.log
        )
    if options.out is not None:
        network.ranges = found.ranges  # type: ignore[assignment]
        save(network, options.out)
    if options.json:
        print(json.dumps(asdict(found)))
        return 0
    shown = Console(markup=False, highlight=False, soft_wrap=True)
    print_table(shown, _table(found))
    shown.print(
        f"{options.model} on {found.images:,} images of {data.name}: top-1 {found.float32:.2f}% in float32, "
        f"{found.int8:.2f}% in int8 (loss {found.loss:+.2f} points, tolerance {options.tolerance:g})"
    )
    kept = ", ".join(found.ranges.keep_float)
    shown.print(f"in float32 stay: {kept}" if kept else "no layer needs to stay in float32")
    if options.out is not None:
        shown.print(f"scales written to {options.out}")
    return 0


def _table(found: Precision) -> Table:
    table = WholeWords()
    table.add_column("layer alone in int8")
    table.add_column("images with another class", justify="right")
    for one in found.layers:
        table.add_row(one.layer, f"{one.changed:.2f}%")
    return table
