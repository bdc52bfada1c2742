"""penstock inspect MODEL: every layer, gated or why not; MACs, dense and at a density; milliseconds."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from torch import Tensor, fx, nn

from penstock.accounting import Account, LayerAccount
from penstock.cli.models import find_model
from penstock.datasets import Preprocess, sample
from penstock.errors import InputError
from penstock.gating import check_density, gated_layers, set_density
from penstock.reporting.measuring import DensityCost, Measured, measure, try_compile
from penstock.reporting.numbers import mebibytes, milliseconds, short_count, times
from penstock.reporting.tables import NOTHING, Cell, Column, Table, figure, to_json, to_rich, word
from penstock.reporting.timing import Timing
from penstock.surgery import Explanation, add_gates, explain, shape_of

_COUNTED = 16  # images whose masks are counted and which are timed
_DENSITY = 0.5  # for a network without gates


@dataclass(frozen=True)
class Options:
    """Say what would be gated in a network, and why not; MACs by both conventions; milliseconds."""

    model: Annotated[str, tyro.conf.Positional]
    """A zoo name, module:callable, a checkpoint, or a run's folder."""
    input: str = ""
    """The size of one input, as in 3x32x32; without it the network's own, if it is known, else 3x224x224."""
    density: float | None = None
    """The density to count at; without it the checkpoint's own, or 0.5 for a network without gates."""
    time: bool = True
    """--no-time measures no milliseconds."""
    json: bool = False


@dataclass(frozen=True)
class Inspection:
    """What was found, before it becomes text."""

    model: str
    shape: tuple[int, ...]
    density: float | None  # None: the layers have different ones
    masks: str  # which images and gates the executed counts come from
    explanation: Explanation
    cost: DensityCost
    dense_time: Timing | None
    without_engine: str


def run(options: Options) -> int:
    with Console(stderr=True, quiet=options.json).status(f"inspecting {options.model}"):
        found = inspect(options)
    table = layer_table(found)
    if options.json:
        print(
            json.dumps({**summary(found), "layers": to_json(table), "notes": list(found.explanation.notes)})
        )
        return 0
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    shown = to_rich(table.without_empty_columns())
    for column in shown.columns[:-1]:
        column.no_wrap = True
    console.print(shown, soft_wrap=False)
    for line in words(found):
        console.print(line)
    return 0


def inspect(options: Options) -> Inspection:
    """Gate the network if it has no gates, count it, time it."""
    network = find_model(options.model).eval()
    shape = parse_shape(options.input) if options.input else known_shape(network)
    density = None if options.density is None else check_density(options.density, "--density")
    images, masks = images_for(network, shape)
    dense: nn.Module | None = None
    if any(True for _ in gated_layers(network)):
        gated = network
        if density is not None:
            set_density(gated, density)
    else:
        dense = network
        gated = add_gates(network, images[:1], density=_DENSITY if density is None else density)
        draw_gates_at_random(gated)
        masks = "the gates are not trained, so each layer's channels are drawn at random"
    measured, dense_time = (
        timed(gated, dense, images) if options.time else (measure(gated, images, engine=False), None)
    )
    return Inspection(
        model=options.model,
        shape=shape,
        density=common_density(gated),
        masks=masks,
        explanation=explain(gated, images[:1]),
        cost=measured.rows[0],
        dense_time=dense_time,
        without_engine=measured.without_engine,
    )


def timed(gated: nn.Module, dense: nn.Module | None, images: Tensor) -> tuple[Measured, Timing | None]:
    """Both through the engine, in one interleaved run; a checkpoint with gates has no dense form here."""
    engine, _ = (None, "") if dense is None else try_compile(dense, images[:1])
    measured = measure(gated, images, rivals={} if engine is None else {"dense": engine}, seconds=2.0)
    return measured, measured.rivals.get("dense")


def parse_shape(text: str) -> tuple[int, ...]:
    """ "3x32x32" → (3, 32, 32).

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text):
        raise InputError(f"--input: expected channels x height x width, as in 3x32x32, got {text!r}")
    channels, height, width = map(int, text.split("x"))
    return channels, height, width


def known_shape(network: nn.Module) -> tuple[int, ...]:
    """What the network was traced with, or what its kind is made for."""
    if isinstance(network, fx.GraphModule):
        entry = next(node for node in network.graph.nodes if node.op == "placeholder")
        shape = shape_of(entry) if "shape" in entry.meta else None
        if shape is not None:
            return shape[1:]
    definition: dict[str, Any] = getattr(network, "definition", None) or {}
    return (3, 32, 32) if definition.get("zoo") == "m_cifarnet" else (3, 224, 224)


def images_for(network: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, str]:
    """Real images where the embedded sample fits, else noise; and which."""
    weight = next(network.parameters())
    if shape == (3, 32, 32):
        prepare = getattr(network, "preprocess", None) or Preprocess()
        images = prepare(sample().images[:: 1000 // _COUNTED][:_COUNTED])
        return images.to(weight), f"masks of {_COUNTED} images of the embedded sample"
    noise = torch.randn(_COUNTED // 4, *shape, generator=torch.Generator().manual_seed(0))
    return noise.to(weight), f"masks of {len(noise)} images of noise"


def draw_gates_at_random(gated: nn.Module) -> None:
    # Fresh gates all tie, so every layer would keep the same first channels, and residual sums would look
    # sparser than any trained network's.
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, layer in gated_layers(gated):
            layer.gate.bias.copy_(1 + torch.rand(layer.gate.bias.shape, generator=chance))


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

    time, dense = found.cost.time, found.dense_time
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
        "milliseconds_dense": None if dense is None else dense.least,
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
    if found.cost.time is not None:
        said = f"measured through the engine, one thread, one image: {milliseconds(found.cost.time.least)}"
        if found.dense_time is not None:
            ratio = times(found.dense_time.least / found.cost.time.least)
            said += f", dense {milliseconds(found.dense_time.least)} ({ratio})"
        lines.append(said)
    else:
        lines.append(f"no milliseconds: {found.without_engine}")
    return [*lines, *(f"note: {note}" for note in explanation.notes)]
