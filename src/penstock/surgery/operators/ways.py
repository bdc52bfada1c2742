"""Shape rules: what the channels (axis 1) of a node's result are made of.

    Same(x)                 the channels of x, one for one
    Repeated(x, 49)         a flattened map: each channel of x became 49 neighbouring features
    Padded(x, 0, 16)        zero channels before and after those of x
    Joined((a, b))          torch.cat over channels
    Met((a, b), (), ())     a sum or a product, number by number
    None                    nobody knows

Channel flow reads these as expressions of active channels, ties as channels that stand or fall together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from torch import fx

from penstock.surgery.operators.row import Kind
from penstock.surgery.operators.table import use_of
from penstock.surgery.operators.uses import Use, shape_of, tensor_inputs


@dataclass(frozen=True)
class Same:
    """The channels of `source`, one for one."""

    source: fx.Node


@dataclass(frozen=True)
class Repeated:
    """Each channel of `source` became `factor` consecutive features."""

    source: fx.Node
    factor: int


@dataclass(frozen=True)
class Padded:
    """`before` zero channels, those of `source`, and `after` zero channels."""

    source: fx.Node
    before: int
    after: int


@dataclass(frozen=True)
class Joined:
    """The channels of the parts, side by side."""

    parts: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Met:
    """Operands number by number: `whole` ones have all the channels, `spread` ones one value for many.

    numbers: operands that are no tensors.
    """

    whole: tuple[fx.Node, ...]
    spread: tuple[fx.Node, ...]
    numbers: tuple[Any, ...]


Way = Same | Repeated | Padded | Joined | Met


def way_of(node: fx.Node) -> Way | None:
    """Where the result's channels come from; None for layers with weights and for what is not known."""
    use, shape = use_of(node), shape_of(node)
    if shape is None:
        return None
    if use.kind in (Kind.ADD, Kind.MULTIPLY):
        return _meeting(node, shape)
    if use.kind is Kind.CONCAT:
        return _joining(use, shape)
    sources = tensor_inputs(node)
    before = shape_of(sources[0]) if sources else None
    if before is None:
        return None
    if use.kind in (Kind.ACTIVATION, Kind.PASS):
        return Same(sources[0])
    if use.kind is Kind.MOVE:
        return _moving(sources[0], before, shape)
    if use.kind is Kind.PAD:
        return _padding(use, sources[0], len(before))
    spared = (use.kind is Kind.REDUCE and _spares_channels(use, len(before))) or (
        use.kind is Kind.SELECT and _takes_all_channels(use.setting("index"))
    )
    return Same(sources[0]) if spared else None


def _meeting(node: fx.Node, shape: tuple[int, ...]) -> Met:
    operands = [*node.args[:2], *(node.kwargs[name] for name in ("input", "other") if name in node.kwargs)]
    whole: list[fx.Node] = []
    spread: list[fx.Node] = []
    numbers: list[Any] = []
    for operand in operands:
        own = shape_of(operand) if isinstance(operand, fx.Node) else None
        if own is None or not isinstance(operand, fx.Node):
            numbers.append(operand)
        elif len(own) == len(shape) > 1 and own[1] == shape[1]:
            whole.append(operand)
        else:
            spread.append(operand)
    return Met(tuple(whole), tuple(spread), tuple(numbers))


def _joining(use: Use, shape: tuple[int, ...]) -> Joined | None:
    assert use.node is not None
    parts = use.node.args[0] if use.node.args else use.node.kwargs.get("tensors")
    if use.setting("dim") not in (1, 1 - len(shape)) or not isinstance(parts, list | tuple):
        return None
    nodes = tuple(part for part in parts if isinstance(part, fx.Node))
    return Joined(nodes) if len(nodes) == len(parts) else None


def _moving(source: fx.Node, before: tuple[int, ...], after: tuple[int, ...]) -> Same | Repeated | None:
    # A reshape keeps the order of the numbers, so equal leading axes mean equal channels.
    if after[:2] == before[:2]:
        return Same(source)
    if len(after) == 2 and after[0] == before[0] and after[1] == prod(before[1:]):
        return Repeated(source, prod(before[2:]))
    return None


def _spares_channels(use: Use, ndim: int) -> bool:
    """Whether a reduction is over axes of the maps only."""
    axes = use.setting("dim")
    axes = (axes,) if isinstance(axes, int) else axes
    if not isinstance(axes, list | tuple) or not axes:
        return False
    return all(isinstance(axis, int) and axis % ndim >= 2 for axis in axes)


def _takes_all_channels(index: Any) -> bool:
    """Whether an index such as ``[:, :, ::2, ::2]`` leaves samples and channels alone."""
    whole = slice(None, None, None)
    return (
        isinstance(index, tuple)
        and len(index) >= 2
        and index[0] == whole
        and index[1] == whole
        and all(isinstance(part, slice) for part in index)
    )


def _padding(use: Use, source: fx.Node, ndim: int) -> Padded | None:
    """How many zero channels F.pad puts before and after; None if it does anything but pad with zeros."""
    widths, mode, value = (use.setting(name) for name in ("pad", "mode", "value"))
    if not isinstance(widths, list | tuple) or not all(isinstance(width, int) for width in widths):
        return None
    if mode == "constant" and value not in (None, 0):
        return None
    beyond_maps = (*widths[2 * (ndim - 2) :], 0, 0)
    if not any(beyond_maps):
        return Padded(source, 0, 0)
    if len(beyond_maps) != 4 or mode != "constant" or min(beyond_maps) < 0:
        return None
    return Padded(source, beyond_maps[0], beyond_maps[1])
