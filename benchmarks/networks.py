"""The engine at several densities against dense runtimes, network by network.

    python benchmarks/networks.py                                   # everything: half an hour
    python benchmarks/networks.py --networks m_cifarnet --threads 1 --batches 1

Writes a table, benchmarks/results/networks.json and networks.png. Gates are random (their winners differ from
image to image), the dense runtimes run the original network. VGG-16 runs without its three dense layers
("vgg16_bn-conv") unless "vgg16_bn" is asked for. Have the machine to yourself; compare within one run only.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console
from torch import nn

from penstock import zoo
from penstock.files import write_atomically
from penstock.reporting.contest import RIVALS, hold_contest, random_gates
from penstock.reporting.contest_table import contest_figure, contest_json, contest_table
from penstock.reporting.tables import to_rich
from penstock.surgery import add_gates


@dataclass(frozen=True)
class Options:
    """Time networks through the engine and through dense runtimes, interleaved."""

    networks: str = "m_cifarnet,vgg16_bn-conv,resnet18"
    densities: str = "1.0,0.7,0.5,0.3"
    rivals: str = ",".join(RIVALS)
    threads: str = "1,2"
    batches: str = "1,32"
    seconds: float = 20.0
    """About how long each setting is measured."""
    out: Path = Path(__file__).parent / "results"


def make(name: str) -> tuple[nn.Module, int]:
    """A network of the zoo with random weights, and the side of its images."""
    network: nn.Module = getattr(zoo, name.removesuffix("-conv"))()
    if name == "vgg16_bn-conv":
        network.avgpool, network.classifier = nn.AdaptiveAvgPool2d(1), nn.Identity()
    return network.eval(), 32 if name == "m_cifarnet" else 224


def main(options: Options) -> int:
    console = Console(highlight=False)
    contests = []
    for name in options.networks.split(","):
        torch.manual_seed(0)
        dense, size = make(name)
        images = torch.randn(max(2, *(int(b) for b in options.batches.split(","))), 3, size, size)
        gated = random_gates(add_gates(dense, images[:2]), images[:2])
        for threads in options.threads.split(","):
            for batch in options.batches.split(","):
                contest = hold_contest(
                    name,
                    gated,
                    dense,
                    images[: int(batch)],
                    densities=[float(d) for d in options.densities.split(",")],
                    rivals=options.rivals.split(","),
                    threads=int(threads),
                    seconds=options.seconds,
                )
                contests.append(contest)
                console.print(to_rich(contest_table(contest)))
                for rival, problem in contest.problems.items():
                    console.print(f"{rival}: {problem}")
    options.out.mkdir(parents=True, exist_ok=True)
    found = json.dumps([contest_json(contest) for contest in contests], indent=1)
    write_atomically(options.out / "networks.json", found.encode())
    contest_figure(contests).savefig(options.out / "networks.png", dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
