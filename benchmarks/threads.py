"""Two threads against one, and a batch against one image at a time; interleaved, least times.

    python benchmarks/threads.py

Gates have random winners, as in networks.py. Results are kept by machine and commit (benchmarks/kept.py).
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from kept import RESULTS, keep
from networks import make
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from penstock.engine import compile as compile_engine
from penstock.measuring.contest import random_gates
from penstock.measuring.timing import interleave
from penstock.surgery import add_gates


@dataclass(frozen=True)
class Options:
    """Measure how the engine uses threads and batches."""

    networks: str = "resnet18,vgg16_bn-conv,vgg16_bn"
    batch_networks: str = "m_cifarnet,resnet18"
    densities: str = "1.0,0.5"
    batch: int = 32
    seconds: float = 12.0
    """About how long each comparison takes."""
    out: Path = RESULTS


@dataclass(frozen=True)
class Result:
    """Milliseconds an image of two ways to do the same; `ratio` is how much faster the second is."""

    network: str
    density: float
    compared: str
    first_ms: float
    second_ms: float

    @property
    def ratio(self) -> float:
        return self.first_ms / self.second_ms


def gated_network(name: str, images: int) -> tuple[nn.Module, Tensor]:
    """A network with random gates, and images for it."""
    torch.manual_seed(0)
    network, size = make(name)
    x = torch.randn(max(2, images), 3, size, size)
    return random_gates(add_gates(network, x[:2]), x[:2]), x[:images]


def compare_threads(name: str, density: float, seconds: float) -> Result:
    gated, x = gated_network(name, 1)
    one, two = (compile_engine(gated, x, threads=threads) for threads in (1, 2))
    times = interleave(
        {"one": lambda: one(x, density=density), "two": lambda: two(x, density=density)}, seconds=seconds
    )
    return Result(name, density, "one thread, two threads", times["one"].least, times["two"].least)


def compare_batch(name: str, density: float, batch: int, seconds: float) -> Result:
    gated, x = gated_network(name, batch)
    engine = compile_engine(gated, x[:1])

    def one_by_one() -> None:
        for image in x.split(1):
            engine(image, density=density)

    times = interleave({"one": one_by_one, "batch": lambda: engine(x, density=density)}, seconds=seconds)
    each, together = (times[way].least / batch for way in ("one", "batch"))
    return Result(name, density, f"one by one, batch {batch}", each, together)


def main(options: Options) -> int:
    torch.set_num_threads(1)
    densities = [float(d) for d in options.densities.split(",")]
    results = [
        compare_threads(name, d, options.seconds) for name in options.networks.split(",") for d in densities
    ]
    results += [
        compare_batch(name, d, options.batch, options.seconds)
        for name in options.batch_networks.split(",")
        for d in densities
    ]
    table = Table("network", "density", "first, second", "ms an image", "ms an image", "faster")
    for r in results:
        numbers = (f"{r.first_ms:.3f}", f"{r.second_ms:.3f}", f"{r.ratio:.2f}×")
        table.add_row(r.network, f"{r.density:g}", r.compared, *numbers)
    Console(width=120).print(table)
    rows = [asdict(r) | {"ratio": r.ratio} for r in results]
    keep("threads", rows, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
