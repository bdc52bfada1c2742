"""Which channels stand or fall together: a traced network in, one slot for every channel of every value out.

Removing an output channel of a convolution removes it from every value it flows through and from every layer
that reads it. Values that meet in a sum or a product must lose the same channels, so their slots are joined.
Where it is not known what a step does with its channels, they are pinned: they stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from penstock.gating import GatedConv2d
from penstock.surgery.flow import pads_channels, spares_channels, takes_all_channels
from penstock.surgery.ops import Kind, argument, kind_of, module_of
from penstock.surgery.trace import shape_of

Slots = list[int]


@dataclass
class Ties:
    """Slots of the channels a layer reads and writes, by layer name; equal `root` means tied together."""

    reads: dict[str, Slots] = field(default_factory=dict)  # conv and linear: input channels
    writes: dict[str, Slots] = field(default_factory=dict)  # conv and linear: output channels
    carries: dict[str, Slots] = field(
        default_factory=dict
    )  # depthwise conv, norm, PReLU: one parameter a channel
    values: dict[fx.Node, Slots] = field(default_factory=dict)  # every value with a channel axis
    _parents: list[int] = field(default_factory=list)
    _pinned: set[int] = field(default_factory=set)

    def root(self, slot: int) -> int:
        while self._parents[slot] != slot:
            self._parents[slot] = self._parents[self._parents[slot]]
            slot = self._parents[slot]
        return slot

    def pinned(self) -> set[int]:
        """The roots that must stay."""
        return {self.root(slot) for slot in self._pinned}

    def new(self, count: int) -> Slots:
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return list(range(start, start + count))

    def pin(self, slots: Slots) -> None:
        self._pinned.update(slots)

    def join(self, first: Slots, second: Slots) -> None:
        for one, other in zip(first, second, strict=True):
            self._parents[self.root(other)] = self.root(one)


def find_ties(traced: fx.GraphModule) -> Ties:
    """Follow every channel of a traced network, plain or gated."""
    ties = Ties()
    owners = Counter(id(p) for module in traced.modules() for p in module.parameters(recurse=False))
    for node in traced.graph.nodes:
        sources = [source for source in node.all_input_nodes if source in ties.values]
        slots = _follow(node, sources, ties, owners)
        shape = None if node.op == "output" else shape_of(node)
        width = 0 if shape is None or len(shape) < 2 else shape[1]
        if slots is None or (width and len(slots) != width):
            for source in sources:
                ties.pin(ties.values[source])
            slots = ties.new(width)
            ties.pin(slots)
        if width:
            ties.values[node] = slots
    return ties


def _follow(node: fx.Node, sources: list[fx.Node], ties: Ties, owners: Counter[int]) -> Slots | None:
    """The slots of the node's channels, or None if they cannot be followed."""
    kind = kind_of(node)
    if kind is Kind.SIZE:
        return []
    if kind in (Kind.WEIGHT, Kind.GATED):
        return _through_weights(node, sources, ties, owners)
    if kind in (Kind.ADD, Kind.MULTIPLY):
        return _through_arithmetic(node, sources, ties)
    if kind is Kind.CONCAT:
        return _through_concat(node, sources, ties)
    if len(sources) != 1 or (len(node.all_input_nodes) > 1 and kind is not Kind.MOVE):
        return None
    slots, before, after = ties.values[sources[0]], shape_of(sources[0]), shape_of(node)
    if before is None or after is None:
        return None
    if kind is Kind.NORM:
        return _carried(node, slots, ties, owners)
    if kind is Kind.ACTIVATION:
        per_channel = (
            isinstance(module_of(node), nn.PReLU) and getattr(module_of(node), "num_parameters", 1) > 1
        )
        return _carried(node, slots, ties, owners) if per_channel else slots
    if kind is Kind.PASS:
        return slots
    if kind is Kind.MOVE and after[:2] == before[:2]:
        return slots
    if kind is Kind.MOVE and len(after) == 2 and after[0] == before[0] and after[1] == prod(before[1:]):
        return [slot for slot in slots for _ in range(prod(before[2:]))]
    if kind is Kind.REDUCE and spares_channels(node, len(before)):
        return slots
    if kind is Kind.SELECT and takes_all_channels(node.args[1]):
        return slots
    if kind is Kind.PAD:
        return _through_padding(node, slots, len(before), ties)
    return None


