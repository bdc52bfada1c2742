"""penstock report runs/ --out report.html: one self-contained page about every run below a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from penstock import __version__
from penstock.cli.images import ReadOptions, check_fits, settle_preprocess
from penstock.cli.models import load_trusted
from penstock.cli.report_dense import Dense, Shown, look_at_dense
from penstock.cli.scoring import score
from penstock.datasets import ImageArrays, preprocess_of
from penstock.errors import PenstockError
from penstock.gating import gated_layers
from penstock.measuring.densities import least_times, measure, try_compile, whole_account
from penstock.measuring.machine import machine_words
from penstock.measuring.runtimes import runtime_names
from penstock.quantizing import calibrate
from penstock.reporting import (
    Run,
    build_page,
    describe_network,
    read_history,
    read_runs,
    skip_maps,
    write_page,
)
from penstock.reporting.build import PointCost
from penstock.reporting.comparison import comparison_table
from penstock.reporting.looked import Cost, TimedNetwork, cost_tables, latency_of, measured_curve
from penstock.reporting.page import NetworkPart
from penstock.reporting.reproduced import read_reproduced
from penstock.reporting.skipping import SkipMap
from penstock.reporting.spread import Array

_COUNTED = 64  # images whose masks are counted and which are timed


@dataclass(frozen=True)
class Options:
    """Make one HTML page of all runs below a folder; it needs no network and no other file."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that holds the runs, or one run."""
    out: Path = Path("report.html")
    data: str = ""
    """The images shown to the networks: sample (the embedded 1,000), cifar10, imagenette (test parts) or a
    folder. Default: for each network what it was trained on, with the sample for cifar10."""
    images: int = 1000
    """The most images to look at, equally many of each class; 0 takes all."""
    networks: int = 4
    """The most networks to look into, the most accurate first; 0 reads the records only."""
    layer: str = ""
    """The layer whose history and exciting images are shown; by default the middle gated one."""
    channels: tuple[int, ...] = ()
    """Channels of that layer; by default the two that differ most between images."""
    engine: bool = True
    """--no-engine measures no time."""
    against: str = "onnxruntime,openvino,int8"
    """Runtimes for the dense network, as in penstock bench; empty: none."""
    dense: str = ""
    """The dense network to compare with (MODEL syntax). Default: the most accurate run without gates, else
    the network that a run began with."""
    threads: int = 1
    """Threads for the measured milliseconds."""
    seconds: float = 4.0
    """How long to measure each network; longer is steadier."""
    title: str = ""
    json: bool = False
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


