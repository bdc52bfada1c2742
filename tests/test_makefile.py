"""The Makefile: which package index torch comes from, what is installed while the module compiles."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def commands(*words: str) -> list[str]:
    """What make would run from nothing."""
    dry = ["make", "--dry-run", "--always-make", *words]
    return subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@needs_make
def test_torch_comes_from_the_index_that_is_named_and_from_no_other() -> None:
    named = [line for line in commands("install", "TORCH_INDEX=some://index/cpu") if "--index-url" in line]
    assert [line.split("--index-url")[1].split() for line in named] == [
        ["'some://index/cpu'", "torch"],
        ["'some://index/cpu'", "torchvision"],
    ]
    assert not any("--index-url" in line for line in commands("install"))
    assert "://" not in (ROOT / "Makefile").read_text()


@needs_make
@pytest.mark.parametrize("target", ["install", "test", "bench", "soak"])
def test_only_a_first_demo_leaves_instruction_sets_unoptimised(target: str) -> None:
    def unoptimised(*words: str) -> list[str]:
        option = "PENSTOCK_UNOPTIMISED="
        return [line.split(option)[1].split("'")[0] for line in commands(*words) if option in line]

    assert unoptimised(target, "UNUSED=baseline;avx2") == [""]
    assert unoptimised("demo", "UNUSED=baseline;avx2", "VENV=.nowhere") == ["baseline;avx2"]


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
