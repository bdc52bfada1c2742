"""Image folders (ImageNet's layout: CLASS/*.jpg), decoded in worker processes as training goes.

    data = image_folder("imagenet/train", size=224)

Training images are cut out at random (from `smallest_area`, 8%, to all of the area, 3:4 to 4:3), stretched to
size × size, mirrored and recoloured, as the paper does; test images are scaled to 8/7 of the size and cut out
in the middle. Which image looks how depends on (seed, epoch, place in the data set) only: not on the workers
or processes.

A file that cannot be decoded, or claims more pixels than any camera takes, is skipped with an
`UnreadableImage` warning that names it, and counted.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from penstock.datasets.augment import Augment
from penstock.datasets.preprocess import Preprocess
from penstock.datasets.protocol import Batch, LoadedByPlace
from penstock.errors import DataError
from penstock_runtime.images import FORMATS, check_pixels

IMAGENET = Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".gif", ".tif", ".tiff"})
_SQUEEZE = math.log(4 / 3)
_MOST_WORKERS = 8


class UnreadableImage(UserWarning):
    """A file in an image folder that is no image, or a damaged one."""


@dataclass(frozen=True)
class ImageFolder(LoadedByPlace):
    """files: one for each label; size: the side of the images that the batches hold."""

    files: tuple[Path, ...]
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    size: int = 224
    workers: int = 0
    preprocess: Preprocess = field(default=IMAGENET)

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: Tensor) -> ImageFolder:
        """The images at `indices`, in that order."""
        files = tuple(self.files[index] for index in indices.tolist())
        return replace(self, files=files, labels=self.labels[indices])

    def load(
        self, batches: Sequence[list[int]], augment: Augment | None = None, epoch: int = 0
    ) -> Iterator[Batch]:
        """See `LoadedByPlace`. An image that cannot be decoded is left out, with a warning."""
        decoder = _Decoder(self.files, self.size, augment, epoch)
        loader = DataLoader(
            decoder,
            batch_sampler=batches,
            num_workers=self.workers,
            collate_fn=list,
            # Its own, so that starting workers takes no number from the generator that dropout uses.
            generator=torch.Generator().manual_seed(0),
        )
        for places, decoded in zip(batches, loader, strict=True):
            for reason in (one for one in decoded if isinstance(one, str)):
                warnings.warn(f"{reason}; it is skipped", UnreadableImage, stacklevel=4)
            kept = [place for place, one in zip(places, decoded, strict=True) if isinstance(one, Tensor)]
            images = [one for one in decoded if isinstance(one, Tensor)]
            size = self.size if augment is None or augment.size is None else augment.size
            stacked = torch.stack(images) if images else torch.empty((0, 3, size, size), dtype=torch.uint8)
            yield Batch(stacked, self.labels[kept], len(places) - len(kept))


def class_folders(root: Path) -> tuple[str, ...]:
    """The names of the folders in `root`, one for each class, in order."""
    return tuple(sorted(one.name for one in root.iterdir() if one.is_dir() and not one.name.startswith(".")))


def image_folder(
    path: str | Path,
    size: int = 224,
    workers: int | None = None,
    classes: Sequence[str] | None = None,
    preprocess: Preprocess = IMAGENET,
) -> ImageFolder:
    """The images below `path`, one folder a class, classes in the order of their names.

    workers: processes that decode; None takes one for each core but one. classes: the folders' names to
    expect, so that a test part has the labels of its training part.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("cat", "dog"):
    ...         Path(folder, name).mkdir()
    ...         Image.new("RGB", (300, 200)).save(Path(folder, name, "0.png"))
    ...     data = image_folder(folder, size=64, workers=0)
    ...     shapes = [batch.images.shape for batch in data.test_batches(8)]
    >>> data.classes, data.labels.tolist(), shapes
    (('cat', 'dog'), [0, 1], [torch.Size([2, 3, 64, 64])])
    """
    root = Path(path)
    if size < 1:
        raise DataError(f"size: expected a side of at least 1 pixel, got {size!r}")
    if not root.is_dir():
        raise DataError(f"{root}: there is no such folder; expected one with a folder for each class")
    found = class_folders(root)
    if not found:
        raise DataError(f"{root}: there is no folder in it; expected one for each class, CLASS/*.jpg")
    known = tuple(classes) if classes is not None else found
    strange = [name for name in found if name not in known]
    if strange:
        raise DataError(f"{root}: class {strange[0]!r} is not among the {len(known)} training classes")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(known):
        below = sorted((root / name).rglob("*"))
        members = [entry for entry in below if entry.suffix.lower() in SUFFIXES and entry.is_file()]
        if not members and classes is None:
            raise DataError(f"{root / name}: there is no image in this class ({', '.join(sorted(SUFFIXES))})")
        files += members
        labels += [label] * len(members)
    if not files:
        raise DataError(f"{root}: there is no image in it")
    cores = os.cpu_count() or 1
    count = min(_MOST_WORKERS, max(1, cores - 1)) if workers is None else workers
    return ImageFolder(
        tuple(files), torch.tensor(labels, dtype=torch.int64), known, str(root), size, count, preprocess
    )


class _Decoder(Dataset[Tensor | str]):
    """place → uint8 (3, size, size), or the words that say what is wrong with the file."""

    def __init__(self, files: tuple[Path, ...], size: int, augment: Augment | None, epoch: int) -> None:
        self.files = files
        self.size = size
        self.augment = augment
        self.epoch = epoch

    def __getitem__(self, place: int) -> Tensor | str:
        path = self.files[place]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about metadata; pixels are what counts
                with open_checked(path) as picture:
                    return pixels_of(upright(picture), self.size, self.augment, self.epoch, place)
        except Exception as error:  # Pillow raises a dozen kinds for damaged files
            return f"{path}: cannot be decoded ({type(error).__name__}: {error})"


def open_checked(path: Path) -> Image.Image:
    """A file's picture, not yet decoded: of a known format, and of no more pixels than a camera takes."""
    picture = Image.open(path, formats=FORMATS)
    try:
        check_pixels(picture)
    except ValueError:
        picture.close()
        raise
    return picture


