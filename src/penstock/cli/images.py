"""From the --data option of a command to labelled images, and how a network takes them.

Images are the sample, CIFAR-10, Imagenette, or a folder. A network takes them by the mean and std that the
user gives, else by those that it knows itself (`network.preprocess`), else by the data set's; the command
then says so, because a wrong normalisation costs accuracy without any other sign.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock import datasets
from penstock.cli.models import ModelOptions
from penstock.datasets import (
    ImageArrays,
    ImageFolder,
    Images,
    Photographs,
    Preprocess,
    hold_out,
    image_folder,
    preprocess_of,
)
from penstock.datasets.folder import class_folders
from penstock.errors import DataError, InputError, LayerError, PenstockError

_NAMES = ("sample", "cifar10", "imagenette")
PARTS = ("val", "validation", "test")
"""What the part of an image folder that scores are taken on may be called."""


def find_test_data(
    name: str, limit: int = 0, holdout: int = 0, size: int = 224
) -> ImageArrays | ImageFolder | Photographs:
    """The test images that `name` means; with a limit no more than that, equally many of each class.

    A folder has val/CLASS/*.jpg (or validation/, or test/), or the classes themselves. holdout: the training
    images that `penstock train --holdout` left out, instead. size: the side of photographs.
    """
    if limit < 0:
        raise DataError(f"--images {limit}: expected 0 (all) or more")
    if holdout < 0 or (holdout and name == "sample"):
        raise DataError(f"--holdout {holdout}: expected 0, or a number of training images to score")
    data = find_part(name, holdout > 0, size)
    if holdout:
        data = hold_out(data, holdout)[1]
    return hold_out(data, limit)[1] if 0 < limit < len(data) else data


def find_part(name: str, training: bool, size: int) -> ImageArrays | ImageFolder | Photographs:
    """The training part or the test part of what `name` means; of the sample, which has no parts, all."""
    if name == "sample":
        return datasets.sample()
    if name == "cifar10":
        return datasets.cifar10("train" if training else "test")
    if name == "imagenette":
        return datasets.imagenette("train" if training else "val", size)
    root = Path(name)
    if not root.is_dir():
        raise DataError(f"--data {name!r}: expected one of {', '.join(_NAMES)}, or a folder that exists")
    train = root / "train" if (root / "train").is_dir() else root
    if training:
        return image_folder(train, size)
    part = next((root / part for part in PARTS if (root / part).is_dir()), root)
    return image_folder(part, size, classes=class_folders(train))


def find_images(name: str, limit: int = 0, holdout: int = 0, size: int = 224) -> ImageArrays:
    """The same, in memory."""
    return in_memory(find_test_data(name, limit, holdout, size))


def in_memory(data: Images) -> ImageArrays:
    """All images of a data set as arrays; those that cannot be read are left out."""
    if isinstance(data, ImageArrays):
        return data
    batches = [batch for batch in data.test_batches(256) if len(batch.images)]
    if not batches:
        raise _unreadable(data)
    images, labels = (torch.cat([batch[at] for batch in batches]) for at in (0, 1))  # type: ignore[misc]
    return ImageArrays(images, labels, data.classes, data.name, data.preprocess)


@dataclass(frozen=True)
class ReadOptions(ModelOptions):
    """How a MODEL and its images are read."""

    mean: str = ""
    """Of each channel, for pixels from 0 to 1: 0.49,0.48,0.45. Default: MODEL's own, else the data's."""
    std: str = ""
    """What pixels less the mean are divided by, as in 0.25,0.24,0.26."""

    def preprocess(self) -> Preprocess | None:
        """What --mean and --std say, if they say something."""
        if not self.mean and not self.std:
            return None
        if not self.mean or not self.std:
            raise InputError("--mean and --std go together, as in --mean 0.49,0.48,0.45 --std 0.25,0.24,0.26")
        return Preprocess(_numbers("--mean", self.mean), _numbers("--std", self.std))


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(one) for one in text.split(","))
    except ValueError:
        raise InputError(f"{option}: expected numbers as in 0.49,0.48,0.45, got {text!r}") from None


def settle_preprocess(
    network: nn.Module, model: str, data: Images, reading: ReadOptions, quiet: bool = False
) -> bool:
    """Set `network.preprocess`; True, and a line on stderr, if it had to be assumed."""
    return assume_preprocess(network, model, data.preprocess, f"{data.name}'s", reading, quiet)


def assume_preprocess(
    network: nn.Module,
    model: str,
    assumed: Any,
    whose: str,
    reading: ReadOptions | None = None,
    quiet: bool = False,
) -> bool:
    """The same with `assumed`, which the message calls `whose`. reading: None for a teacher."""
    given = None if reading is None else reading.preprocess()
    if given is not None:
        network.preprocess = given  # type: ignore[assignment]
    if getattr(network, "preprocess", None) is not None:
        return False
    network.preprocess = assumed
    if not quiet:
        otherwise = "" if reading is None else "; --mean and --std say otherwise"
        words = f"{preprocess_words(assumed)} ({whose}){otherwise}"
        print(f"{model} does not say how it takes images: assumed {words}", file=sys.stderr)
    return True


def preprocess_words(prepare: Any) -> str:
    """ "mean 0.49,0.48,0.45 and std 0.25,0.24,0.26", or that it is code of the user's own."""
    if not isinstance(prepare, Preprocess):
        return f"its own {type(prepare).__name__}"
    mean, std = (",".join(f"{value:g}" for value in values) for values in (prepare.mean, prepare.std))
    return f"mean {mean} and std {std}"


def preprocess_json(prepare: Any, assumed: bool) -> dict[str, Any]:
    """How the images went in, for --json; a function of the user's own has neither mean nor std."""
    found = {name: getattr(prepare, name, None) for name in ("mean", "std")}
    return {"preprocess": found | {"assumed": assumed}}


def first_images(data: Images, count: int) -> Tensor:
    """uint8 (at most count, channel, height, width): the first ones that can be read."""
    for batch in data.test_batches(count):
        if len(batch.images):
            return batch.images
    raise _unreadable(data)


def _unreadable(data: Images) -> DataError:
    return DataError(f"{data.name}: none of its images can be read; choose others with --data")


def check_fits(network: nn.Module, data: Images) -> None:
    """One image through the network, so that a misfit is said once and clearly."""
    image = first_images(data, 1)
    try:
        with torch.no_grad():
            logits = network.eval()(preprocess_of(network, data)(image))
    except (RuntimeError, PenstockError) as error:
        reason = str(error).split("\n")[0]
        raise LayerError(f"the network does not take images of {data.name} ({reason})") from error
    if logits.dim() != 2 or logits.shape[1] != len(data.classes):
        raise LayerError(
            f"the network gives {tuple(logits.shape[1:])} for an image, but {data.name} has "
            f"{len(data.classes)} classes; choose other images with --data"
        )
