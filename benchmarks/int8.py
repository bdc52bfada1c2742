"""The engine in int8 at several densities against dense int8 in ONNX Runtime and OpenVINO.

    python benchmarks/int8.py                          # M-CifarNet, ResNet-18 and the convolutions of VGG-16
    python benchmarks/int8.py --isa avx2               # everything held to AVX2, but for ONNX Runtime
    python benchmarks/int8.py --models DIR --seconds 0 # only prepare the rivals; then again to measure

One thread, batch 1, all contestants interleaved in one process, least times; the engine in float32 runs
beside them. Gates are random, as in networks.py. Prints how many times as fast as the fastest dense int8 each
density is, beside what was asked for, and keeps the results by machine and commit (benchmarks/kept.py). Have
the machine to yourself.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from kept import RESULTS, add
from networks import Options as NetworkOptions
from networks import prepare, setting
from rich.console import Console
from rich.table import Table

from penstock.measuring.contest import Contest
from penstock.measuring.runtimes import hold_instruction_set
from penstock.reporting.contest_table import contest_json, contest_words

# {network: {density: times as fast as the fastest dense int8}}
WANTED = {
    "m_cifarnet": {1.0: 1.3, 0.7: 1.7, 0.5: 3.0, 0.3: 5.0},
    "resnet18": {1.0: 1.1, 0.7: 1.4, 0.5: 2.5, 0.3: 4.0},
    "vgg16_bn-conv": {1.0: 1.3, 0.7: 2.0, 0.5: 4.0, 0.3: 8.0},
}


@dataclass(frozen=True)
class Options:
    """Time int8 networks that skip against dense int8 ones."""

    networks: str = ",".join(WANTED)
    seconds: float = 20.0
    """About how long each network is measured."""
    isa: str = ""
    """Hold the engine and OpenVINO to an instruction set: avx2 or avx512."""
    models: Path | None = None
    """Keep the dense runtimes' networks here. Quantising takes longer than measuring and needs no quiet
    machine, so run once with --seconds 0, then again to measure."""
    out: Path = RESULTS


def factors(contest: Contest) -> Table:
    """Density by density: milliseconds in float32 and int8, and how many times as fast as dense int8."""
    fastest = contest.fastest("int8")
    dense = "none" if fastest is None else f"{fastest.name}, {fastest.milliseconds:.3f} ms"
    table = Table(
        "density", "float32, ms", "int8, ms", "× dense int8", "wanted", title=f"{contest.network} ({dense})"
    )
    wanted = WANTED.get(contest.network, {})
    ours = {(entry.density, entry.precision): entry for entry in contest.entries if entry.density is not None}
    for density in sorted({density for density, _ in ours}, reverse=True):
        float32, int8 = ours[density, "float32"], ours.get((density, "int8"))
        if int8 is None:
            continue
        times = contest.speed_up(int8, "int8")
        table.add_row(
            f"{density:g}",
            f"{float32.milliseconds:.3f}",
            f"{int8.milliseconds:.3f}",
            "not steady" if times is None else f"{times:.2f}",
            f"{wanted[density]:g}" if density in wanted else "",
        )
    return table


def main(options: Options) -> int:
    if options.isa:
        hold_instruction_set(options.isa)
    console = Console(highlight=False)
    prepared = prepare(
        NetworkOptions(
            networks=options.networks, rivals="int8", threads="1", batches="1", models=options.models
        )
    )
    if options.seconds <= 0:
        return 0
    contests = []
    for one in prepared:
        torch.set_num_threads(1)
        contest = one.hold(options.seconds)
        contests.append(contest)
        console.print(factors(contest))
        for line in contest_words(contest):
            console.print(line)
    path = add("int8", [contest_json(c) | {"setting": setting(c)} for c in contests], "setting", options.out)
    console.print(f"kept in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
