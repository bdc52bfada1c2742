"""Photographs: a file or its bytes in, the 8-bit pixels that a network is shown out. Needs Pillow."""

from __future__ import annotations

import io
import math
import os
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_runtime.errors import InputError, import_extra

MOST_PIXELS = 64_000_000
"""The largest picture that is decoded. Cameras take up to 61 million pixels; a file of a few kilobytes can
claim any number, and each costs three bytes of memory: 64 million take 192 MB."""
_WEBP_COPIES = 4
"""Its decoder keeps several pictures of four bytes a pixel, so that fewer pixels take as much."""
_TILE_SIDES = (322, 323)  # tags of TIFF
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")
"""What files may hold, whatever they are called: Pillow would also start other programs (PostScript)."""
_MODES = {1: "L", 3: "RGB"}


def read_image(
    source: str | os.PathLike[str] | bytes, shape: tuple[int, int, int], resize: float | None = None
) -> npt.NDArray[np.uint8]:
    """source: a path, or the bytes of an image file → uint8 (1, channel, height, width) of `shape`.

    The shorter side is scaled to `resize` pixels (None: to the shape's own), and the middle cut out.
    """
    pillow = import_extra("PIL.Image", "images", "penstock-runtime")
    channels, height, width = shape
    where = "the image's bytes" if isinstance(source, bytes) else str(source)
    if channels not in _MODES:
        raise InputError(f"{where}: the network takes {channels} channels, and photographs have 1 or 3")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata; pixels are what counts
            content = io.BytesIO(source) if isinstance(source, bytes) else source
            with pillow.open(content, formats=FORMATS) as picture:
                check_pixels(picture)
                cut = cut_middle(picture, height, width, resize, _MODES[channels])
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises a dozen kinds for damaged files
        raise InputError(f"{where}: cannot be read as an image ({type(error).__name__}: {error})") from error
    pixels = np.asarray(cut, np.uint8).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def check_pixels(picture: Any) -> None:
    """Refuse a Pillow picture that announces too many pixels; none is decoded before."""
    most = MOST_PIXELS // _WEBP_COPIES if picture.format == "WEBP" else MOST_PIXELS
    sizes = [picture.size]
    if picture.format == "TIFF" and all(tag in picture.tag_v2 for tag in _TILE_SIDES):
        # A tile may be larger than the picture.
        sizes.append(tuple(picture.tag_v2[tag] for tag in _TILE_SIDES))
    for width, height in sizes:
        if width * height > most:
            raise ValueError(
                f"{width}x{height} are {width * height} pixels, and at most {most} of {picture.format} are "
                "decoded; scale it down"
            )


def cut_middle(picture: Any, height: int, width: int, resize: float | None, mode: str = "RGB") -> Any:
    """The middle of a Pillow picture, height × width pixels, after its shorter side is scaled to `resize`."""
    shorter = resize or min(height, width)
    part = min(picture.size) / shorter  # pixels of the picture for one of the result
    # A JPEG decodes at a half, a quarter or an eighth of its size in a fraction of the time.
    picture.draft(mode, tuple(math.ceil(side / part) for side in picture.size))
    w, h = picture.size
    part = min(min(w, h) / shorter, w / width, h / height)
    across, down = width * part, height * part
    box = ((w - across) / 2, (h - down) / 2, (w + across) / 2, (h + down) / 2)
    bilinear = 2  # PIL.Image.Resampling.BILINEAR
    return picture.convert(mode).resize((width, height), bilinear, box=box, reducing_gap=2.0)
