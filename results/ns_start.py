"""The channels that Network Slimming kept, cut out of the any-density network: where NS+FBS starts.

    python results/ns_start.py runs/any-s0d runs/ns-start

Network Slimming chose the channels of `runs/ns-s0` (`penstock prune`, see README.md). Gates put on that
network start from nothing; those of the any-density network, which comes from the same dense one, have
learned already. Cut down to the same channels they need a few epochs only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.datasets import cifar10, hold_out
from penstock.exporting import load, save
from penstock.pruning import Budget, NetworkSlimming
from penstock.surgery import keep_channels, removal_report
from penstock.training import Recipe, train

DENSE, SLIMMED = Path("runs/dense-s0b"), Path("runs/ns-s0")


def main(gated_from: Path, to: Path) -> int:
    plan = json.loads((SLIMMED / "plan.json").read_text(encoding="utf-8"))
    data, _ = hold_out(cifar10("train"), 5000)
    sparse, teacher = load(DENSE / "model.safetensors"), load(DENSE / "model.safetensors")
    # The stage is done, so this reads its end from the folder and trains nothing.
    train(sparse, data, None, Recipe(**plan["sparse"]), out=SLIMMED / "round1" / "sparse", teacher=teacher)
    gated = load(gated_from / "model.safetensors")
    example = gated.preprocess(next(iter(data.test_batches(2))).images)  # type: ignore[operator]
    cut = NetworkSlimming(plan["method"]["sparsity"]).prune(sparse, example, Budget(**plan["budget"]))
    smaller = keep_channels(gated, example, {layer.layer: layer.kept for layer in cut.layers})
    smaller.preprocess = gated.preprocess
    save(smaller, to / "model.safetensors")
    for width in removal_report(smaller).layers:
        print(f"{width.name}: {width.before} → {width.after} channels")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
