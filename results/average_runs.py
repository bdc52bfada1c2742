"""Several runs of one network with levels become one: weights averaged, norms measured anew at every level.

    python results/average_runs.py runs/any-s1:0.35 runs/any-s1b:0.65 runs/any-s1d

Reads the runs' networks, looks at training images without those held out, and writes `model.safetensors` into
the last folder. Averaged weights have statistics of their own, so those of the runs would not fit them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import penstock as ps
from penstock.datasets import Images, cifar10, hold_out
from penstock.gating import LevelNorm2d, gated_layers, set_density

_HELD_OUT = 5000
_IMAGES = 10_000
_BATCH = 250


def average(runs: list[tuple[Path, float]]) -> nn.Module:
    """The weighted mean of all floating-point values; the weights of the runs add up to one."""
    networks = [(ps.load(folder / "model.safetensors"), weight) for folder, weight in runs]
    total = sum(weight for _, weight in networks)
    states = [(network.state_dict(), weight / total) for network, weight in networks]
    mean = {
        name: torch.stack([state[name] * weight for state, weight in states]).sum(0)
        if value.is_floating_point()
        else value
        for name, value in states[0][0].items()
    }
    networks[0][0].load_state_dict(mean)
    return networks[0][0]


@torch.no_grad()
def measure_norms(network: nn.Module, data: Images) -> None:
    """Every level's statistics become those of so many images at its density."""
    norms = [module for module in network.modules() if isinstance(module, LevelNorm2d)]
    levels = {level for _, layer in gated_layers(network) for level in layer.levels}
    usual = [norm.momentum for norm in norms]
    for level in sorted(levels):
        set_density(network, level)
        for number, batch in enumerate(data.test_batches(_BATCH)):
            if number * _BATCH >= _IMAGES:
                break
            for norm in norms:
                norm.train()
                norm.momentum = 1 / (number + 1)  # the plain mean over the batches
            network(network.preprocess(batch.images))
    for norm, momentum in zip(norms, usual, strict=True):
        norm.eval()
        norm.momentum = momentum
    set_density(network, 1.0)


def main(given: list[str], out: Path) -> int:
    runs = [(Path(run), float(weight)) for run, _, weight in (item.rpartition(":") for item in given)]
    network = average(runs)
    training, _ = hold_out(cifar10("train"), _HELD_OUT)
    measure_norms(network, training)
    out.mkdir(parents=True, exist_ok=True)
    ps.save(network, out / "model.safetensors", notes={"averaged": given})
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:-1], Path(sys.argv[-1])))
