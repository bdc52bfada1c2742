"""From a dense network to the one a checkpoint describes: gates added, channels removed, tensors put in.

Finding out where gates go needs the network to run once on an image of the recorded size. A file can record
any size, and ask for any network to cut down, so where its own tensors do not account for the work the
conversion happens on torch's meta device: shapes only, no memory and no arithmetic.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from penstock.errors import CheckpointError
from penstock.exporting.describe import Description, set_reshape_sizes
from penstock.gating import GatedConv2d, LevelNorm2d, SaliencyPredictor, gated_layers
from penstock.surgery import add_gates, explain, trace
from penstock.surgery.operators import use_of_module
from penstock.surgery.shrink import REPORT
from penstock.surgery.trace import annotate_shapes

# A file may not make us compute more than its size accounts for. The example image has at most 3 × 256 × 256
# values, the dense network at most 8 times the file's own (a cut network was larger before), or 16 MB.
_MOST_PIXELS = 1 << 18
_MOST_TIMES, _MOST_VALUES = 8, 1 << 22


class WithoutChance(TorchFunctionMode):
    """Random initialisation does nothing. (On the meta device it would also import the whole compiler.)"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def accounts_for(tensors: Mapping[str, Tensor], network: nn.Module) -> bool:
    """Whether a file with these tensors may ask for the memory of `network`."""
    given = sum(tensor.numel() for tensor in tensors.values())
    asked = sum(tensor.numel() for tensor in network.state_dict().values())
    return asked <= _MOST_TIMES * given + _MOST_VALUES


def is_small(description: Description) -> bool:
    """Whether the recorded image is small enough to be run."""
    return math.prod(description.input_shape or ()) <= _MOST_PIXELS


def on_meta(network: nn.Module) -> nn.Module:
    """A copy of `network` without values."""
    return copy.deepcopy(network).to("meta")


