"""Makes the files in tests/runtime/files/: one for each version of the format, kept for good.

    python tests/runtime/make_files.py

A file that is already there is left alone: later versions must read it as it is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from penstock.engine import compile as compile_engine
from penstock.gating import set_levels
from penstock.surgery import add_gates
from penstock_runtime import Engine, Measurement, Preprocess

FOLDER = Path(__file__).parent / "files"


class Block(nn.Module):
    """A residual block with a pooling, so that most kinds of operations occur."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.first(x), 2)
        x = nn.functional.relu(x + self.second(x))
        return self.last(x.mean((2, 3)))


def main() -> None:
    torch.manual_seed(11)
    example = torch.randn(2, 3, 12, 12)
    gated = add_gates(Block().eval(), example, density=0.5, init="paper")
    set_levels(gated, (0.25, 0.5, 1.0))
    gated.preprocess = Preprocess((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), resize=14.0)
    for precision in ("float32", "int8"):
        calibration = {"calibration": example} if precision == "int8" else {}
        keep(compile_engine(gated, example, precision=precision, **calibration), example.numpy())


def keep(engine: Engine, images: npt.NDArray[np.float32]) -> None:
    """Write the engine's file and its results, unless they are there."""
    info = replace(
        engine.info,
        name="block",
        classes=("north", "east", "south", "west"),
        measured=(Measurement(0.5, 70.0, 0.01), Measurement(1.0, 71.5, 0.02)),
        conditions="made up, for the test",
        licence="Apache-2.0",
    )
    version = f"v1-format{int(engine._native.array('program/format'))}"
    path = FOLDER / f"block-{engine.info.precision}-{version}.penstock"
    if path.exists():
        return
    engine.save(path, info)
    results = {f"{d:g}": engine(images, density=d) for d in (0.25, 0.5, 1.0)}
    np.savez(path.with_suffix(".npz"), images=images, **results)


if __name__ == "__main__":
    main()
