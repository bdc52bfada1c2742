"""Two source trees, each with its native module built in place, timed against each other.

    git worktree add ../before COMMIT && (cd ../before && python tools/build_native.py)
    python tools/compare_builds.py ../before . --networks resnet18 --densities 1.0,0.5,0.2

Two modules of one name do not fit into one process, so each tree has a process of its own. They take turns,
one working while the other waits, in an order that changes from round to round: what disturbs the machine for
a while disturbs both. Each tree makes its network by its own benchmarks/threads.py, from the same seed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

# A worker's whole program: one line in (density, seconds), one line out (the least milliseconds of a call).
_WORKER = """
import sys, time
import torch
from threads import gated_network
from penstock.engine import compile
torch.set_num_threads(1)
network, image = gated_network(sys.argv[1], 1)
engine = compile(network, image, threads=int(sys.argv[2]))
print("ready", flush=True)
for line in sys.stdin:
    density, seconds = map(float, line.split())
    engine(image, density=density)
    least, end = float("inf"), time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        engine(image, density=density)
        least = min(least, time.perf_counter() - begin)
    print(1e3 * least, flush=True)
"""


@dataclass(frozen=True)
class Options:
    """Time two builds against each other."""

    before: Annotated[Path, tyro.conf.Positional]
    """A source tree with its native module in place."""
    after: Annotated[Path, tyro.conf.Positional]
    networks: str = "m_cifarnet,resnet18"
    densities: str = "1.0,0.7,0.5,0.3,0.2,0.1"
    threads: int = 1
    rounds: int = 12
    seconds: float = 0.15
    """How long a turn takes, after one call untimed."""


class Worker:
    """One tree's process."""

    def __init__(self, tree: Path, network: str, threads: int) -> None:
        tree = tree.resolve()
        folders = [tree / "benchmarks", tree / "src", tree / "runtime" / "src"]
        path = os.pathsep.join(str(folder) for folder in folders if folder.is_dir())
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, network, str(threads)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._answer() != "ready":
            raise SystemExit(f"{tree}: {network} did not compile; is the native module built in place?")

    def time(self, density: float, seconds: float) -> float:
        """The least milliseconds of a call."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{density} {seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def main(options: Options) -> int:
    densities = [float(d) for d in options.densities.split(",")]
    table = Table("network", "density", "before, ms", "after, ms", "least", "median of pairs")
    for network in options.networks.split(","):
        workers = [Worker(tree, network, options.threads) for tree in (options.before, options.after)]
        times: dict[float, tuple[list[float], list[float]]] = {d: ([], []) for d in densities}
        for number in range(options.rounds):
            for density in densities:
                for which in (0, 1) if number % 2 == 0 else (1, 0):
                    times[density][which].append(workers[which].time(density, options.seconds))
        for worker in workers:
            worker.close()
        for density, (before, after) in times.items():
            pairs = statistics.median(new / old for old, new in zip(before, after, strict=True)) - 1
            least = min(after) / min(before) - 1
            numbers = (f"{min(before):.4g}", f"{min(after):.4g}", f"{least:+.1%}", f"{pairs:+.1%}")
            table.add_row(network, f"{density:g}", *numbers)
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
