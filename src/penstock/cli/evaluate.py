"""penstock evaluate RUN_OR_CHECKPOINT --density 0.5,0.7: accuracy, MACs, measured milliseconds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from torch import Tensor, nn

from penstock.cli.images import find_images
from penstock.cli.models import find_model
from penstock.datasets import ImageArrays, Preprocess
from penstock.errors import DensityError
from penstock.gating import check_density, gated_layers, set_density
from penstock.reporting.comparison import Accuracy, agreement_words, comparison_table
from penstock.reporting.measuring import Measured, measure, try_compile
from penstock.reporting.tables import to_json, to_rich
from penstock.training import evaluate

_COUNTED = 64  # images whose masks are counted, which are timed, and on which engine and PyTorch are compared


@dataclass(frozen=True)
class Options:
    """Score a network: accuracy, MACs by both conventions, and milliseconds measured through the engine."""

    model: Annotated[str, tyro.conf.Positional]
    """A run's folder, a checkpoint, or the name of a shipped one."""
    data: str = "cifar10"
    """cifar10 (its test part) or sample (the embedded 1,000 images)."""
    images: int = 0
    """Score so many images only, equally many of each class; 0 takes all."""
    holdout: int = 0
    """Score the training images that `penstock train --holdout` left out: for choosing, before the test."""
    density: str = ""
    """Densities, as in 0.5,0.7; without any, the network's own."""
    engine: bool = True
    """--no-engine scores with PyTorch and measures no time."""
    threads: int = 1
    """Threads for the measured milliseconds."""
    seconds: float = 6.0
    """How long to measure; longer is steadier."""
    json: bool = False


def run(options: Options) -> int:
    densities = parse_densities(options.density)
    network = find_model(options.model)
    data = find_images(options.data, options.images, options.holdout)
    console = Console(stderr=True, quiet=options.json)
    with console.status(f"scoring {len(data):,} images"):
        scores = score(network, data, densities, engine=options.engine, say=console.log)
        prepare = preprocess_of(network)
        measured = measure(
            network,
            prepare(data.images[:_COUNTED]),
            densities,
            engine=options.engine,
            threads=options.threads,
            seconds=options.seconds,
        )
    table = comparison_table(measured, scores)
    if options.json:
        print(json.dumps(as_json(options, data, measured, to_json(table))))
        return 0
    shown = Console(highlight=False, soft_wrap=True)
    shown.print(f"{options.model} on {len(data):,} images of {data.name}")
    shown.print(to_rich(table), soft_wrap=False)
    shown.print(agreement_words(measured.rows) or f"No milliseconds: {measured.without_engine}.")
    if measured.busy:
        shown.print(measured.busy)
    return 0


def parse_densities(text: str) -> list[float]:
    """ "0.5,0.7" → [0.5, 0.7].

    >>> parse_densities("0.5, 1")
    [0.5, 1.0]
    """
    values = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        try:
            value = float(item)
        except ValueError:
            raise DensityError(f"--density: expected numbers as in 0.5,0.7, got {item!r}") from None
        values.append(check_density(value, "--density"))
    return values


def score(
    network: nn.Module,
    data: ImageArrays,
    densities: Sequence[float],
    *,
    engine: bool = True,
    say: Callable[[str], None] | None = None,
) -> list[Accuracy]:
    """Accuracy at each density, through the engine where there is one: it is what will be used."""
    prepare = preprocess_of(network)
    gates = list(gated_layers(network))
    own = [(gate, gate.density) for _, gate in gates]
    runner, _ = try_compile(network, prepare(data.images[:1]), os.cpu_count() or 1) if engine else (None, "")
    found = []
    try:
        for density in list(densities) if gates and densities else [None]:
            if density is not None:
                set_density(network, density)
            one = evaluate(network if runner is None else _at(runner, density), data, preprocess=prepare)
            found.append(Accuracy(one.top1, one.top5))
            if say is not None:
                setting = "as it is" if density is None else f"at density {density:g}"
                say(f"{setting}: top-1 {one.top1:.2f}%")
    finally:
        for gate, density in own:
            gate.density = density
    return found


def preprocess_of(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """What the checkpoint says, or CIFAR-10's."""
    return getattr(network, "preprocess", None) or Preprocess()


def as_json(
    options: Options, data: ImageArrays, measured: Measured, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Everything the table says, and how it was measured."""
    for row, cost in zip(rows, measured.rows, strict=False):
        if cost.agreement is not None:
            row["agreement"] = {
                "images": cost.agreement.images,
                "same_class": cost.agreement.same,
                "largest_difference": cost.agreement.difference,
            }
    return {
        "model": options.model,
        "data": data.name,
        "images": len(data),
        "threads": measured.threads,
        "instruction_set": measured.isa or None,
        "without_engine": measured.without_engine or None,
        "busy": measured.busy or None,
        "rows": rows,
    }


def _at(engine: Any, density: float | None) -> Callable[[Tensor], Tensor]:
    return engine if density is None else lambda x: engine(x, density=density)