def pixels_of(picture: Image.Image, size: int, augment: Augment | None, epoch: int, place: int) -> Tensor:
    """What a batch holds of a picture, uint8 (3, side, side): its middle, or with `augment` a random part."""
    if augment is None:
        return to_tensor(centre_cut(picture, size))
    draw = torch.Generator().manual_seed(_mixed(augment.seed, epoch, place))
    cut = random_cut(picture, augment.size or size, draw, augment.smallest_area)
    rest = replace(augment, crop_padding=0, size=None)  # the random cut stands for both
    return rest(to_tensor(cut)[None], torch.tensor([place]), epoch, draw)[0]


def upright(picture: Image.Image) -> Image.Image:
    """The picture turned as its EXIF orientation says; most need no turning and stay undecoded."""
    if picture.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return picture
    return ImageOps.exif_transpose(picture)


def random_cut(
    picture: Image.Image, size: int, draw: torch.Generator, smallest_area: float = 0.08
) -> Image.Image:
    """A random part of the picture, stretched to size × size, much like torchvision's RandomResizedCrop."""
    share, bend, across, down = torch.rand(4, generator=draw).tolist()
    area = smallest_area + (1 - smallest_area) * share
    ratio = math.exp((2 * bend - 1) * _SQUEEZE)
    full_width, full_height = picture.size
    # Clamped to the whole picture: very long ones would otherwise need another draw.
    width = min(1.0, math.sqrt(area * ratio * full_height / full_width))
    height = min(1.0, math.sqrt(area / ratio * full_width / full_height))
    # A JPEG decodes at a half, a quarter or an eighth of its size in a fraction of the time.
    picture.draft("RGB", (math.ceil(size / width), math.ceil(size / height)))
    w, h = picture.size
    left, top = across * (1 - width) * w, down * (1 - height) * h
    box = (left, top, left + max(1.0, width * w), top + max(1.0, height * h))
    box = (box[0], box[1], min(float(w), box[2]), min(float(h), box[3]))
    return picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)


def centre_cut(picture: Image.Image, size: int) -> Image.Image:
    """The middle of the picture, its shorter side scaled to 8/7 of `size` first (256 for 224)."""
    part = min(picture.size) * 7 / 8
    picture.draft("RGB", tuple(math.ceil(side * size / part) for side in picture.size))  # type: ignore[arg-type]
    w, h = picture.size
    part = min(w, h) * 7 / 8
    box = ((w - part) / 2, (h - part) / 2, (w + part) / 2, (h + part) / 2)
    return picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)


def to_tensor(picture: Image.Image) -> Tensor:
    """uint8 (3, height, width)."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def _mixed(seed: int, epoch: int, place: int) -> int:
    """One number for a generator's seed; neighbours give unlike ones (splitmix64)."""
    value = (seed * 1_000_003 + epoch) * 4_294_967_291 + place
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        value = (value ^ (value >> 30)) * multiplier & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)
