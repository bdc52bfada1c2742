"""What a run was trained on and began with, kept beside its network, so that later commands read the same.

`data.json` in a run's folder: {"data": "cifar10" or a folder, "size": the side of photographs, "holdout": …,
"start": the network that training began with, a shipped checkpoint or a file, else ""}.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.errors import DataError
from penstock.exporting.container import read_description
from penstock.files import write_atomically
from penstock.zoo.pretrained import available, checkpoint_path

_FILE = "data.json"
_SIZE = 224
_SMALL = ("cifar10", "sample")  # of 32 pixels, whatever the size


@dataclass(frozen=True)
class Source:
    """What --data, --size and --holdout say, and the network that training began with."""

    data: str = "cifar10"
    size: int = _SIZE
    holdout: int = 0
    start: str = ""

    def images(self) -> tuple[str, int, int]:
        """What tells images apart: a folder by its whole path; the side only where it matters."""
        data = str(Path(self.data).resolve()) if Path(self.data).is_dir() else self.data
        return data, 0 if data in _SMALL else self.size, self.holdout


def remember(source: Source, folder: Path) -> None:
    """Keep `source` in a run's folder; a folder of images by its whole path, since commands run anywhere."""
    said = asdict(source) | {"data": source.images()[0]}
    write_atomically(folder / _FILE, json.dumps(said, indent=2).encode())


def remembered(model: str | Path) -> Source | None:
    """What a run's folder, the folder of a checkpoint or a published one says; None if it says nothing."""
    if str(model) in available():
        return _of_published(checkpoint_path(str(model)))
    path = Path(model)
    file = (path if path.is_dir() else path.parent) / _FILE
    if not (path.is_dir() or path.suffix == ".safetensors") or not file.is_file():
        return None
    try:
        return _read(json.loads(file.read_text()))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read ({error}); delete it and say --data") from error


def _of_published(file: Path) -> Source | None:
    """From the note `source` that `results/ship.py` writes."""
    said = read_description(file).get("notes", {}).get("source")
    return None if said is None else _read(said)


def _read(said: Any) -> Source:
    source = Source(str(said["data"]), said["size"], said["holdout"], str(said.get("start", "")))
    if type(source.size) is not int or type(source.holdout) is not int or source.size < 1:
        raise ValueError(f"size {source.size!r}, holdout {source.holdout!r}")
    return source


def choose(model: str, data: str, size: int, holdout: int = 0) -> Source:
    """What a command reads: what the user says, else what MODEL was trained on, else CIFAR-10."""
    own = remembered(model) or Source()
    return Source(data or own.data, size or (own.size if not data or data == own.data else _SIZE), holdout)


def start_of(model: str) -> str:
    """MODEL as a later command finds it: a shipped checkpoint or the whole path of a file; else empty."""
    if not model or model in available():
        return model
    path = Path(model) / "model.safetensors" if Path(model).is_dir() else Path(model)
    return str(path.resolve()) if path.suffix == ".safetensors" and path.is_file() else ""


def is_there(data: str) -> bool:
    """Whether the images are a data set by name, or a folder that still exists."""
    return data in ("cifar10", "imagenette", "sample") or Path(data).is_dir()


def own_size(model: str | Path) -> int:
    """The side of the images that MODEL was trained on; 0 if nothing says so."""
    own = remembered(model)
    return 0 if own is None else 32 if own.data in _SMALL else own.size
