"""Checkpoints: a network in, one safetensors file out; the file in, the same network out. Never a pickle.

    save(gated, "r18.safetensors")
    gated = load("r18.safetensors")              # a zoo network: made anew, as recorded
    gated = load("mine.safetensors", MyNet())    # the user's own: its dense form is given

The file names the network's definition but holds no code. A name of the zoo is always followed; an import
path only with ``trust_import=True``, because importing a module runs it.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import CheckpointError, LayerError, PenstockError
from penstock.exporting.container import (
    no_foreign_errors,
    read_container,
    read_description,
    write_container,
)
from penstock.exporting.describe import Description, describe, from_plain, to_plain
from penstock.exporting.half import halve, widen
from penstock.exporting.libraries import make as make_by_name
from penstock.exporting.rebuild import (
    WithoutChance,
    accounts_for,
    add_recorded_gates,
    add_recorded_levels,
    add_recorded_thresholds,
    fill_with_zeros,
    fit_to_shapes,
    is_small,
    on_meta,
    put_tensors,
    set_gates,
)
from penstock.gating import is_gated
from penstock.zoo.definition import MAKERS


def save(
    network: nn.Module,
    path: str | Path,
    *,
    definition: str | None = None,
    notes: Mapping[str, Any] | None = None,
    half: bool = False,
) -> None:
    """Write `network` to `path`, atomically: weights, gates, densities, removed channels, preprocess, ranges.

    definition: "module:callable" that makes the dense network, for networks that are not from the zoo;
    without one, loading needs the model: ``load(path, model)``. notes: anything that JSON can hold.
    half: hold weights of two and more dimensions in float16, which halves the file and rounds each of them to
    11 bits; `load` gives them back in float32.

    >>> import tempfile, torch, penstock as ps
    >>> gated = ps.add_gates(ps.zoo.m_cifarnet(), torch.zeros(1, 3, 32, 32), density=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ps.save(gated, f"{folder}/net.safetensors")
    ...     again = ps.load(f"{folder}/net.safetensors")
    >>> again.conv0.density
    0.5
    """
    if not isinstance(network, nn.Module):
        raise CheckpointError(f"save: expected a torch.nn.Module, got {type(network).__name__}")
    from penstock import __version__

    network = _unwrapped(network)
    tensors = network.state_dict()
    strange = [name for name, tensor in tensors.items() if not isinstance(tensor, Tensor) or tensor.is_meta]
    if strange:
        raise CheckpointError(
            f"{path}: {strange[0]!r} of the network is not a tensor with values and cannot be saved"
        )
    halved = halve(tensors, path) if half else {}
    description = describe(network, definition, dict(notes or {}), __version__)
    description = replace(description, half=tuple(sorted(halved)))
    try:
        write_container(Path(path), {**tensors, **halved}, to_plain(description))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the definition's arguments and the notes must be data that JSON can hold ({error})"
        ) from error


def load(path: str | Path, model: nn.Module | None = None, *, trust_import: bool = False) -> nn.Module:
    """The network that `save` wrote, in eval mode and on the model's device (the CPU without one).

    model: the network's dense form, freshly made, for networks that are not from the zoo; it is left
    untouched. trust_import: follow an import path named in the file; only for files whose origin you trust.

    >>> import penstock as ps
    >>> ps.load(Path(ps.zoo.__path__[0], "checkpoints", "m_cifarnet-cifar10-d50.safetensors")).conv0.density
    0.5
    """
    file = Path(path)
    with no_foreign_errors(file):
        plain, stored = read_container(file)
        description = from_plain(plain, file)
        content = _Content(file, description, widen(stored, description.half, file))
        return _rebuilt(content, model, trust_import)


@dataclass(frozen=True)
class _Content:
    """What a checkpoint holds, and the file's name for messages."""

    file: Path
    description: Description
    tensors: Mapping[str, Tensor]


def _rebuilt(content: _Content, model: nn.Module | None, trust_import: bool) -> nn.Module:
    file, description, tensors = content.file, content.description, content.tensors
    try:
        dense = _dense_form(content, model, trust_import)
    except LayerError as error:  # a library knows no such network
        raise CheckpointError(f"{file}: {error}") from error
    try:
        with torch.random.fork_rng(devices=[]):  # new gates are drawn at random, only to be replaced
            network = _converted(dense, description, tensors)
        put_tensors(network, tensors, dense, assign=model is None)
        set_gates(network, description)
    except PenstockError as error:
        whose = "the model given" if model is not None else f"its definition {description.definition}"
        raise CheckpointError(f"{file}: does not fit {whose}: {error}") from error
    network.definition = description.definition  # type: ignore[assignment]
    if description.preprocess is not None:
        network.preprocess = description.preprocess  # type: ignore[assignment]
    if description.ranges is not None:
        network.ranges = description.ranges  # type: ignore[assignment]
    return network.eval()


def _unwrapped(network: nn.Module) -> nn.Module:
    """The network inside torch.compile's wrapper or that of data-parallel training."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while isinstance(network, parallel) or isinstance(getattr(network, "_orig_mod", None), nn.Module):
        network = network.module if isinstance(network, parallel) else network._orig_mod  # type: ignore[assignment]
    return network


def _converted(network: nn.Module, description: Description, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The dense network with the gates and the widths of the one that was saved."""
    if not description.gates and description.removal is None:
        return network
    already = any(parameter.is_meta for parameter in network.parameters())
    if not already and is_small(description):
        return _with_gates_and_widths(network, description, tensors)
    with torch.device("meta"), WithoutChance():
        return _with_gates_and_widths(network if already else on_meta(network), description, tensors)


def _with_gates_and_widths(
    network: nn.Module, description: Description, tensors: Mapping[str, Tensor]
) -> nn.Module:
    if description.gates and not is_gated(network):
        network = add_recorded_gates(network, description)
    add_recorded_levels(network, description, tensors)
    add_recorded_thresholds(network, tensors)
    if description.removal is not None:
        network = fit_to_shapes(network, description, tensors)
    return network


def read_notes(path: str | Path) -> Description:
    """What a checkpoint says about its network, without making it: definition, densities, notes and so on."""
    file = Path(path)
    with no_foreign_errors(file):
        return from_plain(read_description(file), file)


def _dense_form(content: _Content, model: nn.Module | None, trust_import: bool) -> nn.Module:
    if model is not None:
        if not isinstance(model, nn.Module):
            raise CheckpointError(f"load: expected a torch.nn.Module as model, got {type(model).__name__}")
        return copy.deepcopy(model)
    file, definition = content.file, content.description.definition
    if definition is None:
        raise CheckpointError(
            f"{file}: the file does not say how its network is made; give the dense model: load(path, model)"
        )
    if "zoo" in definition:
        return _from_zoo(content)
    if "library" in definition:
        return _from_library(file, definition, content.tensors, trust_import)
    if not trust_import:
        raise CheckpointError(
            f"{file}: its network is made by {definition['import']!r}, and importing that runs its code; "
            "give the dense model, load(path, model), or trust the file: load(path, trust_import=True), or "
            "--trust-import on the command line"
        )
    return _imported(file, definition["import"])


def _from_zoo(content: _Content) -> nn.Module:
    import penstock.zoo  # noqa: F401  # registers the makers

    file, description, tensors = content.file, content.description, content.tensors
    assert description.definition is not None
    name, arguments = description.definition["zoo"], description.definition["arguments"]
    if name not in MAKERS:
        raise CheckpointError(f"{file}: the zoo has no network {name!r}; there are: {', '.join(MAKERS)}")
    try:
        with torch.device("meta"), WithoutChance():  # shapes only: the values come from the file
            network = MAKERS[name](**arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise CheckpointError(f"{file}: cannot make {name}({arguments}): {reason}") from error
    for key, tensor in network.state_dict().items():  # before memory is taken for what a file asks for
        if description.removal is None and key in tensors and tensors[key].shape != tensor.shape:
            raise CheckpointError(
                f"{file}: {key!r} has shape {tuple(tensors[key].shape)}, and {name}({arguments}) has "
                f"{tuple(tensor.shape)} there; save the network again"
            )
    return fill_with_zeros(network) if accounts_for(tensors, network) else network


def _from_library(
    file: Path, definition: dict[str, Any], tensors: Mapping[str, Tensor], trusted: bool
) -> nn.Module:
    """Made in earnest, because such networks hold values that no state dict has; but first without memory."""
    library, name, arguments = definition["library"], definition["name"], definition["arguments"]
    if not trusted:
        try:
            with torch.device("meta"), WithoutChance():
                fits = accounts_for(tensors, make_by_name(library, name, **arguments))
        except PenstockError:
            raise
        except Exception:  # a maker that computes with values
            fits = False
        if not fits:
            raise CheckpointError(
                f"{file}: its tensors do not account for the memory of {library}:{name}; give the dense "
                "model, load(path, model), or trust the file: load(path, trust_import=True), or "
                "--trust-import on the command line"
            )
    with torch.random.fork_rng(devices=[]):
        return make_by_name(library, name, **arguments)


def _imported(file: Path, path: str) -> nn.Module:
    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except Exception as error:
        lost = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        hint = f"; go to the folder that {module} lies in, or put that folder on PYTHONPATH" if lost else ""
        raise CheckpointError(
            f"{file}: cannot make its network by {path}(): {type(error).__name__}: {error}{hint}"
        ) from error
    if not isinstance(made, nn.Module):
        raise CheckpointError(f"{file}: {path}() gave a {type(made).__name__}, expected a torch.nn.Module")
    return made
