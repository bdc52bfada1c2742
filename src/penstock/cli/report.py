"""penstock report runs/ --out report.html: one self-contained page about every run below a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from torch import nn

from penstock import __version__
from penstock.accounting import Account
from penstock.cli.evaluate import preprocess_of
from penstock.cli.images import find_images
from penstock.datasets import ImageArrays
from penstock.errors import LayerError, PenstockError
from penstock.exporting import load
from penstock.gating import gated_layers
from penstock.reporting import (
    Run,
    build_page,
    describe_network,
    layer_table,
    memory_cost,
    memory_table,
    network_cost,
    original_cost,
    read_history,
    read_runs,
    skip_maps,
    write_page,
)
from penstock.reporting.build import PointCost
from penstock.reporting.comparison import comparison_table
from penstock.reporting.measuring import DensityCost, measure, whole_account
from penstock.reporting.page import NetworkPart
from penstock.reporting.skipping import SkipMap
from penstock.reporting.tables import Table

_COUNTED = 64  # images whose masks are counted and which are timed


@dataclass(frozen=True)
class Options:
    """Make one HTML page of all runs below a folder; it needs no network and no other file."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that holds the runs, or one run."""
    out: Path = Path("report.html")
    data: str = "sample"
    """The images shown to the networks: sample (the embedded 1,000) or cifar10 (its test part)."""
    images: int = 1000
    """So many of them at most, equally many of each class; 0 takes all."""
    networks: int = 4
    """Look into so many networks at most, the most accurate first; 0 reads the records only."""
    layer: str = ""
    """The layer whose history and exciting images are shown; by default the middle gated one."""
    channels: tuple[int, ...] = ()
    """Channels of that layer; by default the two that differ most between images."""
    engine: bool = True
    """--no-engine measures no time."""
    threads: int = 1
    """Threads for the measured milliseconds."""
    seconds: float = 4.0
    """How long to measure each network; longer is steadier."""
    title: str = ""
    json: bool = False


@dataclass(frozen=True)
class Cost:
    """A network at its own density, what it skips, and what it would cost with nothing skipped."""

    own: DensityCost
    maps: tuple[SkipMap, ...]
    whole: Account


@dataclass
class Looked:
    """What looking into the networks gave, network by network."""

    parts: list[NetworkPart] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    points: list[PointCost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(options: Options) -> int:
    runs = read_runs(options.folder)
    console = Console(stderr=True, quiet=options.json, highlight=False, soft_wrap=True)
    looked = Looked()
    with console.status("reading"):
        chosen = [one for one in runs if one.checkpoint is not None]
        chosen.sort(key=lambda one: -(one.top1 or 0.0))
        data = find_images(options.data, options.images) if chosen and options.networks else None
        for one in chosen[: options.networks]:
            assert data is not None
            console.log(f"looking into {one.name}")
            try:
                look_into(one, data, options, looked)
            except PenstockError as error:
                looked.notes.append(f"{one.name}: {error}")
        left = len(chosen) - options.networks
        if options.networks and left > 0:
            looked.notes.append(
                f"{left} more networks were not looked into; --networks {len(chosen)} takes all."
            )
    name = options.folder.resolve().name
    layer_costs, memory = cost_tables(looked.costs)
    page = build_page(
        runs,
        title=options.title or f"Runs in {name}",
        notes=looked.notes,
        networks=looked.parts,
        costs=looked.points,
        layer_costs=layer_costs,
        memory=memory,
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


def look_into(one: Run, data: ImageArrays, options: Options, looked: Looked) -> None:
    """Load a run's network, count and time it, and draw what it does with the images."""
    assert one.checkpoint is not None
    network = load(one.checkpoint)
    check_fits(one.name, network, data)
    gates = [gate for _, gate in gated_layers(network)]
    asked = sorted({p.density for p in one.sweep.points if p.density}, reverse=True) if one.sweep else []
    densities = (
        (asked or sorted({1.0, sum(g.density for g in gates) / len(gates)}, reverse=True)) if gates else []
    )
    x = preprocess_of(network)(data.images[:_COUNTED])
    measured = measure(
        network, x, densities, engine=options.engine, threads=options.threads, seconds=options.seconds
    )
    if measured.busy and measured.busy not in looked.notes:
        looked.notes.append(measured.busy)
    if measured.without_engine and options.engine:
        looked.notes.append(f"{one.name}: no milliseconds, {measured.without_engine}")
    own = min(measured.rows, key=lambda row: abs((row.density or 1.0) - (gates[0].density if gates else 1.0)))
    looked.points += [
        PointCost(one.name, row.density, row.executed.macs, row.time, row is own) for row in measured.rows
    ]
    maps: tuple[SkipMap, ...] = ()
    if gates:
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
                measured=comparison_table(measured, name=f"measured-{len(looked.parts)}"),
            )
        )
    method = one.sweep.method if one.sweep else ("FBS" if gates else "Original")
    looked.costs.setdefault(method, Cost(own, maps, whole_account(network, x[:1])))


def check_fits(name: str, network: nn.Module, data: ImageArrays) -> None:
    """One image through the network, so that a misfit is said once and clearly."""
    try:
        with torch.no_grad():
            logits = network.eval()(preprocess_of(network)(data.images[:1]))
    except (RuntimeError, PenstockError) as error:
        raise LayerError(f"the network does not take images of {data.name} ({error})") from error
    if logits.dim() != 2 or logits.shape[1] != len(data.classes):
        raise LayerError(
            f"the network gives {tuple(logits.shape[1:])} for an image, but {data.name} has "
            f"{len(data.classes)} classes; choose other images with --data"
        )


def cost_tables(costs: dict[str, Cost]) -> tuple[Table | None, Table | None]:
    """The layer table and the memory table, one column or row a method; none without a network."""
    if not costs:
        return None, None
    # Without a dense run the original is what the widest network was before it got gates.
    plain = costs.get("Original")
    whole = (
        plain.whole if plain else max((cost.whole for cost in costs.values()), key=lambda one: one.dense_macs)
    )
    others = {method: cost for method, cost in costs.items() if method != "Original"}
    layers = [network_cost(method, cost.own.executed, cost.maps) for method, cost in others.items()]
    memory = [memory_cost(method, cost.own.executed) for method, cost in others.items()]
    return (
        layer_table([original_cost("Original", whole), *layers], convention="executed"),
        memory_table([memory_cost("Original", whole), *memory], convention="executed"),
    )
