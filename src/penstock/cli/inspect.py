"""penstock inspect MODEL: every layer, gated or why not; MACs, dense and at a density; milliseconds."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
import tyro
from rich.console import Console
from torch import Tensor, nn

from penstock.accounting import Account, LayerAccount
from penstock.cli.images import ReadOptions, settle_preprocess
from penstock.cli.models import Model, find_model
from penstock.cli.probe import draw_winners, probe_images, shape_for
from penstock.datasets import sample
from penstock.gating import check_density, gated_layers, is_gated, set_density
from penstock.measuring.contest import pays, without_gates
from penstock.measuring.densities import DensityCost, Measured, RivalTime, measure, try_compile
from penstock.measuring.runtimes import Runtime, dense_runtimes, runtime_names
from penstock.measuring.timing import ratio
from penstock.reporting.numbers import mebibytes, milliseconds, short_count, times
from penstock.reporting.tables import NOTHING, Cell, Column, Table, figure, to_json, to_rich, word
from penstock.surgery import Explanation, add_gates, explain

_COUNTED = 16  # images whose masks are counted and which are timed
_DENSITY = 0.5  # for a network without gates


@dataclass(frozen=True)
class Options:
    """Say what would be gated in a network, and why not; MACs by both conventions; milliseconds."""

    model: Model
    """A zoo name, module:callable, a checkpoint, or a run's folder."""
    input: str = ""
    """The size of one input, as in 3x32x32; without it the network's own, if it is known, else 3x224x224."""
    density: float | None = None
    """The density to count at; without it the checkpoint's own, or 0.5 for a network without gates."""
    time: bool = True
    """--no-time measures no milliseconds."""
    json: bool = False
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


@dataclass(frozen=True)
class Inspection:
    """What was found, before it becomes text."""

    model: str
    shape: tuple[int, ...]
    density: float | None  # None: the layers have different ones
    masks: str  # which images and gates the executed counts come from
    explanation: Explanation
    measured: Measured
    gated_share: float  # of the dense MACs, those behind a gate

    @property
    def cost(self) -> DensityCost:
        return self.measured.rows[0]

    @property
    def without_engine(self) -> str:
        return self.measured.without_engine

    @property
    def dense(self) -> tuple[str, RivalTime] | None:
        """The dense network in the fastest float32 runtime that was measured beside it."""
        return self.measured.fastest_rival()

    @property
    def speed_up(self) -> float | None:
        return ratio(self.dense[1].time, self.cost.time) if self.dense else None


def run(options: Options) -> int:
    with Console(markup=False, stderr=True, quiet=options.json).status(f"inspecting {options.model}"):
        found = inspect(options)
    table = layer_table(found)
    if options.json:
        print(
            json.dumps({**summary(found), "layers": to_json(table), "notes": list(found.explanation.notes)})
        )
        return 0
    console = Console(
        markup=False, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120
    )
    shown = to_rich(table.without_empty_columns())
    for column in shown.columns[:-1]:
        column.no_wrap = True
    console.print(shown, soft_wrap=False)
    for line in words(found):
        console.print(line)
    return 0


