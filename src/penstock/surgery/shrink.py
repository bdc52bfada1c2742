"""Physical removal of channels: a network and the channels to keep in, a smaller network out.

Serves plain and gated networks alike. A channel is dropped from the layer that makes it, from norms and
gates, and from all layers that read it. Channels tied by residual sums, products or depthwise convolutions go
only if all of the layers that make them let them go; those of grouped convolutions, of the network's output,
and of steps that are not understood stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from penstock.errors import LayerError
from penstock.gating import GatedConv2d
from penstock.surgery.ops import Kind, kind_of
from penstock.surgery.ties import Slots, Ties, find_ties
from penstock.surgery.trace import annotate_shapes, shape_of, trace

REPORT = "penstock.removal"


@dataclass(frozen=True)
class Width:
    """The output channels of one convolution before and after a removal."""

    name: str
    before: int
    after: int


@dataclass(frozen=True)
class Removal:
    """What a removal saved. `weights` are those of convolutions and linear layers; `parameters` are all."""

    layers: tuple[Width, ...]
    weights_before: int
    weights_after: int
    parameters_before: int
    parameters_after: int

    @property
    def weights_saved(self) -> int:
        return self.weights_before - self.weights_after

    @property
    def weights_ratio(self) -> float:
        """How many times fewer weights there are now."""
        return self.weights_before / self.weights_after


def keep_channels(
    network: nn.Module, example: Tensor, keep: Mapping[str, Sequence[int] | Tensor]
) -> fx.GraphModule:
    """A smaller copy of `network` in which each named layer keeps only the given output channels.

    keep: {convolution or linear layer: indices of the outputs to keep, or a bool mask}; layers not named keep
    all. A channel that is tied to one which stays, stays; `removal_report` says what each layer came to have.
    """
    traced = trace(network, example)
    ties = find_ties(traced)
    layers = _weights_of(traced)
    wanted = {name: _indices(name, chosen, layers) for name, chosen in keep.items()}
    stay = ties.pinned()
    for name, slots in ties.writes.items():
        stay.update(ties.root(slots[index]) for index in wanted.get(name, range(len(slots))))
    return cut(traced, ties, stay, example)


def cut(traced: fx.GraphModule, ties: Ties, stay: set[int], example: Tensor) -> fx.GraphModule:
    """Cut `traced`, in place, down to the channels whose roots are in `stay` (and at least one a layer)."""
    for slots in ties.writes.values():
        if not any(ties.root(slot) in stay for slot in slots):
            stay.add(ties.root(slots[0]))
    before = _sizes(traced)
    widths = {
        name: layer.weight.shape[0]
        for name, layer in _weights_of(traced).items()
        if isinstance(layer, _ConvNd)
    }

    def kept(slots: Slots) -> Tensor:
        return torch.tensor([place for place, slot in enumerate(slots) if ties.root(slot) in stay])

    with torch.no_grad():
        for name, slots in ties.reads.items():
            _cut_layer(traced.get_submodule(name), kept(slots), kept(ties.writes[name]))
        for name, slots in ties.carries.items():
            _cut_carrier(traced.get_submodule(name), kept(slots))
        for node in traced.graph.nodes:
            if kind_of(node) is Kind.MOVE and node in ties.values:
                _refit_reshape(node, len(kept(ties.values[node])))
    traced.recompile()
    annotate_shapes(traced, example)
    after = _sizes(traced)
    layers = _weights_of(traced)
    traced.meta[REPORT] = Removal(
        layers=tuple(Width(name, width, layers[name].weight.shape[0]) for name, width in widths.items()),
        weights_before=before[0],
        weights_after=after[0],
        parameters_before=before[1],
        parameters_after=after[1],
    )
    return traced


def removal_report(network: nn.Module) -> Removal:
    """What the removal that made `network` saved."""
    meta = network.meta if isinstance(network, fx.GraphModule) else {}
    if REPORT not in meta:
        raise LayerError("no channel was removed from this network; use remove_unused or keep_channels first")
    return meta[REPORT]


def _weights_of(network: nn.Module) -> dict[str, _ConvNd | nn.Linear]:
    """The convolutions and linear layers by name; the one inside a gated layer goes by that layer's name."""
    inside = {id(module.conv) for module in network.modules() if isinstance(module, GatedConv2d)}
    found: dict[str, _ConvNd | nn.Linear] = {}
    for name, module in network.named_modules():
        if isinstance(module, GatedConv2d):
            found[name] = module.conv
        elif isinstance(module, _ConvNd | nn.Linear) and id(module) not in inside:
            found[name] = module
    return found


