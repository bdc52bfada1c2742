"""penstock demo: the embedded sample, the shipped checkpoint, what it keeps and costs, a report.

Nothing is fetched. The dense network runs beside it in the runtimes that are installed, in float32, as
OpenVINO installs and in int8. Times that other work disturbed are shown but not compared.
"""

from __future__ import annotations

import importlib.util
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from penstock import __version__
from penstock.cli.images import find_images
from penstock.cli.scoring import score, score_runtime
from penstock.datasets import ImageArrays, preprocess_of
from penstock.gating import set_density
from penstock.measuring.densities import Measured, measure, whole_account
from penstock.measuring.machine import machine_words
from penstock.measuring.runtimes import dense_runtimes, runtime_names
from penstock.measuring.timing import ratio
from penstock.quantizing import calibrate
from penstock.reporting import (
    Card,
    Run,
    build_page,
    describe_network,
    skip_maps,
    write_page,
)
from penstock.reporting.build import PointCost
from penstock.reporting.comparison import Accuracy, agreement_words, comparison_table
from penstock.reporting.looked import Cost, TimedNetwork, cost_tables, latency_of, measured_curve
from penstock.reporting.numbers import milliseconds, times
from penstock.reporting.tables import Table, to_json, to_rich
from penstock.reporting.terminal import print_table
from penstock.zoo.pretrained import pretrained

_GATED, _DENSE = "m_cifarnet-cifar10-any", "m_cifarnet-cifar10-dense"
_SHOWN = 0.5  # the density whose heat maps the report shows
_PATIENCE = 1.5  # times --seconds on a busy machine, where more would hardly help
_PICTURED = 400  # images whose skipped channels and maxima the report draws
_COUNTED = 32  # images whose masks are counted, which are timed, and which calibrate int8


@dataclass(frozen=True)
class Options:
    """Show what Penstock does, on this machine, in a minute or two; needs no internet."""

    out: Path = Path("penstock-demo.html")
    """Where the report goes."""
    densities: tuple[float, ...] = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3)
    images: int = 0
    """The images of the sample to show; 0 takes all 1,000."""
    against: str = "torch,onnxruntime,openvino,int8"
    """Runtimes for the dense network, as in penstock bench."""
    threads: int = 1
    """Threads for the measured milliseconds, the same for every runtime."""
    seconds: float = 6.0
    """How long to measure; longer is steadier."""
    json: bool = False


@dataclass(frozen=True)
class Networks:
    """The gated network, the dense one it is compared with, and the images neither was trained on."""

    gated: nn.Module
    dense: nn.Module
    images: ImageArrays
    origin: str


@dataclass(frozen=True)
class Scores:
    """Accuracy at each density, in float32 and int8; of the dense network, and of it in int8, by runtime."""

    gated: list[Accuracy]
    gated_int8: list[Accuracy]
    dense: Accuracy
    int8: dict[str, Accuracy]


