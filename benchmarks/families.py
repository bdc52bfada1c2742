"""Which families of networks gain from gates, and how much: timm's networks, gated and dense.

    python benchmarks/families.py --models DIR --prepare       # quantise the dense networks: minutes each
    python benchmarks/families.py --models DIR                 # measure all; have the machine to yourself
    python benchmarks/families.py --models DIR --networks resnet50    # measure one: well under a minute
    python benchmarks/families.py --table                      # the newest row of each network as Markdown

The networks are timm's of the conversion list (tests/surgery/networks.py). One image of 224×224, one thread.
Weights are random and gates have random winners, so this is about time, not accuracy. Results are kept by
machine and commit (benchmarks/kept.py); runs of single networks add up, and what this machine has measured at
this commit is not measured again: after an interruption the same command goes on.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from kept import RESULTS, Kept, add, has_row, latest_rows
from rich.console import Console

from penstock.accounting import account
from penstock.cli.models import find_model
from penstock.errors import InputError
from penstock.measuring.contest import Contest, Entry, Prepared, pays, prepare_contest, random_gates
from penstock.measuring.runtimes import runtime_names
from penstock.reporting.contest_table import contest_json, contest_table, contest_words, read_contest
from penstock.reporting.numbers import milliseconds, times
from penstock.reporting.tables import to_rich
from penstock.surgery import add_gates

FAMILIES = (
    "resnet18",
    "resnet34",
    "resnet50",
    "wide_resnet50_2",
    "vgg16_bn",
    "densenet121",
    "resnext50_32x4d",
    "regnetx_008",
    "inception_v3",
    "mobilenetv2_100",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "convnext_tiny",
)
INSTALLED_LINE = "OpenVINO as installed"
LINES = ("fastest float32", INSTALLED_LINE, "fastest int8")


@dataclass(frozen=True)
class Options:
    """Time timm's networks through the engine, gated, and through dense runtimes."""

    networks: str = ",".join(FAMILIES)
    densities: str = "1.0,0.7,0.5,0.3"
    against: str = "onnxruntime,openvino,int8"
    seconds: float = 10.0
    """About how long each network is measured."""
    calibration: int = 8
    """Images of noise that set the ranges of the int8 networks: enough for their speed."""
    own_int8: bool = False
    """Time the engine in int8 as well; the table shows float32, and a network then takes twice as long."""
    models: Path | None = None
    """Keep the dense runtimes' networks here, as in networks.py."""
    prepare: bool = False
    """Measure nothing; fill --models."""
    again: bool = False
    """Measure networks anew that this machine has measured at this commit."""
    table: bool = False
    """Measure nothing; print the newest results as Markdown."""
    machine: str = ""
    """For --table: the machine's folder in benchmarks/results; without it the latest."""
    out: Path = RESULTS


@dataclass(frozen=True)
class Family:
    """One network ready to be measured, and the share of its dense MACs that stand behind a gate."""

    prepared: Prepared
    gated_share: float


def prepare(name: str, options: Options) -> Family:
    torch.manual_seed(0)
    dense = find_model(f"timm:{name}").eval()
    images = torch.randn(max(2, options.calibration), 3, 224, 224)
    gated = random_gates(add_gates(dense, images[:2]), images[:2])
    layers = account(gated, images[:1]).layers
    behind = sum(layer.dense_macs for layer in layers if layer.kind == "gated conv")
    prepared = prepare_contest(
        name,
        gated,
        dense,
        images[:1],
        densities=[float(d) for d in options.densities.split(",")],
        rivals=runtime_names(options.against),
        calibration=images,
        exported=False,
        own_int8=options.own_int8,
        folder=options.models and options.models / name,
    )
    return Family(prepared, behind / sum(layer.dense_macs for layer in layers))


def main(options: Options) -> int:
    console = Console(highlight=False, width=140)
    if options.table:
        print(markdown(latest_rows("families", "network", options.machine or None, options.out)))
        return 0
    if options.prepare and options.models is None:
        raise InputError("--prepare: say where the networks go, --models DIR")
    for name in options.networks.split(","):
        if not options.again and not options.prepare and has_row("families", "network", name, options.out):
            print(f"{name}: measured at this commit already", flush=True)
            continue
        family = prepare(name, options)
        if options.prepare:
            for runtime, why in family.prepared.problems.items():
                console.print(f"{name}: {runtime}: {why}")
            print(f"{name}: prepared", flush=True)
            continue
        contest = family.prepared.hold(options.seconds)
        console.print(to_rich(contest_table(contest)))
        for line in contest_words(contest):
            console.print(line)
        row = contest_json(contest) | {"gated_share": family.gated_share}
        print(add("families", [row], "network", options.out), flush=True)
    return 0


def markdown(rows: list[tuple[dict[str, Any], Kept]]) -> str:
    """The table of docs/speed.md: milliseconds, and how much faster than dense float32."""
    order = {name: place for place, name in enumerate(FAMILIES)}
    rows = sorted(rows, key=lambda pair: order.get(pair[0]["network"], len(order)))
    contests = [(read_contest(row), row) for row, _ in rows]
    densities = sorted({e.density for c, _ in contests for e in c.entries if e.density}, reverse=True)
    head = ["network", "MACs gated", "dense float32", "OpenVINO as installed", "dense int8"]
    lines = [
        [*head, *(f"d = {d:g}" for d in densities), "gates pay"],
        ["---"] * (len(head) + len(densities) + 1),
    ]
    for contest, row in contests:
        dense = contest.dense_lines
        cells = [contest.network, f"{100 * row['gated_share']:.0f}%"]
        cells += [dense_cell(line, dense.get(line)) for line in LINES]
        cells += [gated_cell(contest, density) for density in densities]
        lines.append([*cells, verdict(contest) if row["gated_share"] else "nothing to gate"])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    measured: dict[str, list[str]] = {}
    for row, kept in rows:
        measured.setdefault(kept.commit, []).append(row["network"])
    commits = "; ".join(f"commit {commit}: {', '.join(names)}" for commit, names in measured.items())
    return (
        f"{table}\n\n{rows[0][1].processor}, one thread, one image of 224×224, "
        f"`python benchmarks/families.py`; {commits}."
    )


def dense_cell(line: str, entry: Entry | None) -> str:
    if entry is None:
        return "–"
    runtime = entry.name.split("-")[0]
    return f"{milliseconds(entry.milliseconds)} ({entry.precision if line == INSTALLED_LINE else runtime})"


def gated_cell(contest: Contest, density: float) -> str:
    entry = next((one for one in float_entries(contest) if one.density == density), None)
    if entry is None:
        return "–"
    faster = contest.speed_up(entry)
    return milliseconds(entry.milliseconds) + ("" if faster is None else f" · {times(faster)}")


def float_entries(contest: Contest) -> list[Entry]:
    """The engine's own rows in float32, as the table's title says."""
    return [one for one in contest.entries if one.density and one.precision == "float32"]


def verdict(contest: Contest) -> str:
    """From which density on the gated network is faster than dense float32, by a tenth at least.

    Disturbed times are not compared, so where some are, less may be known.
    """
    found = {one.density or 0.0: contest.speed_up(one) for one in float_entries(contest)}
    paying = max((density for density, faster in found.items() if pays(faster)), default=0.0)
    unknown = any(faster is None and density > paying for density, faster in found.items())
    if not paying:
        return "not known" if unknown else "no"
    return f"from d = {paying:g}" + (" or more" if unknown else "")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
