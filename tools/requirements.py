"""Prints what Penstock and its runtime need besides each other: `python tools/requirements.py demo`.

The Makefile installs these while the native module compiles. Arguments are names of extras of pyproject.toml.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_OWN = "penstock"


def requirements(extras: list[str]) -> list[str]:
    """Requirements of both distributions and of `extras`, each once, without the distributions themselves."""
    penstock = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    runtime = tomllib.loads((_ROOT / "runtime" / "pyproject.toml").read_text())["project"]
    known = penstock["optional-dependencies"]
    unknown = [name for name in extras if name not in known]
    if unknown:
        raise SystemExit(f"pyproject.toml has no extra {unknown[0]!r}; it has {', '.join(known)}")
    found = [*runtime["dependencies"], *runtime["optional-dependencies"]["images"], *penstock["dependencies"]]
    for name in extras:
        found += known[name]
    return [line for line in dict.fromkeys(found) if not line.startswith(_OWN)]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
