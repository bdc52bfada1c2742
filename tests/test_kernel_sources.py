"""Rules that the C++ sources keep, read from their text."""

from __future__ import annotations

import re
from pathlib import Path

_KERNELS = Path(__file__).resolve().parent.parent / "kernels"
_PREFETCH = re.compile(r"__builtin_prefetch|_mm_prefetch|__pld")


def _sources() -> list[Path]:
    found = [path for path in _KERNELS.rglob("*") if path.suffix in {".h", ".c", ".cpp", ".inl", ".def"}]
    assert len(found) > 100
    return found


def test_no_source_is_longer_than_400_lines() -> None:
    long = {path.name: lines for path in _sources() if (lines := len(path.read_text().splitlines())) > 400}
    assert not long


def test_lines_of_floats_are_fetched_ahead_in_one_file_only() -> None:
    assert _PREFETCH.search((_KERNELS / "conv" / "prefetch.inl").read_text())
    others = {
        str(path.relative_to(_KERNELS))
        for path in _sources()
        if path.name != "prefetch.inl" and path.parent.name != "int8" and _PREFETCH.search(path.read_text())
    }
    assert not others, "call a helper of conv/prefetch.inl, or add one there"
