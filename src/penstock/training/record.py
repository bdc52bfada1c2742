"""`run.toml`: how a run came about, so that it can be understood and repeated.

Enters: the recipe, the data and the network; leaves: command, recipe, versions, machine and commit as TOML.
Each time the run goes on, a [[resumed]] table joins.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import nn

from penstock.datasets import Images
from penstock.files import write_atomically
from penstock.gating import gated_layers
from penstock.native import processor_facts
from penstock.surgery.network import count_parameters
from penstock.training.recipe import Recipe

RECORD_FILE = "run.toml"
_PACKAGES = ("penstock", "torch", "accelerate", "numpy", "safetensors")


def write_record(
    folder: Path,
    epoch: int,
    recipe: Recipe,
    network: nn.Module,
    train_data: Images,
    test_data: Images | None,
    processes: int,
) -> None:
    """Write the record of a new run, or note in an old one that it goes on after `epoch` epochs."""
    path = folder / RECORD_FILE
    # The program by its name alone: the record must not tell where it lies on this machine.
    program = "penstock" if sys.argv[0].endswith(("penstock", "cli/main.py")) else Path(sys.argv[0]).name
    now = {
        "command": shlex.join([program, *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if epoch and path.exists():
        try:
            record = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            record = {}
        record.setdefault("resumed", []).append(now | {"epoch": epoch})
    else:
        record = now | {
            "seed": recipe.seed,
            "processes": processes,
            "commit": _commit(),
            "recipe": asdict(recipe),
            "network": {
                "name": type(network).__name__,
                "parameters": count_parameters(network),
                "gated_layers": [name for name, _ in gated_layers(network)],
            },
            "data": _data("train", train_data) | ({} if test_data is None else _data("test", test_data)),
            "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
            "machine": {
                "cpu": processor_facts().get("model name") or platform.processor() or platform.machine(),
                "cores": os.cpu_count() or 0,
                "threads": torch.get_num_threads(),
                "system": platform.platform(),
            },
        }
    write_atomically(path, to_toml(record).encode())


def to_toml(record: Mapping[str, Any]) -> str:
    """Nested mappings, lists, strings, numbers and booleans as TOML; what is None is left out."""
    return tomli_w.dumps(_writable(record))


def _writable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_writable(key): _writable(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_writable(one) for one in value]
    # A command line may hold bytes that are no text; TOML may not.
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _data(part: str, data: Images) -> dict[str, Any]:
    return {part: data.name, f"{part}_images": len(data), "classes": len(data.classes)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str | None:
    """The commit of the folder the command runs in, with a + if files differ from it; None outside of git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if head.returncode != 0:
        return None
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")
