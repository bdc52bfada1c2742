"""The ranges that an int8 network needs: from the checkpoint, or from calibration images that are at hand."""

from __future__ import annotations

from typing import Literal

from torch import nn

from penstock.cli.images import in_memory
from penstock.cli.sources import choose
from penstock.cli.trainable import find_data
from penstock.datasets import ImageArrays, Images, hold_out, preprocess_of
from penstock.errors import DataError
from penstock.quantizing import Ranges, calibrate

Shown = Literal["auto", "float32", "int8"]
IMAGES = 256  # for calibration, unless the user says otherwise


def calibration_images(model: str, name: str, size: int, count: int, scored: Images) -> ImageArrays:
    """Training images of the data set that is scored; the embedded sample has no others than its own."""
    if count < 1:
        raise DataError(f"--calibration {count}: expected 1 image or more")
    if name == "sample":
        rest: Images = scored
    else:
        source = choose(model, name, size)
        rest, _ = find_data(source.data, 0, source.size)
    chosen = hold_out(rest, count)[1] if count < len(rest) else rest  # type: ignore[type-var]
    return in_memory(chosen)


def ranges_for(
    network: nn.Module, precision: Shown, model: str, name: str, size: int, scored: Images
) -> Ranges | None:
    """Ranges if int8 is to be shown: asked for, or with "auto" the checkpoint's own, if it has them."""
    own = getattr(network, "ranges", None)
    if precision == "float32" or (precision == "auto" and own is None):
        return None
    if own is not None:
        return own  # type: ignore[no-any-return]
    chosen = calibration_images(model, name, size, IMAGES, scored)
    return calibrate(network, preprocess_of(network, scored)(chosen.images))
