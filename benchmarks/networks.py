"""The engine at several densities against dense runtimes, network by network.

    python benchmarks/networks.py                                   # everything: half an hour
    python benchmarks/networks.py --networks m_cifarnet --threads 1 --batches 1

Prints a table and keeps the results by machine and commit (benchmarks/kept.py), with a figure beside them.
Gates are random (their winners differ from image to image), the dense runtimes run the original network in
float32, as OpenVINO installs and in int8. VGG-16 runs without its three dense layers ("vgg16_bn-conv") unless
"vgg16_bn" is asked for. Have the machine to yourself; compare within one run only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from kept import RESULTS, add
from rich.console import Console
from torch import nn

from penstock import zoo
from penstock.measuring.contest import RIVALS, Contest, Prepared, prepare_contest, random_gates
from penstock.measuring.runtimes import runtime_names
from penstock.reporting.contest_table import contest_figure, contest_json, contest_table, contest_words
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
    calibration: int = 16
    """Images that set the ranges of the int8 networks."""
    models: Path | None = None
    """Keep the dense runtimes' networks here. Quantising takes longer than measuring and needs no quiet
    machine, so run once with --seconds 0, then again to measure."""
    out: Path = RESULTS


def make(name: str) -> tuple[nn.Module, int]:
    """A network of the zoo with random weights, and the side of its images."""
    network: nn.Module = getattr(zoo, name.removesuffix("-conv"))()
    if name == "vgg16_bn-conv":
        network.avgpool, network.classifier = nn.AdaptiveAvgPool2d(1), nn.Identity()
    return network.eval(), 32 if name == "m_cifarnet" else 224


def prepare(options: Options) -> list[Prepared]:
    """Every contest that was asked for, ready to be held."""
    made = []
    for name in options.networks.split(","):
        torch.manual_seed(0)
        dense, size = make(name)
        batches = [int(batch) for batch in options.batches.split(",")]
        images = torch.randn(max(2, options.calibration, *batches), 3, size, size)
        gated = random_gates(add_gates(dense, images[:2]), images[:2])
        for threads in options.threads.split(","):
            for batch in batches:
                made.append(
                    prepare_contest(
                        name,
                        gated,
                        dense,
                        images[:batch],
                        densities=[float(d) for d in options.densities.split(",")],
                        rivals=runtime_names(options.rivals),
                        threads=int(threads),
                        calibration=images[: options.calibration],
                        folder=options.models and options.models / name,
                    )
                )
    return made


def main(options: Options) -> int:
    console = Console(highlight=False)
    prepared = prepare(options)
    contests = []
    for one in prepared:
        torch.set_num_threads(one.engine.threads)
        contest = one.hold(options.seconds)
        contests.append(contest)
        console.print(to_rich(contest_table(contest)))
        for line in contest_words(contest):
            console.print(line)
    rows = [contest_json(contest) | {"setting": setting(contest)} for contest in contests]
    path = add("networks", rows, "setting", options.out)
    contest_figure(contests).savefig(path.with_suffix(".png"), dpi=150)
    return 0


def setting(contest: Contest) -> str:
    """What tells one contest from another."""
    return f"{contest.network}, {contest.threads} threads, batch {contest.batch}"


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
