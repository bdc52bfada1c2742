"""3×3 convolutions on small maps in training: torch's, Winograd's and tap by tap, forward and both gradients.

    python benchmarks/small_maps.py [--images 64] [--threads 1] [--rounds 4]

The layers of ResNet-18 on images of 64 to 128 pixels. Prints a JSON line a layer, the shortest times in ms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from penstock.training.memory import keep_freed_memory
from penstock.training.taps import conv3x3_by_taps
from penstock.training.winograd import conv3x3

LAYERS = (  # in, out, side of the input, stride
    *((512, 512, 2, 1), (512, 512, 3, 1), (512, 512, 4, 1), (256, 256, 4, 1), (256, 256, 6, 1)),
    *((256, 512, 4, 2), (256, 512, 6, 2), (256, 512, 8, 2), (128, 256, 12, 2), (128, 256, 16, 2)),
)


@dataclass(frozen=True)
class Options:
    """Time convolutions of training on small maps."""

    images: int = 64
    threads: int = 1
    rounds: int = 4


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    for inputs, out, side, stride in LAYERS:
        torch.manual_seed(0)
        x = torch.randn(options.images, inputs, side, side).contiguous(memory_format=torch.channels_last)
        w = torch.randn(out, inputs, 3, 3).div(50).contiguous(memory_format=torch.channels_last)
        ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "torch": lambda x, w, s=stride: F.conv2d(x, w, stride=s, padding=1),  # type: ignore[misc]
            "taps": lambda x, w, s=stride: conv3x3_by_taps(x, w, s, 1),  # type: ignore[misc]
        }
        if stride == 1:
            ways["winograd"] = lambda x, w: conv3x3(x, w, 1)
        times = {name: shortest(way, x, w, options.rounds) for name, way in ways.items()}
        print(json.dumps({"in": inputs, "out": out, "side": side, "stride": stride, "ms": times}), flush=True)


def shortest(way: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor, rounds: int) -> list[float]:
    """[forward, both gradients] in milliseconds."""
    leaves = [one.clone(memory_format=torch.channels_last).requires_grad_() for one in (x, w)]
    gradient = torch.randn_like(way(*leaves))
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        y = way(*leaves)
        middle = time.perf_counter()
        torch.autograd.grad(y, leaves, gradient)
        found.append((middle - begin, time.perf_counter() - middle))
    return [round(1e3 * min(part), 1) for part in zip(*found, strict=True)]


if __name__ == "__main__":
    main(tyro.cli(Options))
