"""Which channels may go, and what the network costs without them: a network in, its removable channels out.

Channels that meet in a residual sum are tied: they go together or not at all (`surgery.ties` follows them). A
channel may go if removing it is the same as masking it, that is, as setting γ and β of all its norms to zero.
So the channels are masked once, half of them at a time, and whoever reads them must then see zeros. Where one
does not (an activation with f(0) ≠ 0, a writer without a norm, the input image), the layer is left alone.

    MACs of a convolution = k² · inputs left · outputs left · height · width
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock.surgery import WeightLayer, trace, weight_layers
from penstock.surgery.shrink import cut
from penstock.surgery.ties import Slots, Ties, find_ties


@dataclass(frozen=True)
class Removable:
    """A traced copy of a network, and which of its tied channels (by their root in `ties`) may be removed.

    `left_alone`: {layer: why its channels stay}. `layers`: every run of a convolution or linear layer.
    """

    traced: fx.GraphModule
    ties: Ties
    roots: frozenset[int]
    left_alone: dict[str, str]
    layers: tuple[WeightLayer, ...]

    def channels(self) -> int:
        """How many output channels of convolutions and linear layers may go."""
        written = [slot for slots in self.ties.writes.values() for slot in slots]
        return sum(self.ties.root(slot) in self.roots for slot in written)

    def outputs(self, layer: str) -> Slots:
        """The slots of what `layer` writes; empty if its channels could not be followed."""
        return self.ties.writes.get(layer, self.ties.carries.get(layer, []))

    def left(self, slots: Slots, gone: Collection[int]) -> list[int]:
        """The places of `slots` that stay when the roots `gone` go."""
        return [place for place, slot in enumerate(slots) if self.ties.root(slot) not in gone]

    def macs(self, gone: Collection[int] = ()) -> dict[str, int]:
        """{layer: MACs for one image} without the roots `gone`."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            product = layer.product
            outputs = product.outputs
            inputs = product.inputs // product.groups  # that one output reads
            if layer.name in self.ties.reads:
                inputs = len(self.left(self.ties.reads[layer.name], gone))
            if self.outputs(layer.name):
                outputs = len(self.left(self.outputs(layer.name), gone))
            runs = product.positions * outputs * inputs * product.taps
            counts[layer.name] = counts.get(layer.name, 0) + runs
        return counts

    def without(self, gone: Collection[int], example: Tensor) -> fx.GraphModule:
        """The smaller network, cut out of the traced copy (which is used up by it)."""
        every = {self.ties.root(slot) for slots in self.ties.writes.values() for slot in slots}
        return cut(self.traced, self.ties, (every | self.ties.pinned()) - set(gone), example)


def find_removable(network: nn.Module, example: Tensor) -> Removable:
    """Follow every channel of `network`. example: (batch, channel, height, width), the network's input."""
    traced = trace(network, example)
    ties = find_ties(traced)
    layers = tuple(weight_layers(traced))
    scaled = {ties.root(slot) for name, slots in _norms(traced, ties) for slot in slots}
    pinned = ties.pinned()
    last = next(node for node in traced.graph.nodes if node.op == "output")
    answer = {ties.root(slot) for value in last.all_input_nodes for slot in ties.values.get(value, [])}
    roots, left_alone = set(), {}
    for name, slots in ties.writes.items():
        own = {ties.root(slot) for slot in slots}
        if own & answer:
            left_alone[name] = "its channels are the network's output"
        elif own & pinned:
            left_alone[name] = "its channels go where they cannot be followed"
        elif not own & scaled:
            left_alone[name] = "no batch norm with a scale follows"
        roots |= (own & scaled) - pinned
    leaks = _leaks(traced, example, ties, sorted(roots))
    for name, slots in ties.writes.items():
        reader = next((leaks[root] for root in map(ties.root, slots) if root in leaks), None)
        if reader is not None:
            left_alone[name] = f"{reader} would not read zeros from a channel whose norm is zero"
            roots -= {ties.root(slot) for slot in slots}
    for layer in layers:
        if layer.name not in ties.writes and layer.name not in ties.carries:
            left_alone[layer.name] = "grouped, shared or parametrised weights stay whole"
    return Removable(traced, ties, frozenset(roots), left_alone, layers)


def mask_channels(network: nn.Module, ties: Ties, gone: Collection[int]) -> None:
    """Set γ and β of the channels with the roots `gone` to zero, in place: what removing them amounts to."""
    with torch.no_grad():
        for name, slots in _norms(network, ties):
            module = network.get_submodule(name)
            assert isinstance(module, _BatchNorm)
            places = [place for place, slot in enumerate(slots) if ties.root(slot) in gone]
            module.weight[places] = 0
            module.bias[places] = 0


def _norms(network: nn.Module, ties: Ties) -> list[tuple[str, Slots]]:
    """The batch norms that have a scale, with the slots of their channels."""
    modules = dict(network.named_modules())
    return [
        (name, slots)
        for name, slots in ties.carries.items()
        if isinstance(module := modules[name], _BatchNorm) and module.affine
    ]


def _leaks(network: nn.Module, example: Tensor, ties: Ties, roots: list[int]) -> dict[int, str]:
    """{root: a layer that does not read zeros from it although it is masked}."""
    leaks: dict[int, str] = {}
    # Noise, because an example of zeros would hide every leak.
    noise = torch.randn(example[:2].shape, generator=torch.Generator().manual_seed(0)).to(example)
    for parity in (0, 1):
        # Half the channels at a time: with all of them masked at once, every reader would see zeros anyway.
        masked = set(roots[parity::2])
        probe = deepcopy(network).eval()
        mask_channels(probe, ties, masked)
        seen: dict[str, Tensor] = {}
        for name in ties.reads:
            probe.get_submodule(name).register_forward_pre_hook(partial(_note_channels, seen, name))
        with torch.no_grad():
            probe(noise)
        for name, slots in ties.reads.items():
            for slot, nonzero in zip(slots, seen[name].tolist(), strict=True):
                if nonzero and ties.root(slot) in masked:
                    leaks.setdefault(ties.root(slot), name)
    return leaks


def _note_channels(seen: dict[str, Tensor], name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Which channels of the layer's input are nonzero somewhere, in any of its runs."""
    nonzero = inputs[0].transpose(0, 1).flatten(1).any(dim=1)
    seen[name] = nonzero | seen[name] if name in seen else nonzero
