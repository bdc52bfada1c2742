"""Where Imagenette comes from: the official archive, or an archive or folder that the user has.

Enters: a network connection, an archive (.tgz, .tar or .zip) or a folder, with `train/SYNSET/*` and
`val/SYNSET/*` at any depth; leaves: the photographs in the data folder, counted class by class. A member's
place is made of its part, its class and its bare name only, so no name in an archive leads anywhere else.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from penstock.datasets.download import Progress, Unreachable, download, use_up
from penstock.datasets.folder import SUFFIXES
from penstock.datasets.imagenette_parts import COUNTS, check_counts, imagenette_folder
from penstock.errors import DataError
from penstock.files import data_folder

OFFICIAL_URL = "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz"
OFFICIAL_MD5 = "3df6f0d01a2c9592104656642f5e78a3"
_BY_HAND = (
    f"Get {OFFICIAL_URL} on a machine that can, and give the file: penstock data imagenette --from FILE"
)

Member = tuple[str, Callable[[], bytes]]
"""A file's name inside a source, and how to read it."""


def is_whole() -> bool:
    """Whether the data folder holds every photograph, by count."""
    try:
        for part in COUNTS:
            count_folder(imagenette_folder() / part, part)
    except DataError:
        return False
    return True


def count_folder(folder: Path, part: str) -> None:
    """Refuse a folder of photographs that is not the whole of Imagenette's `part`."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    found = {entry.name: sum(1 for _ in entry.iterdir()) for entry in entries if entry.is_dir()}
    check_counts(part, found, folder)


def fetch_imagenette(
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
    url: str = OFFICIAL_URL,
    timeout: float = 30.0,
) -> Path:
    """From the data set's own home (shorter sides of 320 pixels); returns the folder."""
    say(f"fetching {url}")
    kept = data_folder() / "downloads" / PurePosixPath(url).name
    try:
        archive = download(url, kept, OFFICIAL_MD5, progress, timeout)
    except Unreachable as error:
        raise DataError(f"Imagenette cannot be fetched: {error}. {_BY_HAND}") from error
    return use_up(archive, take_imagenette)


def take_imagenette(path: Path) -> Path:
    """From an archive or a folder; returns the data folder's own copy, which replaces an earlier one."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder. {_BY_HAND}")
    target = imagenette_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".imagenette-") as work:
        try:
            counts = _copy(_members(path), Path(work), path)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error) as error:
            raise DataError(f"{path}: not a whole archive ({error}). {_BY_HAND}") from error
        for part in COUNTS:
            found = {name: count for (of, name), count in counts.items() if of == part}
            check_counts(part, found, path)
        for part in COUNTS:
            if (target / part).exists():
                shutil.rmtree(target / part)
            target.mkdir(exist_ok=True)
            (Path(work) / part).rename(target / part)
    return target


def _copy(members: Iterator[Member], work: Path, source: Path) -> Counter[tuple[str, str]]:
    """Write the photographs as PART/SYNSET/NAME below `work`; returns how many there were of each."""
    counts: Counter[tuple[str, str]] = Counter()
    for name, read in members:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if len(parts) < 3 or parts[-3] not in COUNTS or Path(parts[-1]).suffix.lower() not in SUFFIXES:
            continue
        to = work / parts[-3] / parts[-2] / parts[-1]
        if parts[-2] in (".", "..") or to.exists():
            raise DataError(f"{source}: {name} is there twice, or is no file's place. {_BY_HAND}")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(read())
        counts[parts[-3], parts[-2]] += 1
    return counts


def _members(path: Path) -> Iterator[Member]:
    if path.is_dir():
        for entry in sorted(path.rglob("*")):
            if entry.is_file():
                yield str(entry.relative_to(path.parent)), entry.read_bytes
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield info.filename, lambda info=info: archive.read(info)  # type: ignore[misc]
    else:
        with open(path, "rb") as stream:
            if stream.read(2) == b"PK":  # a zip file's index stands at its end
                raise zipfile.BadZipFile("a zip file whose end is missing: it was copied in part")
        with tarfile.open(path, "r:*") as tar:
            for member in tar:
                if member.isfile():
                    yield member.name, lambda member=member: tar.extractfile(member).read()  # type: ignore
