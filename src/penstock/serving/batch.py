"""Folders of images classified with Ray Data: a compiled network and paths in, parquet files out.

The images are cut into pieces, and every piece becomes one parquet file, written whole or not at all. A run
that was stopped goes on with the missing pieces. An image that cannot be read is a row with an error.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow
import ray
from pyarrow import fs

import penstock_runtime as pr
from penstock.serving.images import decode
from penstock_runtime.errors import InputError
from penstock_runtime.results import likeliest

_FOLDER = fs.FileType.Directory
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
Columns = dict[str, npt.NDArray[Any] | list[Any]]


class Classifier:
    """An actor: it loads the network once; all actors of one machine share its weights through the file."""

    def __init__(self, network: str, density: float | None) -> None:
        self.engine = pr.load(network, threads=1)
        self.density = density

    def __call__(self, batch: dict[str, npt.NDArray[Any]]) -> Columns:
        """batch: path and bytes of each image → path, class, its number and probability, and an error."""
        rows = [self.one(bytes(content)) for content in batch["bytes"]]
        return {"path": batch["path"], **{key: [row[key] for row in rows] for key in rows[0]}} if rows else {}

    def one(self, content: bytes) -> dict[str, Any]:
        try:
            images = decode(content, self.engine)
        except InputError as error:
            return {"class": "", "number": -1, "probability": 0.0, "error": str(error)}
        scores = self.engine(images, density=self.density)[0]
        (best,) = likeliest(scores, self.engine.info.classes, 1)
        name = best.name or str(best.index)
        return {"class": name, "number": best.index, "probability": best.probability, "error": ""}


def list_images(source: str) -> list[str]:
    """The images below a folder, here or at an address (s3://…, gs://…), in order; or the one image."""
    scheme, marked, _ = source.partition("://")
    try:
        system, place = fs.FileSystem.from_uri(source if marked else str(Path(source).absolute()))
        kind = system.get_file_info(place).type
        inside = system.get_file_info(fs.FileSelector(place, recursive=True)) if kind == _FOLDER else []
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{source}: cannot be listed ({error})") from error
    if kind == fs.FileType.NotFound:
        raise InputError(f"{source}: there is no such folder or image")
    if kind != _FOLDER:
        return [source]
    paths = sorted(one.path for one in inside if one.type == fs.FileType.File)
    found = [path for path in paths if path.lower().endswith(_SUFFIXES)]
    if not found:
        raise InputError(f"{source}: holds no image ({', '.join(_SUFFIXES)})")
    return [f"{scheme}://{path}" for path in found] if marked else found


def classify_all(
    network: Path,
    sources: Iterable[str],
    out: Path,
    *,
    density: float | None = None,
    workers: int = 1,
    piece: int = 2000,
    on_piece: Callable[[int, int], None] | None = None,
) -> int:
    """Classify images into `out`, a folder of parquet files; returns how many pieces were done now.

    Ray must have been initialised. A piece is known by the network, the density and its images: an old answer
    is never taken for a changed question. Of images that came or went, the pieces that they change are made
    anew and the old ones removed; a folder with answers of another network or density is refused.
    """
    question = _stamp([hashlib.sha256(network.read_bytes()).hexdigest(), str(density)])
    paths = list(sources)
    pieces = [paths[at : at + piece] for at in range(0, len(paths), piece)]
    out.mkdir(parents=True, exist_ok=True)
    old = set(out.glob("part-*.parquet"))
    if strange := sorted(one.name for one in old if one.name.split("-")[1] != question):
        raise InputError(
            f"{out}: holds answers of another network or density ({strange[0]}); choose another folder"
        )
    done = 0
    for number, part in enumerate(pieces):
        target = out / f"part-{question}-{number:05d}-{_stamp(part)}.parquet"
        if target not in old:
            _write(network, part, target, density, workers)
            done += 1
        old.discard(target)
        if on_piece is not None:
            on_piece(number + 1, len(pieces))
    for stale in old:
        stale.unlink()
    return done


def _stamp(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _write(network: Path, paths: list[str], target: Path, density: float | None, workers: int) -> None:
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    rows = ray.data.read_binary_files(paths, include_paths=True).map_batches(
        Classifier,
        fn_constructor_args=(str(network.resolve()), density),
        batch_size=64,
        concurrency=workers,
        num_cpus=1,
    )
    rows.repartition(1).write_parquet(str(partial))
    (written,) = partial.glob("*.parquet")
    written.replace(target)
    shutil.rmtree(partial)
