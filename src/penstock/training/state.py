"""The state of a run on disk: one safetensors file, written whole or not at all.

Tensors: ``model.*``, ``average.*`` (averaged weights), ``momentum.*``. Metadata (JSON): the format version, the
epochs done, the recipe, and the history of metrics. All chance is drawn from (seed, epoch), so no generator
state needs to be kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from penstock.errors import CheckpointError
from penstock.files import write_atomically

_VERSION = "1"


@dataclass
class RunState:
    """What is needed to go on: epochs done, tensors by name, the recipe and the metrics so far."""

    epoch: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


def save_state(state: RunState, path: Path) -> None:
    """Write the state atomically."""
    metadata = {
        "penstock-run": _VERSION,
        "epoch": str(state.epoch),
        "recipe": json.dumps(state.recipe),
        "history": json.dumps(state.history),
    }
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.tensors.items()}
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def load_state(path: Path) -> RunState:
    """Read a state that `save_state` wrote."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("penstock-run") != _VERSION:
                raise CheckpointError(f"{path}: not the state of a Penstock run of version {_VERSION}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read as the state of a run ({error})") from error
    return RunState(
        int(metadata["epoch"]), tensors, json.loads(metadata["recipe"]), json.loads(metadata["history"])
    )