def inspect(options: Options) -> Inspection:
    """Gate the network if it has no gates, count it, time it."""
    network = find_model(options.model, trust=options.reading).eval()
    settle_preprocess(network, options.model, sample(), options.reading)
    shape = shape_for(network, options.input)
    density = None if options.density is None else check_density(options.density, "--density")
    images, which = probe_images(network, shape, _COUNTED if shape == (3, 32, 32) else _COUNTED // 4)
    masks = f"masks of {which}"
    dense = network
    if is_gated(network):
        gated, dense = network, without_gates(network)
        if density is not None:
            set_density(gated, density)
    else:
        gated = add_gates(network, images[:1], density=_DENSITY if density is None else density)
        draw_winners(gated, torch.Generator().manual_seed(0))
        masks = "the gates are not trained, so each layer's channels are drawn at random"
    measured = timed(gated, dense, images) if options.time else measure(gated, images, engine=False)
    layers = measured.rows[0].paper.layers
    behind = sum(layer.dense_macs for layer in layers if layer.kind == "gated conv")
    return Inspection(
        model=options.model,
        shape=shape,
        density=common_density(gated),
        masks=masks,
        explanation=explain(gated, images[:1]),
        measured=measured,
        gated_share=behind / max(1, sum(layer.dense_macs for layer in layers)),
    )


def timed(gated: nn.Module, dense: nn.Module, images: Tensor) -> Measured:
    """The gated network through the engine, the dense one through it and through the runtimes that are
    installed, in one interleaved run."""
    rivals = dense_runtimes(dense, images[:1], runtime_names("onnxruntime,openvino")).run
    engine, _ = try_compile(dense, images[:1])
    if engine is not None:
        rivals["penstock"] = Runtime("penstock", "float32", engine)
    return measure(gated, images, rivals=rivals, seconds=2.0)


def common_density(gated: nn.Module) -> float | None:
    densities = {layer.density for _, layer in gated_layers(gated)}
    return densities.pop() if len(densities) == 1 else None


def layer_table(found: Inspection) -> Table:
    """A row a layer, in the order they run."""
    paper, executed = found.cost.paper, found.cost.executed
    columns = (
        Column("layer", "layer", numeric=False),
        Column("channels", "channels", numeric=False),
        Column("kernel", "kernel", numeric=False),
        Column("output", "output", numeric=False),
        Column("density", "d", shown=found.density is None),
        Column("macs_dense", "dense"),
        Column("macs_paper", "paper"),
        Column("macs_executed", "executed"),
        Column("gated", "gated", shown=False),
        Column("why_not", "gate", numeric=False),
    )
    convolutions = {conv.name: conv for conv in found.explanation.convolutions}
    rows = []
    for counted, ran in zip(paper.layers, executed.layers, strict=True):
        conv = convolutions.pop(counted.name, None)
        kernel = (
            ""
            if conv is None
            else "x".join(map(str, conv.kernel)) + (f"/{conv.groups}" if conv.groups > 1 else "")
        )
        why_not = None if counted.kind == "gated conv" else counted.kind if conv is None else conv.reason
        rows.append(_row(counted, ran, kernel, why_not))
    for conv in convolutions.values():  # those that never ran on their own
        rows.append(
            (word(conv.name), *(NOTHING,) * 7, Cell("no", False), Cell(f"none: {conv.reason}", conv.reason))
        )
    totals = [figure(cost, short_count(cost)) for cost in (paper.dense_macs, paper.macs, executed.macs)]
    savings = [NOTHING, *(figure(a.saving, times(a.saving)) for a in (paper, executed))]
    ends = (Cell("", None), Cell("", None))
    footer = (
        (word("total"), *(Cell("", None),) * 4, *totals, *ends),
        (word("saving"), *(Cell("", None),) * 4, *savings, *ends),
    )
    at = "at its layers' densities" if found.density is None else f"at density {found.density:g}"
    caption = f"{found.model}: MACs of one input of {'x'.join(map(str, found.shape))}, dense and {at}"
    return Table("layers", caption, columns, tuple(rows), footer)


def _row(counted: LayerAccount, ran: LayerAccount, kernel: str, why_not: str | None) -> tuple[Cell, ...]:
    channels = f"{counted.in_channels}→{counted.out_channels}" if counted.in_channels else "–"
    return (
        word(counted.name),
        word(channels),
        word(kernel) if kernel else NOTHING,
        word("x".join(map(str, counted.output_size))) if counted.output_size else NOTHING,
        figure(counted.density),
        figure(counted.dense_macs, short_count(counted.dense_macs)),
        figure(counted.macs, short_count(counted.macs)),
        figure(ran.macs, short_count(ran.macs)),
        Cell("yes" if counted.kind == "gated conv" else "no", counted.kind == "gated conv"),
        Cell("gated", None) if why_not is None else Cell(f"none: {why_not}", why_not),
    )


def summary(found: Inspection) -> dict[str, Any]:
    """The totals, for JSON."""

    def cost(account: Account) -> dict[str, float]:
        return {
            "macs": account.macs,
            "saving": account.saving,
            "macs_std": account.macs_std,
            "weight_bytes": account.weight_bytes,
            "activation_bytes": account.activation_bytes,
            "peak_bytes": account.peak_bytes,
            "peak_bytes_batch_128": account.peak_bytes_for(128),
        }

    time, dense = found.cost.time, found.dense
    return {
        "model": found.model,
        "input": list(found.shape),
        "density": found.density,
        "gated": len(found.explanation.gated),
        "convolutions": len(found.explanation.convolutions),
        "macs_dense": found.cost.paper.dense_macs,
        "paper": cost(found.cost.paper),
        "executed": cost(found.cost.executed),
        "masks": found.masks,
        "milliseconds": None if time is None else time.least,
        "precision": "float32",
        "dense": {
            name: {"milliseconds": one.time.least, "precision": one.precision}
            for name, one in found.measured.rivals.items()
        },
        "milliseconds_dense": None if dense is None else dense[1].time.least,
        "speed_up": found.speed_up,
        "pays": None if found.speed_up is None else pays(found.speed_up),
        "gated_share": found.gated_share,
        "without_engine": found.without_engine or None,
    }


def words(found: Inspection) -> list[str]:
    """What stands below the table."""
    explanation, executed = found.explanation, found.cost.executed
    head = f"{len(explanation.gated)} of {len(explanation.convolutions)} convolutions gated"
    if not explanation.gated:
        head += "; the network has nothing to gate and runs as it was"
    memory = (
        f"for one image the convolutions read {mebibytes(executed.weight_bytes)} of weights and move "
        f"{mebibytes(executed.activation_bytes)} of activations; peak {mebibytes(executed.peak_bytes)}"
    )
    lines = [head, f"executed: {found.masks}; {memory}"]
    lines += time_words(found)
    return [*lines, *(f"note: {note}" for note in explanation.notes)]


def time_words(found: Inspection) -> list[str]:
    """Measured milliseconds, gated and dense, and whether the gates are worth having."""
    if found.cost.time is None:
        return [f"no milliseconds: {found.without_engine}"]
    own = milliseconds(found.cost.time.least)
    at = "at its densities" if found.density is None else f"at density {found.density:g}"
    lines = [f"measured, one thread, one image, float32: {own} gated {at}"]
    if found.dense is None:
        return lines
    name, rival = found.dense
    others = ", ".join(
        f"{milliseconds(one.time.least)} in {label}"
        + ("" if one.precision == "float32" else f" ({one.precision})")
        for label, one in sorted(found.measured.rivals.items(), key=lambda item: item[1].time.least)
    )
    lines[0] += f"; dense {others}"
    if found.speed_up is None:
        return [*lines, found.measured.unsteady]
    lines[0] += f": {times(found.speed_up)}"
    if not pays(found.speed_up):
        lines.append(
            f"Gating does not pay here: the gated network {at} is {times(found.speed_up)} as fast as the "
            f"dense one in {name} ({milliseconds(rival.time.least)}); {100 * found.gated_share:.0f}% of its "
            "MACs are behind gates. Run the dense network (penstock bench also measures it in int8), or try "
            "a lower density."
        )
    return lines