def fill_with_zeros(network: nn.Module) -> nn.Module:
    """Give a network on the meta device memory on the CPU."""
    # Module.to_empty does the same but imports sympy on the way, which takes seconds.
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            zeros = torch.zeros(parameter.shape, dtype=parameter.dtype)
            setattr(module, name, nn.Parameter(zeros, parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros(buffer.shape, dtype=buffer.dtype))
    return network


def add_recorded_gates(dense: nn.Module, description: Description) -> nn.Module:
    """Gates at the recorded layers, and at no others."""
    example = _example(dense, description)
    gated = add_gates(dense, example)
    verdicts = explain(gated)
    gates = {conv.name for conv in verdicts.gated}
    for name in description.gates:
        if name not in gates:
            reasons = (conv.reason for conv in verdicts.left_alone if conv.name == name)
            reason = next(reasons, "there is no such layer")
            raise CheckpointError(f"layer {name!r} is gated in the file and cannot be gated here: {reason}")
    surplus = sorted(gates - set(description.gates))
    return add_gates(dense, example, keep_dense=surplus) if surplus else gated


def add_recorded_levels(network: nn.Module, description: Description, tensors: Mapping[str, Tensor]) -> None:
    """Levels at the layers that had some when the network was saved."""
    for name, layer in gated_layers(network):
        levels = description.gates[name].levels if name in description.gates else ()
        shift = tensors.get(f"{name}.shift")
        if levels and (shift is None or len(shift) != len(levels)):
            raise CheckpointError(f"layer {name!r}: {len(levels)} levels, and tensors for another number")
        if levels and not layer.levels:
            layer.set_levels(levels)
        elif levels != layer.levels:
            raise CheckpointError(f"layer {name!r}: levels {levels} in the file, {layer.levels} here")


def add_recorded_thresholds(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Thresholds at the layers that had one when the network was saved; their values come with the others."""
    for name, layer in gated_layers(network):
        kept = tensors.get(f"{name}.threshold")
        if kept is not None and not (
            kept.ndim == 0 and kept.is_floating_point() and 0 <= float(kept) < math.inf
        ):
            raise CheckpointError(
                f"layer {name!r}: its threshold is {kept}, expected one number of at least 0"
            )
        layer.set_threshold(None if kept is None else float(kept))


def fit_to_shapes(
    network: nn.Module, description: Description, tensors: Mapping[str, Tensor]
) -> fx.GraphModule:
    """Narrow every layer to the shapes in the file, after channels were removed for good."""
    example = _example(network, description)
    traced = trace(network, example)
    for name, module in traced.named_modules():
        _fit_module(name, module, tensors)
    set_reshape_sizes(traced, description.reshapes)
    annotate_shapes(traced, example)
    traced.meta[REPORT] = description.removal
    return traced


def put_tensors(network: nn.Module, tensors: Mapping[str, Tensor], dense: nn.Module, assign: bool) -> None:
    """Fill the network with the file's tensors; every name and shape must agree.

    dense: what the network was converted from, for the values that no file holds. assign: the network takes
    the tensors themselves, with their type, instead of copying their values.
    """
    own = network.state_dict()
    missing, surplus = [n for n in own if n not in tensors], [n for n in tensors if n not in own]
    if missing or surplus:
        parts = [
            f"{_listed(names)} {what}"
            for names, what in ((missing, "missing"), (surplus, "unexpected"))
            if names
        ]
        raise CheckpointError(f"tensors in the file: {', '.join(parts)}; give the model that was saved")
    for name, tensor in tensors.items():
        if tuple(own[name].shape) != tuple(tensor.shape):
            raise CheckpointError(
                f"{name!r} has shape {tuple(tensor.shape)} in the file and {tuple(own[name].shape)} "
                "in the network; give the model that was saved"
            )
        if own[name].is_floating_point() != tensor.is_floating_point():
            raise CheckpointError(
                f"{name!r} is {tensor.dtype} in the file and {own[name].dtype} in the network; save it again"
            )
    without_values = any(tensor.is_meta for tensor in own.values())
    if without_values and not assign:
        device = next(dense.parameters()).device
        tensors = {name: tensor.to(device, own[name].dtype) for name, tensor in tensors.items()}
    network.load_state_dict(dict(tensors), assign=assign or without_values)
    _fill_the_rest(network, dense)


def _fill_the_rest(network: nn.Module, dense: nn.Module) -> None:
    """Buffers that no state dict holds, where the conversion was made without values."""
    known = dict(dense.named_buffers())
    for name, buffer in list(network.named_buffers()):
        if not buffer.is_meta:
            continue
        owner, _, key = name.rpartition(".")
        module = network.get_submodule(owner)
        if isinstance(module, GatedConv2d):
            value = torch.zeros(buffer.shape, dtype=buffer.dtype, device=module.shift.device)
        elif name in known and not known[name].is_meta and known[name].shape == buffer.shape:
            value = known[name].clone()
        else:
            raise CheckpointError(f"{name!r} is not in the file, and an image of its size cannot be run")
        setattr(module, key, value)


def set_gates(network: nn.Module, description: Description) -> None:
    """Densities and summaries as recorded."""
    layers = dict(gated_layers(network))
    if layers.keys() != description.gates.keys():
        raise CheckpointError(
            f"gated layers: {_listed(list(description.gates))} in the file, {_listed(list(layers))} here"
        )
    for name, layer in layers.items():
        record = description.gates[name]
        layer.density, layer.gate.summary = record.density, record.summary


def _example(network: nn.Module, description: Description) -> Tensor:
    if description.input_shape is None:
        raise CheckpointError(
            "the file does not record the input's shape; save a network that add_gates returned"
        )
    weight = next(parameter for parameter in network.parameters() if parameter.is_floating_point())
    return torch.zeros(1, *description.input_shape, dtype=weight.dtype, device=weight.device)


def _fit_module(name: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    changed = False
    own = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
    for key, old in own.items():
        full = f"{name}.{key}" if name else key
        new = tensors.get(full)
        if new is None or new.shape == old.shape:
            continue
        if new.ndim != old.ndim or any(n > o or n == 0 for n, o in zip(new.shape, old.shape, strict=True)):
            raise CheckpointError(
                f"{full!r} has shape {tuple(new.shape)} in the file; removing channels cannot make that of "
                f"{tuple(old.shape)}"
            )
        empty = torch.zeros(new.shape, dtype=old.dtype, device=old.device)
        setattr(
            module, key, nn.Parameter(empty, old.requires_grad) if isinstance(old, nn.Parameter) else empty
        )
        changed = True
    if changed:
        _refit(name, module)


def _refit(name: str, module: nn.Module) -> None:
    """The numbers a module keeps beside its tensors."""
    cutting = use_of_module(module).operator.cutting
    if cutting is not None and not isinstance(module, GatedConv2d):  # its parts are refitted by themselves
        cutting.refit(module)
    elif not isinstance(module, GatedConv2d | SaliencyPredictor | LevelNorm2d):
        raise CheckpointError(
            f"layer {name!r} is a {type(module).__name__}, from which no channel can be removed"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:3])) or "none"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
