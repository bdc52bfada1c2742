"""One training at a time in a run's folder: a lock that dies with its owner, however that ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from penstock.errors import TrainingError
from penstock.files import cannot_write

try:
    import fcntl
except ImportError:  # Windows: nothing there is locked
    fcntl = None  # type: ignore[assignment]

P = ParamSpec("P")
R = TypeVar("R")

_LOCK_FILE = ".lock"
_held: set[Path] = set()  # the system's lock does not stop this process itself


@contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """Refuse to go on while another training holds `folder`; None asks for nothing.

    A record lock, not flock: the processes that decode images inherit what flock holds, and would keep it
    for as long as they survive their parent.
    """
    if folder is None:
        yield
        return
    place = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = -1 if place in _held else os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise cannot_write(folder / _LOCK_FILE, error) from error
    if descriptor < 0:
        raise _refused(folder, str(os.getpid()))
    try:
        if fcntl is not None:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _refused(folder, os.read(descriptor, 20).decode(errors="replace").strip()) from None
            except OSError:
                pass  # a file system without locks
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        _held.add(place)
        yield
    finally:
        _held.discard(place)
        os.close(descriptor)


def _refused(folder: Path, owner: str) -> TrainingError:
    who = f" (process {owner})" if owner else ""
    return TrainingError(
        f"{folder}: another training{who} is at work in this folder; wait until it ends, or use another --out"
    )


def one_at_a_time(train: Callable[P, R]) -> Callable[P, R]:
    """Let `train` hold the folder that it gets as `out`; the first of a run's processes holds it."""

    @wraps(train)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        out = kwargs.get("out")
        first = os.environ.get("RANK", "0") == "0"
        with alone_in(Path(str(out)) if out is not None and first else None):
            return train(*args, **kwargs)

    return alone
