"""Results of benchmarks, kept by machine and commit, so that nothing overwrites them.

    benchmarks/results/zen3/networks-fdaf024.json

Every file says where its figures come from: processor, cores, versions, commit and time. `keep` writes one,
`newest` finds the latest of a benchmark, on one machine or on each.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.files import write_atomically
from penstock.measuring.machine import processor, usable_cores, versions

RESULTS = Path(__file__).parent / "results"
_BUILT_FROM = ("src", "runtime", "kernels")  # what changes a time


@dataclass(frozen=True)
class Kept:
    """One file of results. `machine` is the folder's name; `measured` is UTC, ISO 8601."""

    name: str
    machine: str
    commit: str
    measured: str
    processor: str
    results: Any
    cores: int = 0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Where it lies below the results' folder."""
        return f"{self.machine}/{self.name}-{self.commit}.json"


def keep(name: str, results: Any, folder: Path = RESULTS, commit: str | None = None) -> Path:
    """Write a benchmark's results under this machine and commit; returns the file."""
    here = processor()
    kept = Kept(
        name,
        here.slug,
        commit or current_commit(),
        datetime.now(UTC).isoformat(timespec="seconds"),
        here.words,
        results,
        usable_cores(),
        versions(),
    )
    path = folder / kept.file
    write_atomically(path, json.dumps(asdict(kept), indent=1, ensure_ascii=False).encode() + b"\n")
    return path


def add(name: str, rows: list[dict[str, Any]], key: str, folder: Path = RESULTS) -> Path:
    """As `keep`, beside the rows that this machine and commit have already; equal `key`s are replaced.

    For benchmarks that are run piece by piece: every piece is an interleaved run of its own.
    """
    path = folder / f"{processor().slug}/{name}-{current_commit()}.json"
    old = load(path).results if path.exists() else []
    new = {row[key] for row in rows}
    return keep(name, [row for row in old if row[key] not in new] + rows, folder)


def load(path: Path) -> Kept:
    """One file of results."""
    return Kept(**json.loads(path.read_text(encoding="utf-8")))


def newest(name: str, machine: str | None = None, folder: Path = RESULTS) -> Kept:
    """The latest results of a benchmark, on `machine` or on any."""
    pattern = f"{machine or '*'}/{name}-*.json"
    found = [one for one in map(load, folder.glob(pattern)) if one.name == name]
    if not found:
        raise FileNotFoundError(f"{folder}/{pattern}: no results; run: python benchmarks/{name}.py")
    return max(found, key=lambda one: one.measured)


def latest_rows(
    name: str, key: str, machine: str | None = None, folder: Path = RESULTS
) -> list[tuple[dict[str, Any], Kept]]:
    """The newest row of each `key` on the machine of the newest results, and the file that each comes from.

    For benchmarks that are run piece by piece: pieces of several commits make one table.
    """
    machine = newest(name, machine, folder).machine
    files = [one for one in map(load, folder.glob(f"{machine}/{name}-*.json")) if one.name == name]
    found: dict[str, tuple[dict[str, Any], Kept]] = {}
    for kept in sorted(files, key=lambda one: one.measured):
        found |= {row[key]: (row, kept) for row in kept.results}
    return list(found.values())


def has_row(name: str, key: str, value: str, folder: Path = RESULTS) -> bool:
    """Whether this machine and commit have the row already."""
    path = folder / f"{processor().slug}/{name}-{current_commit()}.json"
    return path.exists() and any(row[key] == value for row in load(path).results)


def machines(name: str, folder: Path = RESULTS) -> list[str]:
    """The machines that have results of a benchmark, the latest measured first."""
    found = sorted({path.parent.name for path in folder.glob(f"*/{name}-*.json")})
    return sorted(found, key=lambda machine: newest(name, machine, folder).measured, reverse=True)


def current_commit() -> str:
    """The commit of this tree; "-changed" where code that is timed differs from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ("git", *arguments), cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", *_BUILT_FROM)
    return git("rev-parse", "--short=7", "HEAD") + ("-changed" if changed else "")
