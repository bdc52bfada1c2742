"""From a dense network to the one a checkpoint describes: gates added, channels removed, tensors put in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from penstock.errors import CheckpointError
from penstock.exporting.describe import Description, set_reshape_sizes
from penstock.gating import GatedConv2d, LevelNorm2d, SaliencyPredictor, gated_layers
from penstock.surgery import add_gates, explain, trace
from penstock.surgery.shrink import REPORT
from penstock.surgery.trace import annotate_shapes


class WithoutChance(TorchFunctionMode):
    """Random initialisation does nothing. (On the meta device it would also import the whole compiler.)"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


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


def add_recorded_levels(network: nn.Module, description: Description) -> None:
    """Levels at the layers that had some when the network was saved."""
    for name, layer in gated_layers(network):
        levels = description.gates[name].levels if name in description.gates else ()
        if levels and not layer.levels:
            layer.set_levels(levels)
        elif levels != layer.levels:
            raise CheckpointError(f"layer {name!r}: levels {levels} in the file, {layer.levels} here")


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


def put_tensors(network: nn.Module, tensors: Mapping[str, Tensor], assign: bool) -> None:
    """Fill the network with the file's tensors; every name and shape must agree.

    assign: the network takes the tensors themselves, with their type, instead of copying their values.
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
    network.load_state_dict(dict(tensors), assign=assign)


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
    if isinstance(module, _ConvNd):
        depthwise = module.groups > 1 and module.groups == module.in_channels == module.out_channels
        module.groups = module.weight.shape[0] if depthwise else module.groups
        module.out_channels, module.in_channels = (
            module.weight.shape[0],
            module.weight.shape[1] * module.groups,
        )
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _BatchNorm):
        statistics = module.weight if module.running_mean is None else module.running_mean
        module.num_features = len(statistics)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
    elif not isinstance(module, GatedConv2d | SaliencyPredictor | LevelNorm2d):
        raise CheckpointError(
            f"layer {name!r} is a {type(module).__name__}, from which no channel can be removed"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:3])) or "none"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
