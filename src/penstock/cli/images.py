"""From the --data option of a command to labelled images: the embedded sample or CIFAR-10's test part."""

from __future__ import annotations

from penstock import datasets
from penstock.datasets import ImageArrays, hold_out
from penstock.errors import DataError

_NAMES = ("sample", "cifar10")


def find_images(name: str, limit: int = 0, holdout: int = 0) -> ImageArrays:
    """The images that `name` means; with a limit no more than that, equally many of each class.

    holdout: the training images that `penstock train --holdout` left out, instead of CIFAR-10's test part.
    """
    if name not in _NAMES:
        raise DataError(f"--data {name!r}: expected one of {', '.join(_NAMES)}")
    if limit < 0:
        raise DataError(f"--images {limit}: expected 0 (all) or more")
    if holdout < 0 or (holdout and name == "sample"):
        raise DataError(f"--holdout {holdout}: expected 0, or a number of training images of cifar10")
    if holdout:
        data = hold_out(datasets.cifar10("train"), holdout)[1]
    else:
        data = datasets.sample() if name == "sample" else datasets.cifar10("test")
    return hold_out(data, limit)[1] if 0 < limit < len(data) else data
