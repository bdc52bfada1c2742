"""Run folders in, records out: whatever a finished, half-finished or foreign folder holds, nothing raises.

A run is a folder with any of `metrics.jsonl` (one line an epoch), `run.toml`, `curve.json` (a sweep) and
`model.safetensors`. What cannot be read becomes a note, which the report shows.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import DataError
from penstock.reporting.figures.progress import number

MARKS = ("metrics.jsonl", "run.toml", "curve.json", "model.safetensors", "state.safetensors")


@dataclass(frozen=True)
class SweepPoint:
    """One setting of a sweep: accuracies in percent, MACs by both conventions."""

    top1: float
    macs_paper: float | None
    macs_executed: float | None
    top5: float | None = None
    density: float | None = None
    ratio: float | None = None
    checkpoint: Path | None = None

    @property
    def setting(self) -> str:
        """How it was made, in a few characters."""
        said = [f"d = {self.density:g}"] if self.density is not None else []
        said += [f"{100 * self.ratio:g}% pruned"] if self.ratio is not None else []
        return ", ".join(said) or "as it is"


@dataclass(frozen=True)
class Sweep:
    """One method's curve."""

    method: str
    points: tuple[SweepPoint, ...]
    baseline: SweepPoint | None = None
    network: str = ""
    data: str = ""


@dataclass(frozen=True)
class Run:
    """What one folder holds; `notes` says what is wrong with it, in words for the user."""

    name: str
    folder: Path
    history: tuple[dict[str, Any], ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    sweep: Sweep | None = None
    checkpoint: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def planned(self) -> int | None:
        """The epochs the recipe asked for, if it is known."""
        recipe = self.settings.get("recipe", self.settings)
        epochs = recipe.get("epochs") if isinstance(recipe, dict) else None
        return epochs if isinstance(epochs, int) else None

    @property
    def done(self) -> int:
        """The epochs done."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    @property
    def status(self) -> str:
        """finished, stopped at an epoch, or no epoch yet."""
        if self.planned is not None and self.done < self.planned:
            return f"epoch {self.done} of {self.planned}"
        return "finished" if self.done or self.checkpoint or self.sweep else "no epoch yet"

    @property
    def stopped(self) -> bool:
        """Whether it ended before its last epoch, or never reached one."""
        return self.status != "finished"

    @property
    def recorded(self) -> bool:
        """Whether there is more to it than a curve."""
        return bool(self.history or self.settings or self.checkpoint or self.notes)

    @property
    def top1(self) -> float | None:
        """The best accuracy it is known for: of its curve, or after its last epoch."""
        return (
            max((point.top1 for point in self.sweep.points), default=None)
            if self.sweep
            else self.last("test_top1")
        )

    def last(self, key: str) -> float | None:
        """The newest value of a metric."""
        return next((float(line[key]) for line in reversed(self.history) if number(line.get(key))), None)


def read_runs(root: str | Path) -> list[Run]:
    """Every run under `root` (which may be one itself), by name. Raises only if `root` is no folder."""
    root = Path(root)
    if not root.is_dir():
        raise DataError(
            f"{root}: no such folder; give the folder that holds your runs, as in `penstock report runs/`"
        )
    return [read_run(folder, root) for folder in run_folders(root)]


def run_folders(root: Path, depth: int = 3) -> Iterator[Path]:
    """`root` and the folders below it that hold a run, in order; links are not followed out of the tree."""
    if any((root / mark).is_file() for mark in MARKS):
        yield root
    if depth:
        try:
            below = sorted(
                p for p in root.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")
            )
        except OSError:
            return
        for folder in below:
            yield from run_folders(folder, depth - 1)


def read_run(folder: Path, root: Path) -> Run:
    """One run, with notes for all that could not be read."""
    notes: list[str] = []
    checkpoint = folder / "model.safetensors"
    return Run(
        name=folder.relative_to(root).as_posix() if folder != root else folder.resolve().name,
        folder=folder,
        history=tuple(read_metrics(folder / "metrics.jsonl", notes)),
        settings=read_settings(folder / "run.toml", notes),
        sweep=read_sweep(folder / "curve.json", notes),
        checkpoint=checkpoint if checkpoint.is_file() else None,
        notes=tuple(notes),
    )


def read_metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The lines that are objects with an epoch; a run that was killed may leave half a line."""
    lines: dict[int, dict[str, Any]] = {}
    for place, text in enumerate((read_text(path, notes) or "").splitlines(), 1):
        try:
            line = json.loads(text) if text.strip() else None
        except ValueError:
            notes.append(f"{path.name}: line {place} is not whole JSON and was left out")
            continue
        if isinstance(line, dict) and isinstance(line.get("epoch"), int):
            lines[line["epoch"]] = line
        elif text.strip():
            notes.append(f"{path.name}: line {place} has no epoch number and was left out")
    return [lines[epoch] for epoch in sorted(lines)]


def read_settings(path: Path, notes: list[str]) -> dict[str, Any]:
    """run.toml as it is."""
    text = read_text(path, notes)
    if text is None:
        return {}
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        notes.append(f"{path.name}: not TOML ({error})")
        return {}


def read_sweep(path: Path, notes: list[str]) -> Sweep | None:
    """curve.json, with the points that have an accuracy and a cost."""
    text = read_text(path, notes)
    if text is None:
        return None
    try:
        found = json.loads(text)
        raw = found["points"]
        points = tuple(p for p in (read_point(item, path.parent) for item in raw) if p is not None)
    except (ValueError, KeyError, TypeError) as error:
        notes.append(f"{path.name}: not a sweep's curve ({type(error).__name__}: {error})")
        return None
    if len(points) < len(raw):
        notes.append(
            f"{path.name}: {len(raw) - len(points)} of {len(raw)} points lack accuracy or MACs, left out"
        )
    baseline = read_point(found.get("baseline"), path.parent)
    words = {key: str(found.get(key) or "") for key in ("method", "network", "data")}
    return Sweep(words["method"] or path.parent.name, points, baseline, words["network"], words["data"])


def read_point(item: object, folder: Path) -> SweepPoint | None:
    """One point; None unless it has a top-1 accuracy and a number of MACs."""
    if not isinstance(item, dict):
        return None

    def value(*keys: str) -> float | None:
        return next((float(item[key]) for key in keys if number(item.get(key))), None)

    top1 = value("top1", "test_top1")
    paper, executed = value("macs_paper", "macs"), value("macs_executed", "macs")
    if top1 is None or (paper is None and executed is None):
        return None
    name = item.get("checkpoint")
    checkpoint = inside(folder, name) if isinstance(name, str) else None
    return SweepPoint(
        top1, paper, executed, value("top5", "test_top5"), value("density"), value("ratio"), checkpoint
    )


def inside(folder: Path, name: str) -> Path | None:
    """The file `name` of the folder; None if there is none, or if the name leads out of the folder."""
    try:
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder.resolve()) and path.is_file() else None
    except (OSError, ValueError):  # a name too long, or with a zero byte in it
        return None


def read_text(path: Path, notes: list[str]) -> str | None:
    """A file's text; None if it is not there."""
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        notes.append(f"{path.name}: cannot be read ({error})")
        return None