def _through_weights(node: fx.Node, sources: list[fx.Node], ties: Ties, owners: Counter[int]) -> Slots | None:
    module = module_of(node)
    weights = module.conv if isinstance(module, GatedConv2d) else module
    if not sources or not isinstance(weights, nn.Conv2d | nn.Linear) or not _plain(weights):
        return None
    if _shares_parameters(module, owners):
        return None
    name, slots = str(node.target), ties.values[sources[0]]
    if isinstance(weights, nn.Conv2d) and weights.groups > 1:
        depthwise = weights.groups == weights.in_channels == weights.out_channels
        return _carried(node, slots, ties, owners) if depthwise and module is weights else None
    shape = shape_of(sources[0])
    if isinstance(weights, nn.Linear) and (shape is None or len(shape) != 2):
        return None
    if name in ties.reads:  # runs again: both runs must see the same channels
        ties.join(ties.reads[name], slots)
        return ties.writes[name]
    ties.reads[name] = slots
    ties.writes[name] = ties.new(
        weights.out_features if isinstance(weights, nn.Linear) else weights.out_channels
    )
    return ties.writes[name]


def _carried(node: fx.Node, slots: Slots, ties: Ties, owners: Counter[int]) -> Slots | None:
    """A layer with one parameter (or filter) a channel: the same channels leave as entered."""
    module, name = module_of(node), str(node.target)
    if _shares_parameters(module, owners) or not isinstance(module, _BatchNorm | nn.PReLU | nn.Conv2d):
        return None
    if name in ties.carries:
        ties.join(ties.carries[name], slots)
    ties.carries.setdefault(name, slots)
    return slots


def _through_arithmetic(node: fx.Node, sources: list[fx.Node], ties: Ties) -> Slots | None:
    shape = shape_of(node)
    if shape is None:
        return None
    whole: list[Slots] = []
    for operand in node.all_input_nodes:
        own = shape_of(operand)
        if own is None:
            continue  # a number
        if operand.op == "get_attr" and prod(own) > 1:
            return None
        if operand in sources and len(own) == len(shape) and own[1] == shape[1]:
            whole.append(ties.values[operand])
        elif operand in sources:
            ties.pin(ties.values[operand])  # one value for all channels, such as a spatial mask
    if not whole:
        return None
    for other in whole[1:]:
        ties.join(whole[0], other)
    return whole[0]


def _through_concat(node: fx.Node, sources: list[fx.Node], ties: Ties) -> Slots | None:
    shape, parts, axis = shape_of(node), argument(node, 0, "tensors"), argument(node, 1, "dim", 0)
    if shape is None or axis not in (1, 1 - len(shape)) or not isinstance(parts, list | tuple):
        return None
    if not all(part in ties.values for part in parts):
        return None
    return [slot for part in parts for slot in ties.values[part]]


def _through_padding(node: fx.Node, slots: Slots, ndim: int, ties: Ties) -> Slots | None:
    added = pads_channels(node, ndim)
    if added is None:
        return None
    before, after = ties.new(added[0]), ties.new(added[1])
    ties.pin(before + after)
    return before + slots + after


def _plain(weights: _ConvNd | nn.Linear) -> bool:
    kind = nn.Linear if isinstance(weights, nn.Linear) else nn.Conv2d
    return type(weights).forward is kind.forward and not hasattr(weights, "parametrizations")


def _shares_parameters(module: nn.Module | None, owners: Counter[int]) -> bool:
    return module is not None and any(owners[id(parameter)] > 1 for parameter in module.parameters())
