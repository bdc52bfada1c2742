"""Steps that move numbers rather than compute them: reshape, permute, slices, padding, means over axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from penstock.exporting.onnx.call import Call, Unsupported, static
from penstock.exporting.onnx.graph import Value
from penstock.surgery import Dense, Spread
from penstock.surgery.operators import arithmetic, moving

_REDUCTIONS = {
    arithmetic.MEAN: "ReduceMean",
    arithmetic.SUM: "ReduceSum",
    arithmetic.LARGEST: "ReduceMax",
    arithmetic.SMALLEST: "ReduceMin",
}
_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
_PAD_MODULES = {
    moving.ZERO_PAD: "constant",
    moving.REFLECTION_PAD: "reflect",
    moving.REPLICATION_PAD: "replicate",
}
_TO_THE_END = np.iinfo(np.int64).max


def reshape(call: Call) -> Value:
    """view, reshape, flatten, squeeze and unsqueeze: the result's shape says it all."""
    w, x = call.writer, call.x
    if not x.shape or not call.shape:
        raise Unsupported("a reshape from or to a single number")
    if not isinstance(call.target, Dense):
        flattened = isinstance(call.target, Spread) and call.target.count != x.stored.count
        x = call.lists.relayout(x, call.target.source) if flattened else call.stored()  # type: ignore[union-attr]
        size = (1, -1, *call.shape[2:])
        return Value(w.op("Reshape", x.name, w.ints(*size)), call.shape, call.target, x.nonnegative)
    x = call.dense()
    if call.dynamic and not _is_constant(call) and x.shape[0] != call.shape[0]:
        raise Unsupported(f"a reshape from {x.shape} to {call.shape}, which moves the batch axis")
    first = 0 if call.dynamic and not _is_constant(call) else call.shape[0]
    return call.result(w.op("Reshape", x.name, w.ints(first, *call.shape[1:])), x.nonnegative)


def _is_constant(call: Call) -> bool:
    return all(node.op == "get_attr" for node in call.values)


def permute(call: Call) -> Value:
    x = call.dense()
    order = static(call.node.args[1:]) if call.node.args[1:] else (static(call.node.kwargs["dims"]),)
    order = order[0] if isinstance(order[0], tuple | list) else order
    axes = [int(axis) % len(x.shape) for axis in order]
    return call.result(call.writer.op("Transpose", x.name, perm=axes), x.nonnegative)


def transpose(call: Call) -> Value:
    x = call.dense()
    axes = list(range(len(x.shape)))
    first, second = (call.setting(f"dim{place}") for place in (0, 1))
    axes[first], axes[second] = axes[second], axes[first]
    return call.result(call.writer.op("Transpose", x.name, perm=axes), x.nonnegative)


def select(call: Call) -> Value:
    """x[...]: slices and single places; a slice of maps keeps the channels' list."""
    w, index = call.writer, static(call.node.args[1])
    index = index if isinstance(index, tuple) else (index,)
    x = call.dense() if isinstance(call.target, Dense) else call.stored()
    index = _without_ellipsis(index, len(x.shape))
    starts, ends, axes, steps, gone = [], [], [], [], []
    for axis, part in enumerate(index):
        if part is None:
            raise Unsupported("indexing with None")
        if isinstance(part, slice):
            if part != slice(None):
                if part.step is not None and part.step <= 0:
                    raise Unsupported("a slice with a negative step")
                starts.append(part.start or 0)
                ends.append(_TO_THE_END if part.stop is None else part.stop)
                axes.append(axis)
                steps.append(part.step or 1)
        elif isinstance(part, int):
            starts.append(part)
            ends.append(_TO_THE_END if part == -1 else part + 1)
            axes.append(axis)
            steps.append(1)
            gone.append(axis)
        else:
            raise Unsupported(f"indexing with {part!r}")
    if call.dynamic and 0 in axes:
        raise Unsupported("indexing along the batch axis")
    name = w.op("Slice", x.name, *(w.ints(*part) for part in (starts, ends, axes, steps))) if axes else x.name
    name = w.op("Squeeze", name, w.ints(*gone)) if gone else name
    return Value(name, call.shape, call.target, x.nonnegative)


def _without_ellipsis(index: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    if Ellipsis not in index:
        return index
    place = index.index(Ellipsis)
    whole = (slice(None),) * (rank - len(index) + 1)
    return (*index[:place], *whole, *index[place + 1 :])


def part_of(call: Call, pieces: Sequence[int], axis: int, place: int) -> Value:
    """Piece number `place` of chunk or split."""
    w, x = call.writer, call.dense()
    if call.dynamic and axis == 0:
        raise Unsupported("splitting the batch axis")
    start = sum(pieces[:place])
    bounds = (w.ints(start), w.ints(start + pieces[place]), w.ints(axis))
    return call.result(w.op("Slice", x.name, *bounds), x.nonnegative)


def reduce(call: Call) -> Value:
    """mean, sum, amax, amin over axes."""
    x = call.dense() if isinstance(call.target, Dense) else call.stored()
    axes = call.setting("dim")
    if axes is None:
        axes = tuple(range(len(x.shape)))
    axes = [int(axis) % len(x.shape) for axis in ((axes,) if isinstance(axes, int) else axes)]
    if call.dynamic and 0 in axes:
        raise Unsupported(f"{call.use.title} over the batch axis")
    keep = bool(call.setting("keepdim"))
    name = call.writer.reduce(_REDUCTIONS[call.operator], x.name, axes, keep)
    return Value(name, call.shape, call.target, x.nonnegative)


def pad(call: Call) -> Value:
    """Padding of the maps keeps the channels' list; padding of the channels makes the value whole first."""
    w, module = call.writer, cast(Any, call.module)
    mode = call.setting("mode") if module is None else _PAD_MODULES[call.operator]
    widths = list(call.setting("pad") if module is None else module.padding)
    fill = (call.setting("value") if module is None else None) or 0.0
    x = call.x
    if mode not in _PAD_MODES:
        raise Unsupported(f"padding mode {mode!r}")
    maps_only = not any(widths[2 * (len(x.shape) - 2) :]) and not isinstance(call.target, Dense)
    x = call.lists.relayout(x, call.target) if maps_only else call.dense()
    before, after = [0] * len(x.shape), [0] * len(x.shape)
    for place in range(len(widths) // 2):
        before[-1 - place], after[-1 - place] = widths[2 * place], widths[2 * place + 1]
    name = w.op("Pad", x.name, w.ints(*before, *after), w.number(fill), mode=_PAD_MODES[mode])
    stored = call.target if maps_only else Dense(call.shape[1])
    return Value(name, call.shape, stored, x.nonnegative and fill >= 0)


def resize(call: Call) -> Value:
    """interpolate and Upsample, nearest and bilinear."""
    w, x = call.writer, call.stored()
    mode, corners = call.setting("mode"), call.setting("align_corners")
    if mode not in ("nearest", "bilinear"):
        raise Unsupported(f"interpolation mode {mode!r}")
    factors = [after / before for after, before in zip(call.shape[2:], x.shape[2:], strict=True)]
    given = call.setting("scale_factor")
    if given is not None and any(
        factor != float(given) for factor in factors if isinstance(given, int | float)
    ):
        raise Unsupported("a scale factor that does not give whole sizes")
    scales = w.constant(np.array([1.0, 1.0, *factors], np.float32))
    if mode == "nearest":
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        how = {
            "mode": "linear",
            "coordinate_transformation_mode": "align_corners" if corners else "pytorch_half_pixel",
        }
    return call.like_input(w.op("Resize", x.name, "", scales, **how), x.nonnegative)
