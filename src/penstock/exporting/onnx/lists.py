"""Channel lists in the graph: which channels a compact tensor holds, and how to bring it to another list.

A gated layer's list comes from its TopK. Everything else is worked out from those with standard operators,
once for each expression of `surgery.channels`: a residual sum's list is the union (NonZero of a mask), a
concatenation shifts its parts, a flattened map repeats each channel.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.exporting.onnx.graph import GraphWriter, Value
from penstock.surgery import Channels, Concat, Dense, Gate, Meet, Silent, Spread, Union
from penstock.surgery.channels import concat, spread, union


def listable(channels: Channels | None, count: int, unions: bool = True) -> Channels:
    """The expression as a list that is never empty: of a product the first factor's, of nothing everything.

    A superset of what can be nonzero is always right; a convolution over no channel at all is not standard.
    unions: without them a sum holds everything, so that no list's length depends on the image.
    """
    if channels is None or isinstance(channels, Silent):
        return Dense(count)
    if isinstance(channels, Meet):
        return listable(channels.parts[0], count, unions)
    if isinstance(channels, Union):
        return union(*(listable(p, p.count, unions) for p in channels.parts)) if unions else Dense(count)
    if isinstance(channels, Concat):
        return concat(p if isinstance(p, Silent) else listable(p, p.count, unions) for p in channels.parts)
    if isinstance(channels, Spread):
        return spread(listable(channels.source, channels.source.count, unions), channels.factor)
    return channels


class ChannelLists:
    """Index tensors by channel expression."""

    def __init__(self, writer: GraphWriter) -> None:
        self.writer = writer
        self._indices: dict[Channels, str] = {}
        self._positions: dict[Channels, str] = {}

    def set_winners(self, gate: Gate, indices: str) -> None:
        """indices: int64 (k,), the channels that the gate chose, in any order."""
        self._indices[gate] = indices

    def indices(self, channels: Channels) -> str:
        """int64 (n,): the channels that a tensor with `channels` stored holds, in storage order."""
        if channels not in self._indices:
            with self.writer.scope("lists"):
                self._indices[channels] = self._list(channels)
        return self._indices[channels]

    def relayout(self, value: Value, target: Channels) -> Value:
        """The same value holding the channels of `target`; those it did not hold are zero, or its fill."""
        if value.stored == target:
            return value
        w = self.writer
        if value.fill is not None:
            size = w.ints(1, *value.shape[1:])
            base = w.op("Squeeze", w.op("Expand", value.fill, size), w.ints(0))
            whole = self.scatter(base, value, Dense(value.stored.count))
            return self.relayout(whole, target)
        if isinstance(value.stored, Dense):
            name = w.op("Gather", value.name, self.indices(target), axis=1)
            return replace(value, name=name, stored=target)
        return replace(
            self.scatter(self.zeros(target, value.shape), value, target), nonnegative=value.nonnegative
        )

    def zeros(self, target: Channels, shape: tuple[int, ...]) -> str:
        """An all-zero tensor (stored channels, height, width), without a batch axis."""
        w = self.writer
        if isinstance(target, Dense):
            size = w.ints(*shape[1:])
        else:
            count = w.op("Shape", self.indices(target))
            size = w.op("Concat", count, w.ints(*shape[2:]), axis=0) if len(shape) > 2 else count
        return w.op("ConstantOfShape", size)

    def scatter(self, base: str, value: Value, target: Channels, add: bool = False) -> Value:
        """`value` written (or added) into `base`, which holds `target`'s channels and has no batch axis."""
        w = self.writer
        places = w.op("Unsqueeze", self._places(value.stored, target), w.ints(1))
        planes = w.op("Squeeze", value.name, w.ints(0))
        attributes = {"reduction": "add"} if add else {}
        name = w.op("Unsqueeze", w.op("ScatterND", base, places, planes, **attributes), w.ints(0))
        return Value(name, value.shape, target)

    def _places(self, source: Channels, target: Channels) -> str:
        """Where in `target`'s storage each stored channel of `source` goes."""
        listed = self.indices(source)
        return listed if isinstance(target, Dense) else self.writer.op("Gather", self._order(target), listed)

    def _order(self, channels: Channels) -> str:
        """int64 (C,): the place of each channel in storage; whatever for a channel that is not stored."""
        if channels not in self._positions:
            w = self.writer
            with w.scope("lists"):
                listed = self.indices(channels)
                count = w.op("Squeeze", w.op("Shape", listed), w.ints(0))
                zero, one = w.constant(np.array(0, np.int64)), w.constant(np.array(1, np.int64))
                places = w.op("Range", zero, count, one)
                empty = w.constant(np.zeros(channels.count, np.int64))
                self._positions[channels] = w.op("ScatterElements", empty, listed, places)
        return self._positions[channels]

    def _list(self, channels: Channels) -> str:
        w = self.writer
        if isinstance(channels, Dense):
            return w.constant(np.arange(channels.count, dtype=np.int64))
        if isinstance(channels, Silent):
            return w.constant(np.zeros(0, dtype=np.int64))
        if isinstance(channels, Union):
            return self._union(channels)
        if isinstance(channels, Concat):
            shifted, offset = [], 0
            for part in channels.parts:
                listed = self.indices(part)
                if not isinstance(part, Silent):
                    shifted.append(w.op("Add", listed, w.ints(offset)) if offset else listed)
                offset += part.count
            return shifted[0] if len(shifted) == 1 else w.op("Concat", *shifted, axis=0)
        if isinstance(channels, Spread):
            firsts = w.op("Mul", self.indices(channels.source), w.ints(channels.factor))
            steps = w.constant(np.arange(channels.factor, dtype=np.int64))
            return w.op("Reshape", w.op("Add", w.op("Unsqueeze", firsts, w.ints(1)), steps), w.ints(-1))
        raise AssertionError(f"the winners of {channels} were read before they were chosen")

    def _union(self, channels: Union) -> str:
        w = self.writer
        marks = w.constant(np.zeros(channels.count, np.int64))
        for part in channels.parts:
            listed = self.indices(part)
            ones = w.op("Expand", w.ints(1), w.op("Shape", listed))
            marks = w.op("ScatterElements", marks, listed, ones)
        return w.op("Reshape", w.op("NonZero", marks), w.ints(-1))
