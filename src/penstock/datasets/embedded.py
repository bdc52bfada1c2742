"""The embedded sample: 1,000 CIFAR-10 test images, 100 of each class, inside the package; needs no download.

One PNG, a mosaic of 25 rows of 40 images, and a JSON file with each image's label and place in the test set.
`tools/make_sample.py` makes both from the whole data set; `sample/SOURCE.md` says where the images come from.
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources

import numpy as np
import torch
from PIL import Image

from penstock.datasets.arrays import ImageArrays
from penstock.errors import DataError

COLUMNS = 40
SIDE = 32
SHA256 = "658bc89049332ae3279df215777cd93e3400ae74f3abccc4744687af73686acf"


def sample() -> ImageArrays:
    """images: uint8 (1000, 3, 32, 32), in the order of the test set; labels: int64 (1000,).

    >>> len(sample()), sample().classes[:3]
    (1000, ('airplane', 'automobile', 'bird'))
    """
    folder = resources.files("penstock.datasets") / "sample"
    try:
        notes = json.loads((folder / "cifar10-sample.json").read_text())
        with (folder / "cifar10-sample.png").open("rb") as stream, Image.open(stream) as picture:
            images = from_mosaic(np.asarray(picture.convert("RGB")))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{folder}: the embedded sample cannot be read ({error}); install penstock again"
        ) from error
    labels = np.asarray(notes["labels"], dtype=np.uint8)
    found = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    if found != SHA256:
        raise DataError(f"{folder}: the embedded sample is altered (SHA-256 {found}, expected {SHA256})")
    return ImageArrays(
        torch.from_numpy(images),
        torch.from_numpy(labels.astype(np.int64)),
        tuple(notes["classes"]),
        "cifar10/sample",
    )


def to_mosaic(images: np.ndarray) -> np.ndarray:
    """(count, 3, side, side) → one picture (rows · side, COLUMNS · side, 3); count divides by COLUMNS."""
    count, channels, side, _ = images.shape
    tiles = images.reshape(count // COLUMNS, COLUMNS, channels, side, side)
    return tiles.transpose(0, 3, 1, 4, 2).reshape(count // COLUMNS * side, COLUMNS * side, channels)


def from_mosaic(picture: np.ndarray) -> np.ndarray:
    """The images of `to_mosaic` again, contiguous."""
    rows = picture.shape[0] // SIDE
    tiles = picture.reshape(rows, SIDE, COLUMNS, SIDE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles).reshape(rows * COLUMNS, 3, SIDE, SIDE)
