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
from torch.nn.modules.conv import _ConvNd

from penstock.errors import LayerError
from penstock.gating import GatedConv2d
from penstock.surgery.network import count_parameters
from penstock.surgery.operators import shape_of, use_of_module
from penstock.surgery.operators.sizes import names_sizes, write_sizes, written_sizes
from penstock.surgery.ties import Slots, Ties, find_ties
from penstock.surgery.trace import annotate_shapes, trace

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
            _cut_module(traced.get_submodule(name), kept(ties.writes[name]), kept(slots))
        for name, slots in ties.carries.items():
            _cut_module(traced.get_submodule(name), kept(slots))
        for node in traced.graph.nodes:
            if node in ties.values and names_sizes(node):
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
    return weights, count_parameters(network)


def _cut_module(module: nn.Module, outputs: Tensor, inputs: Tensor | None = None) -> None:
    """Cut a module down to the given channels, as its row in the table of operators says."""
    cutting = use_of_module(module).operator.cutting
    assert cutting is not None
    narrower = isinstance(module, GatedConv2d) and len(outputs) < module.shift.shape[-1]
    if narrower:
        assert isinstance(module, GatedConv2d)
        module.drop_levels()  # the statistics of the other levels no longer fit
    for name, axis in cutting.outputs.items():
        _cut_tensor(module, name, outputs, axis)
    for name, axis in cutting.inputs.items() if inputs is not None else ():
        assert inputs is not None
        _cut_tensor(module, name, inputs, axis)
    cutting.refit(module)
    if narrower:
        assert isinstance(module, GatedConv2d)
        # The number of winners stays: the removed channels never won.
        module.density = min(1.0, int(module.winners) / len(outputs))


def _cut_tensor(module: nn.Module, path: str, places: Tensor, axis: int) -> None:
    owner, _, name = path.rpartition(".")
    module = module.get_submodule(owner)
    old = getattr(module, name, None)
    if old is None:
        return
    data = old.detach().index_select(axis, places.to(old.device))
    kept = nn.Parameter(data, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else data
    setattr(module, name, kept)


def _refit_reshape(node: fx.Node, width: int) -> None:
    """A reshape that names the number of channels gets the new number."""
    old = shape_of(node)
    assert old is not None
    sizes, packed = written_sizes(node)
    if len(sizes) > 1 and sizes[1] == old[1]:
        sizes[1] = width
        write_sizes(node, sizes, packed)
