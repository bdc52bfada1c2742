"""The state of a run on disk: one safetensors file, written whole or not at all.

Tensors: ``model.*``, ``average.*`` (averaged weights), ``momentum.*``. Metadata (JSON): the format version,
the epochs done, the recipe, and the history of metrics. All chance is drawn from (seed, epoch), so no
generator state needs to be kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from penstock.errors import CheckpointError, TrainingError
from penstock.files import write_atomically
from penstock.training.average import WeightAverage
from penstock.training.recipe import Recipe

STATE_FILE = "state.safetensors"
_VERSION = "1"
_FREE_TO_CHANGE = ("threads",)  # what a resumed run may choose anew


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
        epoch, recipe, history = (json.loads(metadata[key]) for key in ("epoch", "recipe", "history"))
    except (OSError, KeyError, json.JSONDecodeError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{path}: cannot be read as the state of a run ({error}); delete it to start the run over"
        ) from error
    return RunState(int(epoch), tensors, recipe, history)


def collect(network: nn.Module, optimiser: Any, average: WeightAverage | None) -> dict[str, Tensor]:
    """Every tensor a resumed run needs, by name."""
    tensors = {f"model.{name}": tensor for name, tensor in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        momentum = optimiser.state.get(parameter, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum.{name}"] = momentum
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.values.items()}
        tensors["average_updates"] = torch.tensor(average.updates)
    return tensors


def resume(
    path: Path,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: WeightAverage | None,
    recipe: Recipe,
) -> RunState:
    """Put the state at `path` back into the network, the optimiser and the average."""
    state = load_state(path)
    changed = [name for name in recipe.differences(state.recipe) if name not in _FREE_TO_CHANGE]
    if changed:
        said = ", ".join(f"{n} was {state.recipe[n]!r} and is now {getattr(recipe, n)!r}" for n in changed)
        raise TrainingError(
            f"{path}: the run was started with another recipe ({said}); use the same or another folder"
        )
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "momentum": {}, "average": {}}
    for name, tensor in state.tensors.items():
        kind, _, rest = name.partition(".")
        parts.setdefault(kind, {})[rest] = tensor
    try:
        network.load_state_dict(parts["model"])
        for name, parameter in network.named_parameters():
            if name in parts["momentum"]:
                # The layout of a buffer decides the order of sums: keep it as an uninterrupted run has it.
                buffer = torch.empty_like(parameter).copy_(parts["momentum"][name])
                optimiser.state[parameter]["momentum_buffer"] = buffer.detach()
        if average is not None:
            for name, value in average.values.items():
                value.copy_(parts["average"][name])
            average.updates = int(state.tensors["average_updates"])
    except (RuntimeError, KeyError) as error:
        raise TrainingError(
            f"{path}: the run's state does not fit this network ({str(error).splitlines()[0]}); "
            "use the MODEL it was started with, or another folder"
        ) from error
    return state


def remove_leftovers(folder: Path) -> None:
    """Delete what writes that were killed left behind."""
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)
