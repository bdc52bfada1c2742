"""Milliseconds at equal MACs: fewer pixels, fewer channels for each image, a smaller network.

    python benchmarks/pixels.py --files /tmp/pixels --prepare     # once: compiles the contestants
    python benchmarks/pixels.py --files /tmp/pixels               # on a quiet machine: times them

M-CifarNet as shipped, at 2, 3 and 4 times fewer MACs: PerforatedCNN (uniform masks), LCCL (thresholds that
leave the share of pixels), FBS (the any-density network) and Filter Pruning, beside the dense network in
float32 and int8. None is trained for its place here: this is about time alone. One thread, one image a call,
one interleaved run; MACs are those that the engine executed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from kept import RESULTS, keep
from torch import nn

import penstock as ps
import penstock_runtime as pr
from penstock.measuring.timing import interleave, one_by_one
from penstock.pruning import Budget, Calibration, FilterPruning, LowCostLayers, Perforated, calibration
from penstock.pruning.looking import measure_norms

SAVINGS = (2.0, 3.0, 4.0)
FBS = {2.0: 0.7, 3.0: 0.57, 4.0: 0.495}  # densities that cost as much
IMAGES = 16


@dataclass(frozen=True)
class Options:
    """Compare pixel lists with channel lists and smaller networks."""

    files: Path
    """Where the compiled contestants are."""
    prepare: bool = False
    """Compile them, and time nothing."""
    seconds: float = 12.0
    out: Path = RESULTS


def contestants(dense: nn.Module, data: Calibration) -> dict[str, nn.Module]:
    """Every network by name; FBS is one network at several densities."""
    example, made = data.images[:1], {"dense": dense}
    few, masks = Calibration(data.images[:1], data.labels[:1]), Perforated(masks="uniform")
    for saving in SAVINGS:
        budget = Budget(saving=saving)
        made[f"perforated {saving:g}x"] = masks.prune(dense, example, budget, few).network
        low = LowCostLayers().prune(dense, example, budget).network
        made[f"lccl {saving:g}x"] = settled(low, data.first(IMAGES), budget)
        made[f"filter-pruning {saving:g}x"] = FilterPruning().prune(dense, example, budget).network
    return made


def settled(network: nn.Module, data: Calibration, budget: Budget) -> nn.Module:
    """The network with its thresholds where they leave the wanted share of pixels of these images."""
    measure_norms(network, data.images)
    LowCostLayers().settle(network, data, budget)
    return network.eval()


def prepare(folder: Path) -> None:
    """Write FOLDER/NAME.penstock for all of them, and the images."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    dense = ps.zoo.pretrained("m_cifarnet-cifar10-dense").eval()
    data = calibration(ps.datasets.sample(), 64, dense.preprocess)
    example = data.images[:1]
    for name, network in contestants(dense, data).items():
        ps.compile(network.eval(), example).save(folder / f"{name}.penstock")
    ps.compile(dense, example, precision="int8", calibration=data.images).save(folder / "dense int8.penstock")
    ps.compile(ps.zoo.pretrained("m_cifarnet-cifar10-any"), example).save(folder / "fbs.penstock")
    torch.save(data.images[:IMAGES], folder / "images.pt")


def main(options: Options) -> None:
    if options.prepare:
        return prepare(options.files)
    images = torch.load(options.files / "images.pt", weights_only=True)
    calls, macs = {}, {}
    for path in sorted(options.files.glob("*.penstock")):
        engine = pr.load(path, threads=1)
        densities = {f"fbs {saving:g}x": density for saving, density in FBS.items()}
        for name, density in (densities if path.stem == "fbs" else {path.stem: None}).items():
            calls[name] = one_by_one(lambda x, e=engine, d=density: e(x, d), images.split(1))
            macs[name] = float(engine.macs(images, density).mean())
    timed = interleave(calls, seconds=options.seconds)
    rows = [
        {"name": name, "milliseconds": time.least, "steady": time.steady, "macs": macs[name]}
        for name, time in timed.items()
    ]
    for row in rows:
        print(json.dumps(row), flush=True)
    print(keep("pixels", rows, options.out))


if __name__ == "__main__":
    main(tyro.cli(Options))
