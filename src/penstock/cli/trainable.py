"""What `train`, `sweep` and `prune` start from: the images of --data, and MODEL, with gates if need be."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from penstock.cli.images import (
    PARTS,
    ReadOptions,
    assume_preprocess,
    find_part,
    find_test_data,
    first_images,
    settle_preprocess,
)
from penstock.cli.models import find_model
from penstock.cli.sources import Source, remembered
from penstock.datasets import ImageFolder, Images, hold_out, preprocess_of
from penstock.errors import DataError
from penstock.gating import is_gated
from penstock.surgery import add_gates
from penstock.training import Recipe

_SAMPLE_HOLDOUT = 200


def find_data(name: str, holdout: int = 0, size: int = 224) -> tuple[Images, Images]:
    """(training images, test images). name: "cifar10", "imagenette", "sample" (embedded), or a folder.

    A folder has train/CLASS/*.jpg and, for the scores, val/ or test/ beside it; without those two, a tenth of
    its images is held out.

    holdout: training images to score on instead of the test part. size: the side of photographs.
    """
    if holdout < 0:
        raise DataError(f"--holdout {holdout}: expected 0 (score on the test part) or more")
    train = find_part(name, True, size)
    if name == "sample":
        holdout = holdout or _SAMPLE_HOLDOUT
    elif isinstance(train, ImageFolder):
        first_images(train, 1)  # a folder of damaged images is said before anything is begun
        if not has_test_part(Path(name)):
            holdout = holdout or max(1, len(train) // 10)
    return hold_out(train, holdout) if holdout else (train, find_part(name, False, size))


def find_start(
    model: str, source: Source, seed: int, reading: ReadOptions, quiet: bool = False
) -> tuple[Images, Images, nn.Module]:
    """(training images, test images, the network that MODEL names); new weights are drawn by `seed`."""
    train_data, test_data = find_data(source.data, source.holdout, source.size)
    torch.manual_seed(seed)
    network = find_model(model, len(train_data.classes), reading)
    settle_preprocess(network, model, train_data, reading, quiet=quiet)
    return train_data, test_data, network


def find_scored(model: str, data: str, size: int, holdout: int, limit: int) -> Images:
    """What a command scores MODEL on, at most `limit` images if that is not 0.

    The images that the user names, else the test part of those it was trained on (held-out ones where there
    is no test part), else CIFAR-10's.
    """
    own = remembered(model)
    if data or own is None:
        return find_test_data(data or "cifar10", limit, holdout, size or 224)
    folder = Path(own.data)
    alone = own.data == "sample" or (folder.is_dir() and not has_test_part(folder))
    _, test = find_data(own.data, own.holdout if alone else holdout, size or own.size)
    return hold_out(test, limit)[1] if 0 < limit < len(test) else test  # type: ignore[type-var]


def has_test_part(root: Path) -> bool:
    """Whether a folder of images has a part for the scores beside its training part."""
    return (root / "train").is_dir() and any((root / part).is_dir() for part in PARTS)


def find_teacher(
    spec: str, student: nn.Module, classes: int | None, reading: ReadOptions
) -> nn.Module | None:
    """The network that `spec` names, if any; it takes images as it says, else as the student does."""
    if not spec:
        return None
    teacher = find_model(spec, classes, reading)
    assume_preprocess(teacher, f"--teacher {spec}", getattr(student, "preprocess", None), "MODEL's")
    return teacher


def example_of(network: nn.Module, data: Images) -> Tensor:
    """Two images as the network sees them."""
    prepare = preprocess_of(network, data)
    return prepare(first_images(data, 2))


def with_gates(network: nn.Module, data: Images, recipe: Recipe, init: str = "preserve") -> nn.Module:
    """`network` itself, or a copy with gates if the recipe needs some and it has none."""
    wanted = recipe.density < 1.0 or recipe.gates.density_schedule != "fixed"
    if not wanted or is_gated(network):
        return network
    return add_gates(network, example_of(network, data), init=init)
