"""Photographs decoded once: an image folder in, the same batches out of one file of pixels.

    data = keep_decoded(image_folder("imagenette2/train", size=160), "cache/train-160")

Decoding a JPEG costs more than a small network's step on it. So each photograph is decoded once, scaled until
its shorter side is 8/7 of `size` (what `ImageFolder` scales test images to), and its bytes are appended to
one file, which training then maps into memory. The random cuts are `ImageFolder`'s.

`FILE.pixels` holds the bytes, row by row; `FILE.json` says where each photograph lies and which files they
were made of. It is written last, so a cache without it, or of other files, is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from penstock.datasets.augment import Augment
from penstock.datasets.folder import IMAGENET, ImageFolder, open_checked, pixels_of, upright
from penstock.datasets.preprocess import Preprocess
from penstock.datasets.protocol import Batch, LoadedByPlace
from penstock.errors import DataError
from penstock.files import write_atomically

_LONGEST = 4  # longer side / shorter side, at most; a longer picture is cut at both ends
_AT_ONCE = 256

Decoded = Callable[[int, int], None]
"""Called with the photographs decoded so far and all there are."""


@dataclass(frozen=True)
class Photographs(LoadedByPlace):
    """pixels: uint8, all photographs one after the other; places: int64 (count, 3), start, height, width."""

    pixels: np.ndarray
    places: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    size: int
    preprocess: Preprocess = field(default=IMAGENET)

    def __len__(self) -> int:
        return len(self.places)

    def take(self, indices: Tensor) -> Photographs:
        """The photographs at `indices`, in that order."""
        return replace(self, places=self.places[indices], labels=self.labels[indices])

    def named(self, name: str, classes: tuple[str, ...]) -> Photographs:
        """The same photographs under another name, their classes called otherwise."""
        return replace(self, name=name, classes=classes)

    def picture(self, place: int) -> Image.Image:
        """One photograph whole, as it was kept."""
        start, height, width = self.places[place].tolist()
        rows = self.pixels[start : start + height * width * 3]
        return Image.fromarray(np.asarray(rows).reshape(height, width, 3))

    def load(
        self, batches: Sequence[list[int]], augment: Augment | None = None, epoch: int = 0
    ) -> Iterator[Batch]:
        """See `LoadedByPlace`."""
        for places in batches:
            cut = [pixels_of(self.picture(place), self.size, augment, epoch, place) for place in places]
            yield Batch(torch.stack(cut), self.labels[places])


def keep_decoded(folder: ImageFolder, file: str | Path, progress: Decoded | None = None) -> Photographs:
    """The photographs of `folder` from the cache `file` (a path without suffix), decoded now if need be.

    >>> import tempfile
    >>> from penstock.datasets import image_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "photos", "cat").mkdir(parents=True)
    ...     Image.new("RGB", (300, 200)).save(Path(folder, "photos", "cat", "0.png"))
    ...     kept = keep_decoded(image_folder(f"{folder}/photos", size=56, workers=0), f"{folder}/cache")
    >>> kept.picture(0).size
    (96, 64)
    """
    pixels, index = (Path(f"{file}{suffix}") for suffix in (".pixels", ".json"))
    made_of = _fingerprint(folder)
    known = _read_index(index)
    if known is None or known["made_of"] != made_of or _size_of(pixels) != known["bytes"]:
        index.unlink(missing_ok=True)
        known = _decode(folder, pixels, progress) | {"made_of": made_of}
        write_atomically(index, json.dumps(known).encode())
    return Photographs(
        np.memmap(pixels, np.uint8, "r"),
        torch.tensor(known["places"], dtype=torch.int64).view(-1, 3),
        folder.labels,
        folder.classes,
        folder.name,
        folder.size,
        folder.preprocess,
    )


def _fingerprint(folder: ImageFolder) -> str:
    """Of the wanted size and every file's name, length and time: any change makes the cache anew."""
    found = hashlib.sha256(f"{folder.size} {folder.name}".encode())
    for path in folder.files:
        status = path.stat()
        found.update(f"\n{path} {status.st_size} {status.st_mtime_ns}".encode())
    return found.hexdigest()


def _read_index(index: Path) -> dict[str, object] | None:
    try:
        known = json.loads(index.read_text())
        places = np.asarray(known["places"], dtype=np.int64)
        ends = places[:, 0] + places[:, 1] * places[:, 2] * 3
        shaped = places.ndim == 2 and places.shape[1] == 3
        good = shaped and (places >= 0).all() and ends.max() <= known["bytes"]
        return known if good and isinstance(known["made_of"], str) else None
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _decode(folder: ImageFolder, pixels: Path, progress: Decoded | None) -> dict[str, object]:
    """Write `pixels`; returns where each photograph lies."""
    pixels.parent.mkdir(parents=True, exist_ok=True)
    partial = pixels.with_name(f".{pixels.name}.{os.getpid()}.partial")
    places: list[tuple[int, int, int]] = []
    try:
        with open(partial, "wb") as stream, ThreadPoolExecutor(os.cpu_count()) as pool:
            for first in range(0, len(folder), _AT_ONCE):
                part = folder.files[first : first + _AT_ONCE]
                for picture in pool.map(lambda path: _scaled(path, folder.size), part):
                    places.append((stream.tell(), picture.height, picture.width))
                    stream.write(picture.tobytes())
                if progress is not None:
                    progress(len(places), len(folder))
            end = stream.tell()
        partial.replace(pixels)
    finally:
        partial.unlink(missing_ok=True)
    return {"places": places, "bytes": end}


def _scaled(path: Path, size: int) -> Image.Image:
    """A file's picture, upright, in RGB, its shorter side 8/7 of `size`."""
    try:
        with open_checked(path) as opened:
            short = round(size * 8 / 7)
            ratio = short / min(opened.size)
            opened.draft("RGB", (round(opened.width * ratio), round(opened.height * ratio)))
            picture = upright(opened).convert("RGB")
            width, height = picture.size
            wide, high = (min(side, _LONGEST * min(width, height)) for side in (width, height))
            box = ((width - wide) / 2, (height - high) / 2, (width + wide) / 2, (height + high) / 2)
            ratio = short / min(width, height)
            target = (max(short, round(wide * ratio)), max(short, round(high * ratio)))
            return picture.resize(target, Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
    except Exception as error:  # Pillow raises a dozen kinds for damaged files
        raise DataError(
            f"{path}: cannot be decoded ({type(error).__name__}: {error}); copy it anew or take it away"
        ) from error
