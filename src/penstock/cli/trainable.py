"""What `train` and `sweep` start from: the data that --data names, and a network with gates if need be."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from penstock.datasets import Images, cifar10, hold_out, image_folder, sample
from penstock.errors import DataError
from penstock.gating import gated_layers
from penstock.surgery import add_gates
from penstock.training import Recipe

_SAMPLE_HOLDOUT = 200


def find_data(name: str, holdout: int = 0, size: int = 224) -> tuple[Images, Images]:
    """(training images, test images). name: "cifar10", "sample" (the embedded images), or a folder.

    A folder has train/CLASS/*.jpg and, for the scores, val/ or test/ beside it; without those two, a tenth of
    its images is held out.

    holdout: score on so many of the training images instead of the test part. size: a folder's images' side.
    """
    if holdout < 0:
        raise DataError(f"--holdout {holdout}: expected 0 (score on the test part) or more")
    if name == "cifar10":
        data = cifar10("train")
        return hold_out(data, holdout) if holdout else (data, cifar10("test"))
    if name == "sample":
        return hold_out(sample(), holdout or _SAMPLE_HOLDOUT)
    if Path(name).is_dir():
        return _find_folders(Path(name), holdout, size)
    raise DataError(f"--data {name!r}: expected cifar10, sample, or a folder that exists")


def _find_folders(root: Path, holdout: int, size: int) -> tuple[Images, Images]:
    parts = [root / part for part in ("val", "validation", "test") if (root / part).is_dir()]
    train = image_folder(root / "train" if (root / "train").is_dir() else root, size)
    if holdout or not (parts and (root / "train").is_dir()):
        return hold_out(train, holdout or max(1, len(train) // 10))
    return train, image_folder(parts[0], size, classes=train.classes)


def example_of(network: nn.Module, data: Images) -> Tensor:
    """Two images as the network sees them."""
    prepare = getattr(network, "preprocess", None) or data.preprocess
    return prepare(next(iter(data.test_batches(2))).images)


def with_gates(network: nn.Module, data: Images, recipe: Recipe, init: str = "preserve") -> nn.Module:
    """`network` itself, or a copy with gates if the recipe needs some and it has none."""
    wanted = recipe.density < 1.0 or recipe.density_schedule != "fixed"
    if not wanted or any(True for _ in gated_layers(network)):
        return network
    return add_gates(network, example_of(network, data), init=init)
