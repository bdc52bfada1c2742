"""penstock bench MODEL --against torch,onnxruntime,openvino: milliseconds against other runtimes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import torch
import tyro
from rich.console import Console

from penstock.cli.evaluate import parse_densities
from penstock.cli.models import find_model
from penstock.errors import InputError
from penstock.gating import gated_layers
from penstock.reporting.contest import RIVALS, hold_contest, random_gates, without_gates
from penstock.reporting.contest_table import contest_json, contest_table
from penstock.reporting.tables import to_rich
from penstock.surgery import add_gates

_SMALL = {"m_cifarnet": 32}


@dataclass(frozen=True)
class Options:
    """Time a network through the engine against dense runtimes, interleaved in one run."""

    model: Annotated[str, tyro.conf.Positional]
    """A zoo name, module:callable, a checkpoint or a run's folder. Without gates it gets random ones."""
    against: str = "torch,onnxruntime,openvino"
    """Dense runtimes: torch, torch.compile, onnxruntime, openvino."""
    density: str = "1.0,0.7,0.5,0.3"
    """Densities of the engine."""
    threads: int = 1
    batch: int = 1
    size: int = 0
    """Height and width of the images; 0: 32 for M-CifarNet, else 224."""
    seconds: float = 10.0
    """About how long to measure."""
    json: bool = False


def run(options: Options) -> int:
    rivals = [name.strip() for name in options.against.split(",") if name.strip()]
    unknown = [name for name in rivals if name not in RIVALS]
    if unknown:
        raise InputError(f"--against: there is no {unknown[0]!r}; there are: {', '.join(RIVALS)}")
    if options.batch < 1 or options.size < 0 or options.seconds <= 0:
        raise InputError("--batch and --seconds are above 0, --size is not negative")
    network = find_model(options.model).eval()
    size = options.size or _default_size(options.model, network)
    images = torch.randn(max(2, options.batch), 3, size, size, generator=torch.Generator().manual_seed(0))
    gates = any(gated_layers(network))
    gated = network if gates else random_gates(add_gates(network, images), images)
    dense = without_gates(network) if gates else network
    console = Console(stderr=True, quiet=options.json)
    with console.status(f"measuring {options.model} for about {options.seconds:g} s"):
        contest = hold_contest(
            options.model,
            gated,
            dense,
            images[: options.batch],
            densities=parse_densities(options.density),
            rivals=rivals,
            threads=options.threads,
            seconds=options.seconds,
        )
    if options.json:
        print(json.dumps(contest_json(contest)))
        return 0
    shown = Console(highlight=False, soft_wrap=True)
    shown.print(to_rich(contest_table(contest)), soft_wrap=False)
    for name, problem in contest.problems.items():
        shown.print(f"{name}: {problem}")
    return 0


def _default_size(spec: str, network: torch.nn.Module) -> int:
    if "cifar" in spec or type(network).__name__ == "MCifarNet":
        return 32
    definition = getattr(network, "definition", None)
    return next((side for name, side in _SMALL.items() if definition and name in str(definition)), 224)
