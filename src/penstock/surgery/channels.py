"""Which channels of a value can be nonzero, as small frozen expressions.

Built by `flow.channel_flow` for every node of a traced network, and turned into masks by `active_mask` once
it is known which channels the gates chose. A channel that an expression calls inactive is exactly zero in the
real value at every pixel; one that it calls active may be anything (so Dense is always true).

    Dense(64)                          any of 64 channels may be nonzero
    Silent(16)                         16 channels that are always zero (channel padding of a shortcut)
    Gate("layer1.0.conv1", 64)         only the winners of that gated layer
    Union((a, b))                      a residual sum: active in a or in b
    Meet((a, b))                       a product: active in a and in b
    Concat((a, b))                     torch.cat over channels
    Spread(a, 49)                      a flattened map: each channel of a became 49 neighbouring features

A skipped channel leaves a depthwise convolution as act(bias): not zero, but one constant over its whole map.

    Filled(a)                          channels outside of a are not computed; each is one known number
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.errors import LayerError


@dataclass(frozen=True)
class Dense:
    """Any of `count` channels may be nonzero."""

    count: int


@dataclass(frozen=True)
class Silent:
    """`count` channels that are always zero."""

    count: int


@dataclass(frozen=True)
class Gate:
    """The `count` output channels of gated layer `layer`; only its winners are nonzero."""

    layer: str
    count: int


@dataclass(frozen=True)
class Union:
    """A sum: a channel is active where any part is. All parts have the same count."""

    parts: tuple[Channels, ...]

    @property
    def count(self) -> int:
        return self.parts[0].count


@dataclass(frozen=True)
class Meet:
    """A product: a channel is active where every part is. All parts have the same count."""

    parts: tuple[Channels, ...]

    @property
    def count(self) -> int:
        return self.parts[0].count


@dataclass(frozen=True)
class Concat:
    """Parts side by side along the channel axis."""

    parts: tuple[Channels, ...]

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)


@dataclass(frozen=True)
class Spread:
    """Each channel of `source` became `factor` consecutive features (flatten before a linear layer)."""

    source: Channels
    factor: int

    @property
    def count(self) -> int:
        return self.source.count * self.factor


Channels = Dense | Silent | Gate | Union | Meet | Concat | Spread


@dataclass(frozen=True)
class Filled:
    """Channels of `source` may be anything; any other holds one constant over its whole map."""

    source: Channels

    @property
    def count(self) -> int:
        return self.source.count


Flow = Channels | Filled


def union(first: Channels, *others: Channels) -> Channels:
    """The sum's channels, in the simplest form: Dense swallows, Silent vanishes, twins become one."""
    parts = _distinct(Union, (first, *others))
    if any(isinstance(part, Dense) for part in parts):
        return Dense(first.count)
    parts = [part for part in parts if not isinstance(part, Silent)] or [Silent(first.count)]
    return parts[0] if len(parts) == 1 else Union(tuple(parts))


def meet(first: Channels, *others: Channels) -> Channels:
    """The product's channels, in the simplest form: Silent swallows, Dense vanishes, twins become one."""
    parts = _distinct(Meet, (first, *others))
    if any(isinstance(part, Silent) for part in parts):
        return Silent(first.count)
    parts = [part for part in parts if not isinstance(part, Dense)] or [Dense(first.count)]
    return parts[0] if len(parts) == 1 else Meet(tuple(parts))


def concat(parts: Iterable[Channels]) -> Channels:
    """The parts side by side; neighbours of one kind (all Dense, all Silent) become one."""
    joined: list[Channels] = []
    for part in parts:
        for piece in part.parts if isinstance(part, Concat) else (part,):
            last = joined[-1] if joined else None
            if isinstance(piece, Dense | Silent) and type(last) is type(piece):
                joined[-1] = type(piece)(last.count + piece.count)
            else:
                joined.append(piece)
    return joined[0] if len(joined) == 1 else Concat(tuple(joined))


def spread(source: Channels, factor: int) -> Channels:
    """Each channel repeated `factor` times in place."""
    if isinstance(source, Dense | Silent):
        return type(source)(source.count * factor)
    return source if factor == 1 else Spread(source, factor)


def filled(source: Channels) -> Flow:
    """Constants outside of `source`; where it says that any channel may be nonzero there are none."""
    return source if isinstance(source, Dense) else Filled(source)


def varying(flow: Flow) -> Channels:
    """The channels that may be anything; the others are zero, or constants if `flow` is Filled."""
    return flow.source if isinstance(flow, Filled) else flow


def nonzero(flow: Flow) -> Channels:
    """The channels that may be nonzero: all of them, if those that are not computed hold constants."""
    return Dense(flow.count) if isinstance(flow, Filled) else flow


def gates_of(channels: Flow) -> Iterator[Gate]:
    """Every gate an expression depends on."""
    if isinstance(channels, Gate):
        yield channels
    elif isinstance(channels, Spread | Filled):
        yield from gates_of(channels.source)
    elif isinstance(channels, Union | Meet | Concat):
        for part in channels.parts:
            yield from gates_of(part)


def active_mask(
    channels: Flow, masks: Mapping[str, Tensor], batch: int, device: torch.device | str | None = None
) -> Tensor:
    """The expression as a mask, given which channels each gated layer kept.

    What the mask leaves out is zero, or one constant over its whole map if `channels` is Filled.
    masks: {gated layer: bool (batch, C)}, for instance ``layer.gains != 0`` → bool (batch, channels.count).

    >>> active_mask(Union((Gate("a", 2), Gate("b", 2))), {"a": torch.tensor([[True, False]]),
    ...                                                   "b": torch.tensor([[False, False]])}, 1)
    tensor([[ True, False]])
    """
    if isinstance(channels, Filled):
        return active_mask(channels.source, masks, batch, device)
    if isinstance(channels, Dense | Silent):
        return torch.full(
            (batch, channels.count), isinstance(channels, Dense), dtype=torch.bool, device=device
        )
    if isinstance(channels, Gate):
        if channels.layer not in masks:
            given = ", ".join(masks) or "none"
            raise LayerError(f"no mask of gated layer {channels.layer!r} was given; there are: {given}")
        mask = masks[channels.layer]
        if tuple(mask.shape) != (batch, channels.count):
            raise LayerError(
                f"the mask of layer {channels.layer!r} has shape {tuple(mask.shape)}, "
                f"expected (batch, channels) = {(batch, channels.count)}"
            )
        return mask.to(device=device, dtype=torch.bool)
    if isinstance(channels, Spread):
        return active_mask(channels.source, masks, batch, device).repeat_interleave(channels.factor, dim=1)
    parts = [active_mask(part, masks, batch, device) for part in channels.parts]
    if isinstance(channels, Concat):
        return torch.cat(parts, dim=1)
    stacked = torch.stack(parts)
    return stacked.any(dim=0) if isinstance(channels, Union) else stacked.all(dim=0)


def _distinct(kind: type[Union] | type[Meet], parts: Iterable[Channels]) -> list[Channels]:
    flat: list[Channels] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, kind) else (part,))
    return list(dict.fromkeys(flat))
