"""Sizing by simulation: requests a second that keep p95 within a target, for 1 to 1,000 cores.

    python benchmarks/queues.py                 # some ten minutes, most of them for 1,000 cores
    python benchmarks/queues.py --cores 1,16

The network takes 10 ms at density 1 and 1.4 ms at 0.3. Arrivals are random and seeded, so the table is the
same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from penstock.serving.simulation import carried

COLUMNS = ((20.0, 1.0), (20.0, 0.5), (20.0, 0.3), (50.0, 1.0), (50.0, 0.3))  # (target in ms, floor)


@dataclass(frozen=True)
class Options:
    """A table of requests a second."""

    cores: str = "1,2,4,16,64,256,1000"


def service(density: float) -> float:
    """Milliseconds of one request alone."""
    return 10 * (0.055 + 0.945 * density * density)


def main(options: Options) -> None:
    heads = [f"{target:g} ms, floor {floor:g}" for target, floor in COLUMNS]
    print(f"| cores | {' | '.join(heads)} |\n| --- |{' --- |' * len(heads)}")
    for cores in map(int, options.cores.split(",")):
        row = [carried(cores, service, target, floor) for target, floor in COLUMNS]
        print(f"| {cores:,} | {' | '.join(f'{rate:,}' for rate in row)} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options))
