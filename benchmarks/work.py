"""Does cost follow work? The engine alone at many densities, interleaved: its time beside the executed MACs.

    python benchmarks/work.py

The target is time(d) / time(1) at most 1.15 times MACs(d) / MACs(1), plus 2%. Gates have random winners, as
in networks.py. Results are kept by machine and commit (benchmarks/kept.py).
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import tyro
from kept import RESULTS, keep
from rich.console import Console
from rich.table import Table
from threads import gated_network

from penstock.engine import compile as compile_engine
from penstock.measuring.timing import interleave


@dataclass(frozen=True)
class Options:
    """Measure how the engine's time falls with density."""

    networks: str = "m_cifarnet,vgg16_bn-conv,resnet18"
    densities: str = "1.0,0.9,0.7,0.5,0.3,0.2,0.1"
    threads: int = 1
    seconds: float = 20.0
    """About how long each network takes."""
    out: Path = RESULTS


@dataclass(frozen=True)
class Result:
    """One network at one density; time and MACs are shares of those at density 1."""

    network: str
    density: float
    isa: str
    milliseconds: float
    time_share: float
    mac_share: float
    target: float


def follow(name: str, densities: list[float], threads: int, seconds: float) -> list[Result]:
    gated, x = gated_network(name, 1)
    engine = compile_engine(gated, x, threads=threads)
    times = interleave({str(d): partial(engine, x, density=d) for d in densities}, seconds=seconds)
    macs = {d: float(engine.macs(x, density=d).mean()) for d in densities}
    results = []
    for d in densities:
        work, time = macs[d] / macs[1.0], times[str(d)].least / times["1.0"].least
        results.append(Result(name, d, engine.isa, times[str(d)].least, time, work, 1.15 * work + 0.02))
    return results


def main(options: Options) -> int:
    densities = sorted({1.0, *(float(d) for d in options.densities.split(","))}, reverse=True)
    results: list[Result] = []
    table = Table("network", "set", "density", "ms", "time", "MACs", "at most", "")
    for name in options.networks.split(","):
        for r in follow(name, densities, options.threads, options.seconds):
            results.append(r)
            numbers = (f"{r.milliseconds:.4g}", *(f"{s:.1%}" for s in (r.time_share, r.mac_share, r.target)))
            table.add_row(
                name, r.isa, f"{r.density:g}", *numbers, "holds" if r.time_share <= r.target else "over"
            )
    Console(width=120).print(table)
    keep("work", [asdict(r) for r in results], options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
