"""Keep the records of `penstock reproduce cifar-rivals`: its folder in, another and a table out.

    python results/keep_rivals.py runs/rivals results/rivals

Copies what says how each row came about and what it scored (metrics, run.toml, plan, report, scores, times,
the table and its plot), no weights, and prints the table as Markdown.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

RECORDS = ("metrics.jsonl", "run.toml", "plan.json", "pruning.json", "curve.json")
SHOWN = {
    "method": "Method",
    "wanted": "Asked for",
    "top1": "Top-1",
    "seeds": "Seeds",
    "epochs": "Epochs",
    "macs": "MACs (authors)",
    "macs_executed": "MACs (executed)",
    "weights": "Weights",
    "milliseconds": "ms",
    "note": "Note",
}


def keep(source: Path, target: Path) -> None:
    """Copy the records below `source` to the same places below `target`."""
    named = [path for path in source.rglob("*") if path.name in RECORDS]
    beside = [path for path in source.iterdir() if path.suffix in (".json", ".png", ".failed")]
    for path in sorted({*named, *beside}):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def cell(name: str, value: object) -> str:
    """A figure as it is printed."""
    if value is None:
        return ""
    if name in ("macs", "macs_executed") and isinstance(value, int | float):
        return f"{value / 1e6:.1f}M"
    if name == "weights" and isinstance(value, int | float):
        return f"{value / 1e3:.0f}k"
    if name == "milliseconds":
        return f"{value:.3f}"
    if name == "top1":
        return f"{value:.2f}%"
    return f"{value:g}×" if name == "wanted" else str(value)


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    keep(source, target)
    (table,) = source.glob("*-rivals.json")
    print(f"| {' | '.join(SHOWN.values())} |\n|{' --- |' * len(SHOWN)}")
    for row in json.loads(table.read_text(encoding="utf-8")):
        print(f"| {' | '.join(cell(name, row[name]) for name in SHOWN)} |")


if __name__ == "__main__":
    main()