def run(options: Options) -> int:
    begin = time.perf_counter()
    console = Console(markup=False, stderr=True, quiet=options.json)
    with console.status("loading"):
        data = find_images("sample", options.images)
        origin = f"The shipped checkpoint {_GATED}"
        networks = Networks(pretrained(_GATED), pretrained(_DENSE), data, origin)
        console.log("scoring")
        accuracies = score(networks.gated, data, options.densities)
        x = preprocess_of(networks.gated, data)(data.images[:_COUNTED])
        ranges = calibrate(networks.gated, x)
        in_int8 = score(networks.gated, data, options.densities, ranges=ranges)
        (dense,) = score(networks.dense, data, ())
        console.log("the dense network in other runtimes")
        runtimes = dense_runtimes(networks.dense, x[:1], runtime_names(options.against), options.threads, x)
        int8 = {
            f"dense, {name}": score_runtime(one, data, networks.dense)
            for name, one in runtimes.run.items()
            if one.precision == "int8"
        }
        console.log("measuring")
        measured = measure(
            networks.gated,
            x,
            options.densities,
            threads=options.threads,
            rivals={f"dense, {name}": one for name, one in runtimes.run.items()},
            seconds=options.seconds,
            patience=_PATIENCE,
            ranges=ranges,
        )
        table = comparison_table(measured, accuracies, dense=dense, rivals=int8, int8=in_int8)
        console.log("drawing the report")
        out = write_report(options, networks, Scores(accuracies, in_int8, dense, int8), measured, table)
    seconds = time.perf_counter() - begin
    problems = {f"dense, {name}": why for name, why in runtimes.problems.items()}
    if options.json:
        said = {"network": networks.origin, "images": len(data), "rows": to_json(table), "report": str(out)}
        said |= {"without_engine": measured.without_engine or None, "problems": problems}
        said |= {"busy": measured.busy or None, "unsteady": measured.unsteady or None, "seconds": seconds}
        print(json.dumps(said))
        return 0
    shown = Console(markup=False, highlight=False, soft_wrap=True)
    shown.print(f"{networks.origin}; accuracy on {len(data):,} images of {data.name}")
    print_table(shown, to_rich(table))
    shown.print(agreement_words(measured.rows) or f"No engine: {measured.without_engine}.")
    for name, why in problems.items():
        shown.print(f"{name}: {why}")
    for warning in (measured.busy, measured.unsteady):
        if warning:
            shown.print(warning)
    shown.print(serving_words())
    shown.print(f"Report, after {seconds:.0f} s:")
    print(out.resolve())
    return 0


def serving_words() -> str:
    """How to see the same network serve, and what to install for it if that is missing."""
    words = "Serve this network, and drop images on its page: penstock serve --demo"
    if importlib.util.find_spec("uvicorn") and importlib.util.find_spec("starlette"):
        return words
    return f"{words} (first: python -m pip install 'penstock[serve]')"


def write_report(
    options: Options, networks: Networks, scores: Scores, measured: Measured, table: Table
) -> Path:
    """The page: the curve just measured, the network's heat maps and what excites it, the two cost tables."""
    data, gated = networks.images, networks.gated
    chosen = min(measured.rows, key=lambda row: abs((row.density or 1.0) - _SHOWN))
    set_density(gated, chosen.density or 1.0)
    pictured = data.take(torch.arange(min(_PICTURED, len(data))))
    maps = tuple(skip_maps(gated, pictured))
    timed = TimedNetwork("gated", scores.gated, measured, scores.gated_int8)
    sweep = measured_curve(timed, scores.dense, "FBS")
    image = preprocess_of(gated, data)(data.images[:1])
    layers, memory = cost_tables({"FBS": Cost(chosen, maps, whole_account(gated, image))})
    page = build_page(
        [Run("demo", Path(), sweep=sweep)],
        title="Penstock on this machine",
        lead=f"{networks.origin}. Accuracy on {len(data):,} images of {data.name}.",
        notes=[note for note in (measured.without_engine, measured.busy, measured.unsteady) if note],
        cards=speed_cards(measured),
        layer_costs=layers,
        memory=memory,
        networks=[describe_network("M-CifarNet", gated, pictured, maps, measured=table)],
        costs=[
            PointCost("demo", row.density, row.executed.macs, row.time, row is chosen)
            for row in measured.rows
        ],
        latency=latency_of(
            [timed],
            {name: scores.int8.get(name, scores.dense) for name in measured.rivals},
            f"{len(data):,} images of {data.name}",
        ),
        machine=machine_words(measured.isa),
        footer=f"Made by penstock demo {__version__} with PyTorch {torch.__version__}.",
    )
    return write_page(page, options.out)


def speed_cards(measured: Measured) -> list[Card]:
    """How much faster the engine is than the fastest dense float32 runtime, where both times are steady."""
    timed = [row for row in measured.rows if row.time is not None]
    fastest = measured.fastest_rival()
    if not timed or fastest is None:
        return []
    name, rival = fastest
    row = min(timed, key=lambda one: abs((one.density or 1.0) - _SHOWN))
    faster = ratio(rival.time, row.time)
    if faster is None or row.time is None:  # a number on top must be one to rely on
        return []
    detail = f"{milliseconds(row.time.least)} instead of {milliseconds(rival.time.least)} ({name})"
    return [Card(f"Measured at d = {row.density:g}", times(faster), f"faster: {detail}")]
