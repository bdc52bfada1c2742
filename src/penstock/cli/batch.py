"""penstock batch net.penstock FOLDER --out results.parquet: folders of images classified with Ray Data."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from penstock.errors import InputError, import_extra
from penstock.native import usable_cores


@dataclass(frozen=True)
class Options:
    """Classify folders of images; run the same command again to go on after an interruption."""

    network: Annotated[Path, tyro.conf.Positional]
    """A file that `penstock compile` wrote."""
    source: Annotated[str, tyro.conf.Positional]
    """A folder of images, or an address that Ray Data reads (s3://…)."""
    out: Path
    """A folder for the parquet files."""
    density: float | None = None
    """The share of channels to compute. Default: the network's own."""
    workers: int = 0
    """Processes that classify at the same time; 0 takes one for each core of this machine."""
    address: str = ""
    """The address of a Ray cluster. Default: Ray is started on this machine alone."""
    piece: int = 2000
    """Images in one parquet file. An interrupted run goes on with the first file that is not there."""
    json: bool = False


def run(options: Options) -> int:
    ray = import_extra("ray", "ray")
    import_extra("ray.data", "ray")
    from penstock.serving.batch import classify_all, list_images

    if not options.network.is_file():
        raise InputError(f"{options.network}: there is no such file; `penstock compile` makes one")
    if options.piece < 1 or options.workers < 0:
        raise InputError(
            f"--piece {options.piece}, --workers {options.workers}: expected 1 or more, 0 or more"
        )
    paths = list_images(options.source)
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # else a screenful every ten seconds
    console = Console(markup=False, stderr=True, quiet=options.json, highlight=False)
    workers = options.workers or usable_cores()
    if options.address:
        ray.init(address=options.address)
    else:
        ray.init(
            num_cpus=workers + 1,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",  # a Ray of this machine alone listens to it alone
        )
    try:
        with console.status("classifying") as status:
            done = classify_all(
                options.network,
                paths,
                options.out,
                density=options.density,
                workers=workers,
                piece=options.piece,
                on_piece=lambda now, all: status.update(f"classifying: {now} of {all} pieces"),
            )
    finally:
        ray.shutdown()
    if options.json:
        print(json.dumps({"images": len(paths), "pieces": done, "out": str(options.out)}))
    else:
        print(f"{len(paths):,} images, {done} new parquet files in {options.out}")
    return 0