@dataclass
class Looked:
    """What looking into the networks gave, network by network."""

    parts: list[NetworkPart] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    points: list[PointCost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timed: list[TimedNetwork] = field(default_factory=list)


FURTHER = ("layer", "channels", "title")
"""Options on a second page of help."""


def run(options: Options) -> int:
    runs = read_runs(options.folder)
    reproduced, unread = read_reproduced(options.folder)
    console = Console(markup=False, stderr=True, quiet=options.json, highlight=False, soft_wrap=True)
    looked = Looked()
    with console.status("reading"):
        kept = [one for one in runs if one.checkpoint is not None]
        chosen = [one for one in kept if not one.stopped] or kept  # stopped runs are folded away
        chosen.sort(key=lambda one: -(one.top1 or 0.0))
        shown = Shown(options.data, options.images)
        dense = Dense()
        if chosen and options.networks and options.engine and options.against:
            console.log("the dense network in other runtimes")
            names = runtime_names(options.against)
            dense = look_at_dense(chosen, shown, names, options.threads, options.reading, options.dense)
            looked.notes += dense.notes
        for one in chosen[: options.networks]:
            console.log(f"looking into {one.name}")
            try:
                look_into(one, shown.to(one), dense, options, looked)
            except PenstockError as error:
                looked.notes.append(f"{one.name}: {error}")
        left = len(chosen) - options.networks
        if options.networks and left > 0:
            looked.notes.append(
                f"{left} more networks were not looked into; --networks {len(chosen)} takes all."
            )
    if not any(one.sweep for one in runs):  # then accuracy against MACs is what was just measured
        curves = {one.name: measured_curve(one, dense.float32, one.name) for one in looked.timed}
        runs = [replace(one, sweep=curves.get(one.name)) for one in runs]
    name = options.folder.resolve().name
    layer_costs, memory = cost_tables(looked.costs)
    images = ", ".join(f"{len(data):,} images of {data.name}" for data in shown.known.values())
    page = build_page(
        runs,
        title=options.title or f"Runs in {name}",
        notes=[*unread, *looked.notes],
        reproduced=reproduced,
        networks=looked.parts,
        costs=looked.points,
        layer_costs=layer_costs,
        memory=memory,
        latency=latency_of(looked.timed, dense.accuracies, images),
        machine=machine_words(),
        footer=f"Made by Penstock {__version__} with PyTorch {torch.__version__}.",
    )
    out = write_page(page, options.out)
    if options.json:
        said = {
            "out": str(out),
            "runs": [one.name for one in runs],
            "networks": [p.title for p in looked.parts],
        }
        print(json.dumps(said | {"notes": list(page.notes)}))
    else:
        for note in page.notes:
            console.print(f"note: {note}")
        if not runs:
            console.print(f"{options.folder}: no run here yet; the page says how to make one")
        print(out.resolve())
    return 0


def look_into(one: Run, data: ImageArrays, dense: Dense, options: Options, looked: Looked) -> None:
    """Load a run's network, count and time it, and draw what it does with the images."""
    assert one.checkpoint is not None
    network = load_trusted(one.checkpoint, options.reading)
    if settle_preprocess(network, one.name, data, options.reading, quiet=True):
        looked.notes.append(f"{one.name} does not say how it takes images; {data.name}'s way was assumed")
    check_fits(network, data)
    gates = [gate for _, gate in gated_layers(network)]
    asked = sorted({p.density for p in one.sweep.points if p.density}, reverse=True) if one.sweep else []
    differ = any(gate.threshold is not None for gate in gates)  # then the network is measured as it stands
    densities = (
        (asked or sorted({1.0, sum(g.density for g in gates) / len(gates)}, reverse=True))
        if gates and not differ
        else []
    )
    x = preprocess_of(network, data)(data.images[:_COUNTED])
    ranges = (getattr(network, "ranges", None) or calibrate(network, x)) if gates and options.engine else None
    measured = measure(
        network,
        x,
        densities,
        engine=options.engine,
        threads=options.threads,
        rivals=dense.runtimes if gates else None,
        seconds=options.seconds,
        ranges=ranges,
    )
    if measured.unsteady:
        looked.notes.append(f"{one.name}: {measured.unsteady}")
    if measured.without_int8:
        looked.notes.append(f"{one.name}: no int8, {measured.without_int8}")
    if measured.without_engine and options.engine:
        looked.notes.append(f"{one.name}: no milliseconds, {measured.without_engine}")
    own = min(measured.rows, key=lambda row: abs((row.density or 1.0) - (gates[0].density if gates else 1.0)))
    looked.points += [
        PointCost(one.name, row.density, row.executed.macs, row.time, row is own) for row in measured.rows
    ]
    maps: tuple[SkipMap, ...] = ()
    if gates:
        accuracies = score(network, data, densities) if options.engine else [None] * len(measured.rows)
        int8 = [] if ranges is None else score(network, data, densities, ranges=ranges)
        looked.timed.append(TimedNetwork(one.name, accuracies, measured, int8))
        maps = tuple(skip_maps(network, data))
        try:
            history = read_history(one.folder)
        except PenstockError as error:
            history = []
            looked.notes.append(f"{one.name}: {error}")
        looked.parts.append(
            describe_network(
                one.name,
                network,
                data,
                maps,
                layer=options.layer or None,
                channels=options.channels or None,
                history=history,
                measured=comparison_table(
                    measured,
                    accuracies,
                    dense=dense.float32,
                    rivals=dense.accuracies,
                    int8=int8,
                    name=f"measured-{len(looked.parts)}",
                ),
                image_costs=(own.executed.image_macs.numpy(), image_times(network, x, options))
                if differ
                else None,
            )
        )
    method = one.sweep.method if one.sweep else ("FBS" if gates else "Original")
    looked.costs.setdefault(method, Cost(own, maps, whole_account(network, x[:1])))


def image_times(network: torch.nn.Module, x: torch.Tensor, options: Options) -> Array | None:
    """Milliseconds of each image through the engine; None without one."""
    engine = try_compile(network, x[:1], options.threads)[0] if options.engine else None
    return None if engine is None else least_times(engine, x)
