"""penstock demo: the embedded sample, the shipped checkpoint, what it keeps and costs, a report.

Nothing is fetched. Until a checkpoint is shipped, a network trained here for half a minute stands in, and the
output says so.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from penstock import __version__, zoo
from penstock.cli.evaluate import preprocess_of, score
from penstock.cli.images import find_images
from penstock.cli.report import Cost, cost_tables
from penstock.datasets import ImageArrays, hold_out
from penstock.gating import gated_layers, set_density
from penstock.reporting import (
    Card,
    Run,
    Sweep,
    SweepPoint,
    build_page,
    describe_network,
    skip_maps,
    write_page,
)
from penstock.reporting.build import PointCost
from penstock.reporting.comparison import Accuracy, agreement_words, comparison_table
from penstock.reporting.measuring import Measured, measure, whole_account
from penstock.reporting.numbers import milliseconds, times
from penstock.reporting.runtimes import dense_runtimes
from penstock.reporting.tables import to_json, to_rich
from penstock.surgery import add_gates
from penstock.training import Recipe, train
from penstock.zoo.pretrained import available, pretrained

_GATED, _DENSE = "m_cifarnet-cifar10-any", "m_cifarnet-cifar10-dense"
_SHOWN = 0.5  # the density whose heat maps the report shows
_COUNTED = 32  # images whose masks are counted and which are timed


@dataclass(frozen=True)
class Options:
    """Show what Penstock does, on this machine, in a minute or two; needs no internet."""

    out: Path = Path("penstock-demo.html")
    """Where the report goes."""
    densities: tuple[float, ...] = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3)
    images: int = 0
    """Show so many images of the sample only; 0 takes all 1,000."""
    threads: int = 1
    """Threads for the measured milliseconds, the same for every runtime."""
    seconds: float = 8.0
    """How long to measure; longer is steadier."""
    training_seconds: float = 40.0
    """How long to train, where no checkpoint is shipped."""
    json: bool = False


@dataclass(frozen=True)
class Networks:
    """The gated network, the dense one it is compared with, and the images neither was trained on."""

    gated: nn.Module
    dense: nn.Module
    images: ImageArrays
    origin: str


def run(options: Options) -> int:
    begin = time.perf_counter()
    console = Console(stderr=True, quiet=options.json)
    with console.status("loading"):
        networks = find_networks(options, console)
        data = networks.images
        console.log("scoring")
        accuracies = score(networks.gated, data, options.densities)
        (dense,) = score(networks.dense, data, ())
        console.log("measuring")
        x = preprocess_of(networks.gated)(data.images[:_COUNTED])
        runtimes = dense_runtimes(networks.dense, x[:1], threads=options.threads)
        measured = measure(
            networks.gated,
            x,
            options.densities,
            threads=options.threads,
            rivals={f"dense, {name}": run for name, run in runtimes.run.items()},
            seconds=options.seconds,
        )
        console.log("drawing the report")
        out = write_report(options, networks, accuracies, dense, measured)
    table = comparison_table(measured, accuracies, dense=dense)
    seconds = time.perf_counter() - begin
    problems = {f"dense, {name}": why for name, why in runtimes.problems.items()}
    if options.json:
        said = {"network": networks.origin, "images": len(data), "rows": to_json(table), "report": str(out)}
        said |= {"without_engine": measured.without_engine or None, "problems": problems}
        said |= {"busy": measured.busy or None, "seconds": seconds}
        print(json.dumps(said))
        return 0
    shown = Console(highlight=False, soft_wrap=True)
    shown.print(f"{networks.origin}; accuracy on {len(data):,} images of {data.name}")
    shown.print(to_rich(table), soft_wrap=False)
    shown.print(agreement_words(measured.rows) or f"No engine: {measured.without_engine}.")
    for name, why in problems.items():
        shown.print(f"{name}: {why}")
    if measured.busy:
        shown.print(measured.busy)
    shown.print(f"Report, after {seconds:.0f} s:")
    print(out.resolve())
    return 0


def find_networks(options: Options, console: Console) -> Networks:
    """The shipped checkpoints, or a stand-in trained here."""
    data = find_images("sample", options.images)
    if {_GATED, _DENSE} <= set(available()):
        return Networks(pretrained(_GATED), pretrained(_DENSE), data, f"The shipped checkpoint {_GATED}")
    console.log("no checkpoint is shipped yet: training a small stand-in on the sample")
    rest, held = hold_out(data, len(data) // 5)
    dense, gated = train_stand_in(rest, options.training_seconds)
    origin = (
        f"No checkpoint is shipped yet: a stand-in, trained here for about {options.training_seconds:.0f} s "
        f"on {len(rest)} images (its accuracy means little; its cost is real)"
    )
    return Networks(gated, dense, held, origin)


def train_stand_in(data: ImageArrays, seconds: float) -> tuple[nn.Module, nn.Module]:
    """A dense M-CifarNet and a gated one that started from it, in about `seconds` together."""
    torch.manual_seed(0)
    dense = zoo.m_cifarnet()
    common = {"batch_size": 64, "learning_rate": 0.02, "image_sizes": "0:16,0.5:32", "label_smoothing": 0.0}
    begin = time.perf_counter()
    train(dense, data, None, Recipe(epochs=1, **common))  # type: ignore[arg-type]
    epoch = time.perf_counter() - begin
    epochs = max(1, min(12, int((seconds - epoch) / (2.5 * epoch))))
    train(dense, data, None, Recipe(epochs=epochs, **common))  # type: ignore[arg-type]
    gated = add_gates(dense, torch.zeros(1, 3, 32, 32))
    for _, gate in gated_layers(gated):
        nn.init.normal_(gate.gate.weight, std=0.01)  # so that images differ from the first
    train(gated, data, None, Recipe(epochs=epochs, density_schedule="any", **common))  # type: ignore[arg-type]
    return dense.eval(), gated.eval()


def write_report(
    options: Options, networks: Networks, accuracies: list[Accuracy], dense: Accuracy, measured: Measured
) -> Path:
    """The page: the curve just measured, the network's heat maps and what excites it, the two cost tables."""
    data, gated = networks.images, networks.gated
    chosen = min(measured.rows, key=lambda row: abs((row.density or 1.0) - _SHOWN))
    set_density(gated, chosen.density or 1.0)
    maps = tuple(skip_maps(gated, data))
    points = tuple(
        SweepPoint(score.top1, row.paper.macs, row.executed.macs, score.top5, row.density)
        for row, score in zip(measured.rows, accuracies, strict=True)
    )
    whole = float(chosen.paper.original_macs)
    sweep = Sweep("FBS", points, SweepPoint(dense.top1, whole, whole, dense.top5), "m_cifarnet", data.name)
    image = preprocess_of(gated)(data.images[:1])
    layers, memory = cost_tables({"FBS": Cost(chosen, maps, whole_account(gated, image))})
    table = comparison_table(measured, accuracies, dense=dense)
    page = build_page(
        [Run("demo", Path(), sweep=sweep)],
        title="Penstock on this machine",
        lead=f"{networks.origin}. Accuracy on {len(data):,} images of {data.name}.",
        notes=[note for note in (measured.without_engine, measured.busy) if note],
        cards=speed_cards(measured),
        layer_costs=layers,
        memory=memory,
        networks=[describe_network("M-CifarNet", gated, data, maps, measured=table)],
        costs=[
            PointCost("demo", row.density, row.executed.macs, row.time, row is chosen)
            for row in measured.rows
        ],
        footer=f"Made by penstock demo {__version__} with PyTorch {torch.__version__}.",
    )
    return write_page(page, options.out)


def speed_cards(measured: Measured) -> list[Card]:
    """The fastest dense runtime, and how much faster the engine is at the density shown."""
    timed = [row for row in measured.rows if row.time is not None]
    if not timed or not measured.rivals or measured.busy:  # a number on top must be one to rely on
        return []
    name, rival = min(measured.rivals.items(), key=lambda item: item[1].least)
    row = min(timed, key=lambda one: abs((one.density or 1.0) - _SHOWN))
    assert row.time is not None
    detail = f"{milliseconds(row.time.least)} instead of {milliseconds(rival.least)} ({name})"
    return [
        Card(f"Measured at d = {row.density:g}", times(rival.least / row.time.least), f"faster: {detail}")
    ]