def _indices(
    name: str, chosen: Sequence[int] | Tensor, layers: Mapping[str, _ConvNd | nn.Linear]
) -> list[int]:
    if name not in layers:
        raise LayerError(
            f"keep: no convolution or linear layer is named {name!r}; there are: {', '.join(layers)}"
        )
    width = layers[name].weight.shape[0]
    given = torch.as_tensor(chosen)
    if given.dtype == torch.bool and tuple(given.shape) == (width,):
        given = given.nonzero().flatten()
    if given.ndim != 1 or len(given) == 0 or given.is_floating_point() or given.dtype == torch.bool:
        raise LayerError(
            f"keep: layer {name!r} needs at least one index, or a bool mask of {width}, got {chosen!r}"
        )
    if int(given.min()) < 0 or int(given.max()) >= width:
        raise LayerError(
            f"keep: layer {name!r} has output channels 0 to {width - 1}, got indices from {int(given.min())} "
            f"to {int(given.max())}"
        )
    return given.tolist()


def _sizes(network: nn.Module) -> tuple[int, int]:
    weights = sum(layer.weight.numel() for layer in _weights_of(network).values())
    return weights, sum(parameter.numel() for parameter in network.parameters())


def _cut_layer(module: nn.Module, inputs: Tensor, outputs: Tensor) -> None:
    weights = module.conv if isinstance(module, GatedConv2d) else module
    assert isinstance(weights, nn.Conv2d | nn.Linear)
    _cut_parameter(weights, "weight", outputs, 0)
    _cut_parameter(weights, "weight", inputs, 1)
    _cut_parameter(weights, "bias", outputs, 0)
    if isinstance(weights, nn.Linear):
        weights.in_features, weights.out_features = len(inputs), len(outputs)
    else:
        weights.in_channels, weights.out_channels = len(inputs), len(outputs)
    if isinstance(module, GatedConv2d):
        _cut_gate(module, inputs, outputs)


def _cut_gate(layer: GatedConv2d, inputs: Tensor, outputs: Tensor) -> None:
    width = layer.shift.shape[-1]
    if len(outputs) < width:
        layer.drop_levels()  # what the others know of their densities no longer fits
    if isinstance(layer.norm, _BatchNorm):
        _cut_carrier(layer.norm, outputs)
    _cut_parameter(layer, "shift", outputs, -1)
    _cut_parameter(layer.gate, "weight", inputs, 0)
    _cut_parameter(layer.gate, "weight", outputs, 1)
    _cut_parameter(layer.gate, "bias", outputs, -1)
    if len(outputs) < width:
        # As many winners as before: those that are gone never won anything.
        layer.density = min(1.0, int(layer.winners) / len(outputs))


def _cut_carrier(module: nn.Module, channels: Tensor) -> None:
    for name in ("weight", "bias"):
        _cut_parameter(module, name, channels, 0)
    if isinstance(module, _BatchNorm):
        for name in ("running_mean", "running_var"):
            buffer = getattr(module, name)
            if buffer is not None:
                setattr(module, name, buffer.index_select(0, channels.to(buffer.device)))
        module.num_features = len(channels)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(channels)
    elif isinstance(module, nn.Conv2d):
        module.in_channels = module.out_channels = module.groups = len(channels)


def _cut_parameter(module: nn.Module, name: str, places: Tensor, axis: int) -> None:
    old = getattr(module, name, None)
    if old is not None:
        data = old.detach().index_select(axis, places.to(old.device))
        setattr(module, name, nn.Parameter(data, requires_grad=old.requires_grad))


def _refit_reshape(node: fx.Node, width: int) -> None:
    """A reshape that names the number of channels gets the new number."""
    old = shape_of(node)
    assert old is not None
    packed = len(node.args) > 1 and isinstance(node.args[1], list | tuple)
    sizes = list(node.args[1]) if packed else list(node.args[1:])  # type: ignore[arg-type]
    is_reshape = node.op != "call_module" and str(getattr(node.target, "__name__", node.target)) in (
        "view",
        "reshape",
    )
    if is_reshape and len(sizes) > 1 and sizes[1] == old[1]:
        sizes[1] = width
        node.args = (node.args[0], tuple(sizes)) if packed else (node.args[0], *sizes)
