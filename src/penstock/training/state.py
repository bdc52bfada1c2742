"""The state of a run on disk: one safetensors file, written whole or not at all, and checked when it is read.

Tensors: ``model.*``, ``average.*`` (averaged weights), ``momentum.*`` and, inside an epoch, ``chance.*``
(the generators of the images and the densities). Metadata: the format version, JSON under "state" (the epochs
done, the part of the present one, the recipe, the history of metrics), and the SHA-256 of all that.
All other chance is drawn from (seed, epoch, step), so no more generators need to be kept.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from penstock.errors import CheckpointError, DensityError, TrainingError
from penstock.files import canonical, digest, read_plain, write_atomically
from penstock.training.average import WeightAverage
from penstock.training.recipe import Recipe

STATE_FILE = "state.safetensors"
_VERSION = "2"
_WITHOUT_CHECKSUM = "1"  # of earlier versions; read, never written
_FREE_TO_CHANGE = ("threads",)  # what a resumed run may choose anew


@dataclass
class Part:
    """How far the present epoch is: optimiser steps done, sums over their images, and the time they took."""

    steps: int = 0
    loss: float = 0.0
    hits: int = 0
    seen: int = 0
    skipped: int = 0
    seconds: float = 0.0


@dataclass
class RunState:
    """What is needed to go on: epochs done, tensors by name, the recipe and the metrics so far."""

    epoch: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    part: Part = field(default_factory=Part)


def save_state(state: RunState, path: Path) -> None:
    """Write the state atomically."""
    said = canonical(
        {
            "epoch": state.epoch,
            "part": asdict(state.part),
            "recipe": state.recipe,
            "history": state.history,
        }
    )
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.tensors.items()}
    metadata = {"penstock-run": _VERSION, "state": said, "sha256": digest(tensors, said)}
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def load_state(path: Path) -> RunState:
    """Read a state that `save_state` wrote; every field is checked, and every bit by the checksum."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("penstock-run") not in (_VERSION, _WITHOUT_CHECKSUM):
                raise CheckpointError(
                    f"{path}: not the state of a Penstock run of version {_VERSION}; finish the run with the "
                    "version that began it, or delete the file to start over"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata["penstock-run"] == _WITHOUT_CHECKSUM:
            old = {key: read_plain(metadata[key]) for key in ("epoch", "recipe", "history")}
            return _checked(old | {"part": {}}, tensors)
        if metadata["sha256"] != digest(tensors, metadata["state"]):
            raise ValueError("its content does not match its checksum, so it was altered or damaged")
        return _checked(read_plain(metadata["state"]), tensors)
    except CheckpointError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{path}: cannot be read as the state of a run ({error}); delete it to start the run over"
        ) from error


def _checked(said: dict[str, Any], tensors: dict[str, Tensor]) -> RunState:
    epoch, recipe, history = said["epoch"], said["recipe"], said["history"]
    if type(epoch) is not int or epoch < 0:
        raise ValueError(f"epoch {epoch!r}: expected a whole number of at least 0")
    if not isinstance(recipe, dict) or not recipe:
        raise ValueError(f"recipe {recipe!r}: expected its fields")
    lines: list[Any] = history if isinstance(history, list) else [None]
    if [line.get("epoch") if isinstance(line, dict) else None for line in lines] != [*range(1, epoch + 1)]:
        raise ValueError(f"history: expected the metrics of {epoch} epochs, one after the other")
    for line in lines:
        for name, value in line.items():
            if type(value) not in (int, float):
                raise ValueError(f"history: {name} of epoch {line['epoch']} is {value!r}, expected a number")
    part = Part(**said["part"])
    for one in fields(Part):
        value = getattr(part, one.name)
        kinds = (int, float) if one.type == "float" else (int,)
        least = -math.inf if one.name == "loss" else 0  # a term of the user's own may be negative
        if type(value) not in kinds or not math.isfinite(value) or value < least:
            raise ValueError(f"{one.name} of the present epoch: {value!r}")
    if part.hits > part.seen or (part.steps > 0) != (part.seen + part.skipped > 0):
        raise ValueError(f"the present epoch: {part} cannot be")
    if not any(name.startswith("model.") for name in tensors):
        raise ValueError("it holds no network")
    return RunState(epoch, tensors, recipe, history, part)


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


def collect_chance(**generators: torch.Generator) -> dict[str, Tensor]:
    """The generators of a part of an epoch."""
    return {f"chance.{name}": one.get_state() for name, one in generators.items()}


def restore_chance(state: RunState, **generators: torch.Generator) -> None:
    """Put the generators where they stood when the part was saved."""
    try:
        for name, one in generators.items():
            one.set_state(state.tensors[f"chance.{name}"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise TrainingError(f"{STATE_FILE}: its generators cannot be restored ({error})") from error


def resume(
    path: Path,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: WeightAverage | None,
    recipe: Recipe,
    steps: int,
) -> RunState:
    """Put the state at `path` back into the network, the optimiser and the average. steps: of an epoch."""
    state = load_state(path)
    check_same(path, state.recipe, recipe)
    if state.epoch > recipe.epochs or (state.part.steps and state.epoch == recipe.epochs):
        raise CheckpointError(
            f"{path}: says it is beyond the {recipe.epochs} epochs of its recipe; delete it"
        )
    if state.part.steps >= steps:
        raise TrainingError(
            f"{path}: {state.part.steps} steps of the present epoch are done, but these images make an epoch "
            f"of {steps}; use the --data that the run was started with, or another folder"
        )
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "momentum": {}, "average": {}}
    for name, tensor in state.tensors.items():
        kind, _, rest = name.partition(".")
        parts.setdefault(kind, {})[rest] = tensor
    try:
        network.load_state_dict(parts["model"])
        for name, parameter in network.named_parameters():
            if name in parts["momentum"]:
                # The memory layout decides the order of sums: it must be that of an uninterrupted run.
                buffer = _copied(parts["momentum"][name], torch.empty_like(parameter))
                optimiser.state[parameter]["momentum_buffer"] = buffer.detach()
        if average is not None:
            for name, value in average.values.items():
                _copied(parts["average"][name], value)
            average.updates = int(state.tensors["average_updates"])
            if average.updates < 0:
                raise ValueError(f"average_updates: {average.updates}")
    except (RuntimeError, KeyError, ValueError, OverflowError) as error:
        raise TrainingError(
            f"{path}: the run's state does not fit this network ({str(error).splitlines()[0]}); "
            "use the MODEL it was started with, or another folder"
        ) from error
    return state


def _copied(kept: Tensor, into: Tensor) -> Tensor:
    """`into` with the values of `kept`, whose shape must be the same: `copy_` alone would broadcast."""
    if kept.shape != into.shape:
        raise ValueError(f"a tensor of shape {tuple(kept.shape)}, expected {tuple(into.shape)}")
    return into.copy_(kept)


def check_same(path: Path, recorded: dict[str, Any], recipe: Recipe) -> None:
    """Refuse to go on with another recipe than the one the state at `path` recorded."""
    try:
        before = Recipe.from_record(recorded)
    except (TrainingError, DensityError) as error:
        raise CheckpointError(f"{path}: its recipe cannot be read ({error})") from error
    changed = [
        f"{name} was {was!r} and is now {now!r}"
        for name, (was, now) in before.differences(recipe).items()
        if name not in _FREE_TO_CHANGE
    ]
    if changed:
        raise TrainingError(
            f"{path}: the run was started with another recipe ({', '.join(changed)}); use the same or "
            "another folder"
        )


def remove_leftovers(folder: Path) -> None:
    """Delete what writes that were killed left behind."""
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)
