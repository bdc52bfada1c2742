"""The paper's last step on the shipped d = 0.5 network: drop the weights of channels that no image used.

    python results/remove_unused.py [20000]     # so many training images are looked at

Prints JSON: weights of convolutions and the last layer before and after, and accuracy on the test images.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

import penstock as ps
from penstock.datasets import cifar10
from penstock.gating import gated_layers
from penstock.surgery import removal_report
from penstock.training import evaluate
from penstock.zoo import pretrained

_BATCH = 250


def main(images: int) -> None:
    network = pretrained("m_cifarnet-cifar10-d50").eval()
    data = cifar10("train").images[:images]

    def batches() -> Iterator[Tensor]:
        for part in data.split(_BATCH):
            yield network.preprocess(part)

    with torch.no_grad():
        smaller = ps.remove_unused(network, batches())
    test, example = cifar10("test"), network.preprocess(data[:1])
    before, after = (
        evaluate(ps.compile(one, example, threads=2), test, preprocess=network.preprocess)
        for one in (network, smaller)
    )
    report = removal_report(smaller)
    found = {
        "images": images,
        "weights_before": report.weights_before,
        "weights_after": report.weights_after,
        "reduction": round(report.weights_ratio, 3),
        "paper_reduction": 2.37,
        "channels": {name: layer.conv.out_channels for name, layer in gated_layers(smaller)},
        "top1_before": before.top1,
        "top1_after": after.top1,
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
