"""The first training loss of M-CifarNet: dense, with function-preserving gates, with the paper's gates.

    python benchmarks/first_loss.py [--model m_cifarnet] [--seeds 5] [--images 128] [--json]

One batch of the embedded sample, before any step, gates at density 1 and 0.5; mean and deviation over the
seeds (which draw the weights, and the paper's gates). MODEL may be a trained dense checkpoint.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
import torch.nn.functional as F
from torch import nn

import penstock as ps
from penstock.cli.models import find_model
from penstock.datasets import Preprocess


def first_losses(model: str, seed: int, images: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """{what: cross entropy} of one draw, in train mode."""
    torch.manual_seed(seed)
    dense = find_model(model)
    losses = {"dense": loss_of(dense, images, labels)}
    for init in ("preserve", "paper"):
        gated = ps.add_gates(dense, images[:1], init=init)
        for density in (1.0, 0.5):
            ps.set_density(gated, density)
            losses[f"{init}, d = {density:g}"] = loss_of(gated, images, labels)
    return losses


def loss_of(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Cross entropy of one batch in train mode; the running statistics it leaves behind are not used here."""
    network.train()
    with torch.no_grad():
        return float(F.cross_entropy(network(images), labels))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="m_cifarnet")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data = ps.datasets.sample()
    images, labels = Preprocess()(data.images[: options.images]), data.labels[: options.images]
    runs = [first_losses(options.model, seed, images, labels) for seed in range(options.seeds)]
    rows = {
        what: {
            "mean": statistics.fmean(run[what] for run in runs),
            "std": statistics.pstdev(run[what] for run in runs),
        }
        for what in runs[0]
    }
    if options.json:
        print(json.dumps({"model": options.model, "seeds": options.seeds, "losses": rows}))
        return
    print(f"first loss of {options.model}, {len(images)} images, {options.seeds} seeds")
    for what, row in rows.items():
        print(f"  {what:18} {row['mean']:10.3f} ± {row['std']:.3f}")


if __name__ == "__main__":
    main()
