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

from penstock.surgery.operators import Joined, Kind, Met, Repeated, Same, Use, shape_of, use_of, way_of

Slots = list[int]


@dataclass
class Ties:
    """Slots of the channels a layer reads and writes, by layer name; equal `root` means tied together."""

    reads: dict[str, Slots] = field(default_factory=dict)  # conv and linear: input channels
    writes: dict[str, Slots] = field(default_factory=dict)  # conv and linear: output channels
    # Layers with one parameter (or filter) a channel: depthwise convolutions, norms and the like.
    carries: dict[str, Slots] = field(default_factory=dict)
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
    use = use_of(node)
    if use.kind is Kind.SIZE:
        return []
    if use.kind in (Kind.WEIGHT, Kind.GATED):
        return _through_weights(use, sources, ties, owners)
    cutting = use.operator.cutting
    if use.module is not None and cutting is not None and cutting.carries(use.module):
        return _carried(use, ties.values[sources[0]], ties, owners) if len(sources) == 1 else None
    way = way_of(node)
    if isinstance(way, Met):
        return _through_arithmetic(way, ties)
    if isinstance(way, Joined):
        known = all(part in ties.values for part in way.parts)
        return [slot for part in way.parts for slot in ties.values[part]] if known else None
    if way is None or way.source not in ties.values or len(sources) != 1:
        return None
    if len(node.all_input_nodes) > 1 and use.kind is not Kind.MOVE:
        return None  # a reshape may read sizes besides; of others we do not know what the second input does
    slots = ties.values[way.source]
    if isinstance(way, Same):
        return slots
    if isinstance(way, Repeated):
        return [slot for slot in slots for _ in range(way.factor)]
    before, after = ties.new(way.before), ties.new(way.after)
    ties.pin(before + after)
    return before + slots + after


def _through_weights(use: Use, sources: list[fx.Node], ties: Ties, owners: Counter[int]) -> Slots | None:
    module, cutting = use.module, use.operator.cutting
    if not sources or module is None or cutting is None or _shares_parameters(module, owners):
        return None
    weights = module.conv if use.kind is Kind.GATED else module
    if not isinstance(weights, nn.Conv2d | nn.Linear) or not _plain(weights):
        return None
    assert use.node is not None
    name, slots, shape = str(use.node.target), ties.values[sources[0]], shape_of(sources[0])
    if cutting.carries(module):
        return _carried(use, slots, ties, owners)
    if isinstance(weights, nn.Conv2d) and weights.groups > 1:
        return None
    if isinstance(weights, nn.Linear) and (shape is None or len(shape) != 2):
        return None
    if name in ties.reads:  # runs again: both runs must see the same channels
        ties.join(ties.reads[name], slots)
        return ties.writes[name]
    ties.reads[name] = slots
    ties.writes[name] = ties.new(weights.weight.shape[0])
    return ties.writes[name]


def _carried(use: Use, slots: Slots, ties: Ties, owners: Counter[int]) -> Slots | None:
    """A layer with one parameter (or filter) a channel: the same channels leave as entered."""
    assert use.node is not None
    name = str(use.node.target)
    if _shares_parameters(use.module, owners):
        return None
    if name in ties.carries:
        ties.join(ties.carries[name], slots)
    ties.carries.setdefault(name, slots)
    return slots


def _through_arithmetic(way: Met, ties: Ties) -> Slots | None:
    for operand in (*way.whole, *way.spread):
        if operand.op == "get_attr" and prod(shape_of(operand) or ()) > 1:
            return None
    whole = [ties.values[operand] for operand in way.whole if operand in ties.values]
    if not whole:
        return None
    for operand in way.spread:  # one value for all channels, such as a spatial mask
        ties.pin(ties.values.get(operand, []))
    for other in whole[1:]:
        ties.join(whole[0], other)
    return whole[0]


def _plain(weights: nn.Conv2d | nn.Linear) -> bool:
    kind = nn.Linear if isinstance(weights, nn.Linear) else nn.Conv2d
    return type(weights).forward is kind.forward and not hasattr(weights, "parametrizations")


def _shares_parameters(module: nn.Module | None, owners: Counter[int]) -> bool:
    return module is not None and any(owners[id(parameter)] > 1 for parameter in module.parameters())
