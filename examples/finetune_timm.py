"""Gate a timm network and fine-tune it at half the channels.

    python examples/finetune_timm.py
    python examples/finetune_timm.py --network resnet50 --epochs 10

Put your own data where `ps.datasets.sample()` stands: `ps.datasets.cifar10("train")`, or a folder of images.
"""

from __future__ import annotations

import argparse

import timm
import torch

import penstock as ps
from penstock.training import Gates


def main(arguments: list[str] | None = None) -> float:
    """Returns the accuracy, in percent, on the images that were not trained on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--density", type=float, default=0.5)
    parser.add_argument("--images", type=int, default=200, help="of the sample, half of them for testing")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = timm.create_model(options.network, num_classes=10)  # your trained network: pretrained=True
    _, data = ps.datasets.hold_out(ps.datasets.sample(), options.images)
    train, test = ps.datasets.hold_out(data, len(data) // 2)
    example = torch.zeros(1, 3, 32, 32)

    gated = ps.add_gates(model, example)  # equals `model` until the density falls
    print(ps.explain(gated))

    # A low rate and a density that falls during the run keep what the network knows.
    recipe = ps.Recipe(
        epochs=options.epochs,
        learning_rate=0.02,
        density=options.density,
        batch_size=32,
        gates=Gates(density_schedule="anneal"),
    )
    ps.train(gated, train, test, recipe)

    engine = ps.compile(gated, example)
    score = ps.evaluate(engine, test)
    cost = ps.account(gated, engine.preprocess(test.images[:16]))
    print(f"{score.top1:.1f}% top-1, {cost.saving:.2f}× fewer MACs at density {options.density:g}")
    return score.top1


if __name__ == "__main__":
    main()
