"""The paper's last step on the shipped d = 0.5 network: drop the weights of channels that no image used.

python results/remove_unused.py      # prints JSON: weights before and after, accuracy on the test images
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import penstock as ps
from penstock.datasets import cifar10
from penstock.gating import gated_layers
from penstock.training import evaluate
from penstock.zoo import pretrained

_BATCH = 250


def weights(network: nn.Module) -> int:
    """Weights of the convolutions and the last layer, as the paper counts them: not those of the gates."""
    return sum(m.weight.numel() for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))


def main(images: int) -> None:
    network = pretrained("m_cifarnet-cifar10-d50").eval()
    data = cifar10("train").images[:images]

    def batches() -> Iterator[Tensor]:
        for part in data.split(_BATCH):
            yield network.preprocess(part)

    with torch.no_grad():
        smaller = ps.remove_unused(network, batches())
    test = cifar10("test")
    before = evaluate(
        ps.compile(network, network.preprocess(data[:1]), threads=2), test, preprocess=network.preprocess
    )
    after = evaluate(
        ps.compile(smaller, network.preprocess(data[:1]), threads=2), test, preprocess=network.preprocess
    )
    found = {
        "images": images,
        "weights_before": weights(network),
        "weights_after": weights(smaller),
        "reduction": round(weights(network) / weights(smaller), 3),
        "paper_reduction": 2.37,
        "channels": {name: layer.conv.out_channels for name, layer in gated_layers(smaller)},
        "top1_before": before.top1,
        "top1_after": after.top1,
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
