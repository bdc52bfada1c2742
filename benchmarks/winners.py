"""What winners that repeat do to speed: one network with trained winners, with random ones, with fixed ones.

    python benchmarks/winners.py m_cifarnet-cifar10-any --density 0.5
    python benchmarks/winners.py runs/resnet18-any --density 0.6 --data imagenette --size 224

The same convolutions run at the same density on the same images, one image a call, one after the other.
`trained`: the gates as they are. `random`: predictors with random weights, so that winners differ from image
to image. `fixed`: winners drawn once, the same for every image. A channel that won for the last image too may
still have its weights in a near cache. Prints JSON: milliseconds an image (least of many rounds over all
images), MACs executed, and the overlap: of an image's winners, the share that won for the one before as well.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import tyro
from torch import Tensor, nn

from penstock.cli.images import first_images
from penstock.cli.models import find_model
from penstock.cli.probe import draw_winners, resized
from penstock.cli.trainable import find_scored
from penstock.datasets import preprocess_of
from penstock.engine import Engine
from penstock.engine import compile as compile_engine
from penstock.gating import gated_layers, set_density
from penstock.measuring.contest import random_gates
from penstock.measuring.machine import machine_words
from penstock.measuring.timing import interleave


@dataclass(frozen=True)
class Options:
    """Time trained winners against random and fixed ones."""

    model: Annotated[str, tyro.conf.Positional] = "m_cifarnet-cifar10-any"
    density: float = 0.5
    data: str = ""
    """Default: what MODEL was trained on, else cifar10."""
    size: int = 0
    images: int = 32
    threads: int = 1
    seconds: float = 12.0


def overlap(network: nn.Module, images: Tensor) -> float:
    """The mean over layers, and over images but the first. images: (n, …)."""
    with torch.no_grad():
        network(images)
    shares = []
    for _, layer in gated_layers(network):
        assert layer.gains is not None
        won = layer.gains != 0
        both = (won[1:] & won[:-1]).sum(dim=1)
        shares.append((both / won[1:].sum(dim=1).clamp_min(1)).mean())
    return float(torch.stack(shares).mean())


def passes(engine: Engine, images: Tensor, density: float) -> Callable[[], object]:
    single = images.split(1)
    return lambda: [engine(one, density=density) for one in single]


def main(options: Options) -> None:
    network = find_model(options.model).eval()
    data = find_scored(options.model, options.data, options.size, 0, options.images)
    pixels = first_images(data, options.images)
    if options.size:
        pixels = resized(pixels, (options.size, options.size))
    images = preprocess_of(network, data)(pixels)
    fixed = copy.deepcopy(network)
    draw_winners(fixed, torch.Generator().manual_seed(0))
    kinds = {"trained": network, "random": random_gates(copy.deepcopy(network), images), "fixed": fixed}
    found, calls = {}, {}
    for kind, one in kinds.items():
        set_density(one, options.density)
        engine = compile_engine(one, images[:1], threads=options.threads)
        calls[kind] = passes(engine, images, options.density)
        macs = float(engine.macs(images, density=options.density).mean())
        found[kind] = {"overlap": round(overlap(one, images), 3), "macs": macs}
    times = interleave(calls, seconds=options.seconds, least_rounds=5)
    for kind, time in times.items():
        found[kind]["milliseconds"] = time.least / len(images)
        found[kind]["nanoseconds_per_kilomac"] = 1e9 * time.least / len(images) / found[kind]["macs"]
    said = {
        "machine": machine_words(engine.isa),
        "threads": options.threads,
        "model": options.model,
        "density": options.density,
        "images": f"{len(images)} of {data.name}, {images.shape[2]}×{images.shape[3]}",
        "winners": found,
        "random_over_trained": times["random"].least / times["trained"].least,
    }
    print(json.dumps(said, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
