"""Images from strangers: the bytes of a file in, what a network takes out, or a reason why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_runtime import Engine
from penstock_runtime.images import read_image


def decode(content: bytes, engine: Engine) -> npt.NDArray[Any]:
    """content: an image file's bytes → (1, channel, height, width), as the network takes it."""
    way = engine.info.preprocess
    resize = None if way is None else way.resize
    pixels = read_image(content, engine.input_shape, resize)
    return prepare(pixels, engine)


def prepare(images: npt.NDArray[Any], engine: Engine) -> npt.NDArray[Any]:
    """images: float32 as the network takes it, or uint8 pixels, which are preprocessed as the file says."""
    if images.dtype != np.uint8:
        return np.ascontiguousarray(images, np.float32)
    way = engine.info.preprocess
    prepared: npt.NDArray[Any] = images.astype(np.float32) if way is None else way(images)
    return prepared
