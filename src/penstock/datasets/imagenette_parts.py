"""Imagenette (fast.ai, version 2): 9,469 training and 3,925 validation photographs of ten ImageNet classes.

`penstock data imagenette` puts them below the data folder as `imagenette/{train,val}/SYNSET/*.JPEG`; each
size that is asked for is decoded once (see photographs.py). The photographs are ImageNet's and under its
terms: for research, not to be passed on.
"""

from __future__ import annotations

from pathlib import Path

from penstock.datasets.folder import image_folder
from penstock.datasets.photographs import Decoded, Photographs, keep_decoded
from penstock.errors import DataError
from penstock.files import data_folder

CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
COUNTS = {
    "train": (963, 955, 993, 858, 941, 956, 961, 931, 951, 960),
    "val": (387, 395, 357, 386, 409, 394, 389, 419, 399, 390),
}
"""Photographs of each class, in the order of CLASSES."""


def imagenette_folder() -> Path:
    """Where the photographs are kept."""
    return data_folder() / "imagenette"


def imagenette(part: str = "train", size: int = 160, progress: Decoded | None = None) -> Photographs:
    """Imagenette as `penstock data imagenette` fetched it.

    part: "train" (9,469 photographs) or "val" (3,925). size: the side of the images in its batches.

    >>> data = imagenette("train", size=160)  # doctest: +SKIP
    >>> imagenette("test")
    Traceback (most recent call last):
    penstock.errors.DataError: Imagenette has the parts 'train' and 'val', not 'test'
    """
    if part not in COUNTS:
        raise DataError(f"Imagenette has the parts 'train' and 'val', not {part!r}")
    if size < 1:
        raise DataError(f"imagenette: size: expected a side of at least 1 pixel, got {size!r}")
    folder = imagenette_folder() / part
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist; run: penstock data imagenette")
    found = image_folder(folder, size, workers=0)
    counts = found.labels.bincount(minlength=len(found.classes)).tolist()
    check_counts(part, dict(zip(found.classes, counts, strict=True)), folder)
    kept = keep_decoded(found, imagenette_folder() / "decoded" / f"{part}-{size}", progress)
    return kept.named(f"imagenette/{part}", tuple(CLASSES.values()))


def check_counts(part: str, found: dict[str, int], source: str | Path) -> None:
    """Refuse photographs that are not Imagenette's: another class, or a class with too few or too many."""
    strange = [name for name in found if name not in CLASSES]
    if strange:
        raise DataError(
            f"{source}: {part}/{strange[0]} is no class of Imagenette, which has {', '.join(CLASSES)}; "
            "for other photographs use --data FOLDER"
        )
    for name, expected in zip(CLASSES, COUNTS[part], strict=True):
        if found.get(name, 0) != expected:
            raise DataError(
                f"{source}: {part}/{name} ({CLASSES[name]}) has {found.get(name, 0):,} photographs, "
                f"expected {expected:,}: a part of the copy is missing or was added; "
                "run: penstock data imagenette, or give a whole archive with --from"
            )
