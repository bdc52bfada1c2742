"""The Makefile: which package index torch comes from, what is installed while the module compiles."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_torch_comes_from_the_index_that_is_named_and_from_no_other() -> None:
    def commands(*words: str) -> list[str]:
        dry = ["make", "--dry-run", "--always-make", "install", *words]
        return subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()

    named = [line for line in commands("TORCH_INDEX=some://index/cpu") if "--index-url" in line]
    assert [line.split("--index-url")[1].split() for line in named] == [
        ["'some://index/cpu'", "torch"],
        ["'some://index/cpu'", "torchvision"],
    ]
    assert not any("--index-url" in line for line in commands())
    assert "://" not in (ROOT / "Makefile").read_text()


def test_all_that_a_demo_needs_is_installed_while_the_module_compiles() -> None:
    def print_requirements(*extras: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "tools/requirements.py", *extras]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = print_requirements("demo").stdout.splitlines()
    needed = {*project["dependencies"], *project["optional-dependencies"]["demo"]}
    assert {line for line in needed if not line.startswith("penstock")} <= set(listed)
    assert not any(line.startswith("penstock") for line in listed)
    assert len(set(listed)) == len(listed)
    wrong = print_requirements("demos")
    assert wrong.returncode != 0
    assert "no extra 'demos'" in wrong.stderr
