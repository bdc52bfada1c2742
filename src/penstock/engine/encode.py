"""Steps as numbers: the program that crosses the border to C++ (kernels/run/schema.h has the fields).

Nothing but arrays of integers and floats leaves here, and the other side checks every one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock.engine.layout import Placement
from penstock.engine.schema import number, op_fields, program_format, row
from penstock.engine.steps import (
    AdaptivePool,
    Add,
    Affine,
    ChannelNorm,
    Codes,
    Concat,
    Conv,
    Export,
    Floats,
    Function,
    Gates,
    Import,
    Layout,
    Levels,
    Linear,
    ListedConv,
    Network,
    Pack,
    Pool,
    Scale,
    Spread,
    Step,
)
from penstock_runtime.program import Program

_KINDS: dict[type[Step], str] = {
    Import: "import_image",
    Export: "export_result",
    Conv: "conv",
    Pool: "pool",
    AdaptivePool: "adaptive_pool",
    Add: "add",
    Concat: "concat",
    Affine: "affine",
    Scale: "scale",
    Linear: "linear",
    Pack: "pack",
    ChannelNorm: "channel_norm",
    Spread: "spread",
    ListedConv: "listed",
}
_ALIGN = 16  # weights of each layer start on a cache line


class _Weights:
    def __init__(self) -> None:
        self.parts: list[Floats] = []
        self.size = 0

    def add_bytes(self, array: npt.NDArray[np.int8]) -> int:
        """int8 numbers, four in the place of a float."""
        flat = np.ascontiguousarray(array, np.int8).reshape(-1)
        return self.add(np.pad(flat, (0, -flat.size % 4)).view(np.float32))

    def add(self, array: Floats) -> int:
        flat = np.ascontiguousarray(array, np.float32).reshape(-1)
        offset = self.size
        padding = -flat.size % _ALIGN
        self.parts += [flat, np.zeros(padding, np.float32)]
        self.size += flat.size + padding
        return offset


def encode(network: Network, placement: Placement) -> Program:
    """Write the network down."""
    numbers: dict[int, int] = {}
    rows: list[list[int]] = []
    for step in network.steps:
        if step.output >= 0:
            value = network.values[step.output]
            numbers[step.output] = len(rows)
            layout = value.layout if value.codes is None else Layout.PIXELS
            fields = {
                "element": number("Element", "float32" if value.codes is None else "code8"),
                "layout": number("Layout", layout.value),
                "channels": value.channels,
                "height": value.height,
                "width": value.width,
                "halo": value.halo if value.is_map else 0,
                "offset": placement.offsets[step.output],
                **_quantised(value.codes),
            }
            rows.append(row("TensorField", fields))
    weights, args = _Weights(), list[int]()
    layers, gated = list[str](), list[str]()
    ops = np.zeros((len(network.steps), op_fields()), np.int64)
    scalars = np.zeros((len(network.steps), 2), np.float32)
    for place, step in enumerate(network.steps):
        inputs = [numbers[value] for value in step.inputs]
        function: Function = getattr(step, "function", Function())
        layer = knob = -1
        if isinstance(step, Conv | ListedConv | Linear) and step.layer is not None:
            layer = len(layers)
            layers.append(step.layer)
        if isinstance(step, Conv) and step.gates is not None:
            knob = len(gated)
            gated.append(step.name)
        second = inputs[1] if len(inputs) == 2 and isinstance(step, Add | Scale | Conv | ListedConv) else -1
        common = {
            "kind": number("OpKind", _kind(step)),
            "in": inputs[0] if inputs else -1,
            "in2": second,
            "out": numbers.get(step.output, -1),
            "function": number("Function", function.name),
            "layer": layer,
            "knob": knob,
        }
        written = [*row("OpField", common), *_fields(step, network, weights, args, inputs)]
        ops[place, : len(written)] = written
        scalars[place] = row("Scalar", _scalars(step, function))
    return Program(
        format=program_format(),
        tensors=np.array(rows, np.int64),
        ops=ops,
        scalars=scalars,
        args=np.array(args, np.int64),
        weights=np.concatenate(weights.parts) if weights.parts else np.zeros(0, np.float32),
        layers=tuple(layers),
        gated=tuple(gated),
        op_names=tuple(step.name for step in network.steps),
        op_kinds=tuple(type(step).__name__ for step in network.steps),
        result_shape=network.result_shape,
    )


def _kind(step: Step) -> str:
    if isinstance(step, Conv) and step.gates is not None and step.gates.threshold is not None:
        return "threshold_conv"
    return "depthwise" if isinstance(step, Conv) and step.keeps_list else _KINDS[type(step)]


def _rho(gates: Gates) -> Floats:
    """ρ, and the threshold after it if there is one."""
    return gates.rho if gates.threshold is None else np.append(gates.rho, np.float32(gates.threshold))


def _quantised(codes: Codes | None) -> dict[str, int]:
    """What codes stand for: the zero point and the bits of the scale."""
    if codes is None:
        return {"zero": 0, "scale_bits": 0}
    return {"zero": codes.zero, "scale_bits": int(np.float32(codes.scale).view(np.uint32))}


def _scalars(step: Step, function: Function) -> dict[str, float]:
    if isinstance(step, ChannelNorm):
        return {"slope": 0.0, "second": step.eps}
    return {"slope": function.slope, "second": step.after.slope if isinstance(step, Conv) else 0.0}


def _fields(step: Step, network: Network, weights: _Weights, args: list[int], inputs: list[int]) -> list[int]:
    """The numbers that belong to the step's kind."""
    if isinstance(step, Conv):
        gates, quantised = step.gates, step.quantised
        format_ = "filters" if quantised is None else "code_filters"
        fields = {
            **_window(step),
            "groups": step.groups,
            "weight_format": number("WeightFormat", format_),
            "weights": weights.add(step.weights) if quantised is None else weights.add_bytes(quantised.codes),
            "bias": -1 if step.bias is None else weights.add(step.bias),
            "phi": -1 if gates is None else weights.add(gates.phi),
            "rho": -1 if gates is None else weights.add(_rho(gates)),
            "summary": 0 if gates is None else number("Summary", gates.summary),
            "after": number("Function", step.after.name),
            "algorithm": 0,  # chosen from the shape
            "levels": -1 if gates is None or gates.levels is None else _levels(gates.levels, weights, args),
            "weight_scales": -1 if quantised is None else weights.add(quantised.scales),
        }
        return row("ConvField", fields)
    if isinstance(step, ListedConv):
        parts = {"weights": step.weights, "bias": step.bias, "shift": step.shift}
        lists = {"first_pixel": -1, "pixels": 0, "nearest": -1}
        if step.pixels:
            lists = {"first_pixel": _add_arguments(args, step.pixels), "pixels": len(step.pixels)}
            lists["nearest"] = _add_arguments(args, step.nearest)
        return row("ListedField", {**_window(step), **_offsets(parts, weights), **lists})
    if isinstance(step, Pool):
        kind = {"pool": number("Pool", step.kind), "divisor": step.divisor}
        return row("PoolField", {**kind, **_window(step), "count_padding": int(step.count_padding)})
    if isinstance(step, AdaptivePool):
        return row("AdaptivePoolField", {"pool": number("Pool", step.kind)})
    if isinstance(step, Concat):
        first = _add_arguments(args, inputs)
        return row("ConcatField", {"first_argument": first, "arguments": len(inputs)})
    if isinstance(step, Affine):
        several = inputs if len(inputs) > 1 else []
        maps = {"first_argument": _add_arguments(args, several), "arguments": len(several)}
        return row("AffineField", {**_offsets({"scale": step.scale, "shift": step.shift}, weights), **maps})
    if isinstance(step, Linear):
        # A vector is combined row by row, so its weights lie (in, out); planes are multiplied as (out, in).
        packed = not network.values[step.inputs[0]].is_map
        matrix = weights.add(step.weights.T if packed else step.weights)
        return row("LinearField", {"weights": matrix, "bias": weights.add(step.bias)})
    if isinstance(step, ChannelNorm):
        return row("ChannelNormField", {"scale": weights.add(step.scale), "shift": weights.add(step.shift)})
    return []


def _offsets(parts: Mapping[str, Floats | None], weights: _Weights) -> dict[str, int]:
    """Where each of the parts lies among the weights; -1 if it is not there."""
    return {name: -1 if part is None else weights.add(part) for name, part in parts.items()}


def _window(step: Conv | ListedConv | Pool) -> dict[str, int]:
    """How a window or kernel moves over the planes."""
    kernel = step.kernel if isinstance(step, Pool) else step.weights.shape[2:]
    pairs = {"kernel": kernel, "stride": step.stride, "pad": step.padding, "dilation": step.dilation}
    return {
        f"{name}_{axis}": size for name, pair in pairs.items() for axis, size in zip("hw", pair, strict=True)
    }


def _levels(levels: Levels, weights: _Weights, args: list[int]) -> int:
    """Where the arguments of a gated convolution's levels begin."""
    tables = [len(levels.bias), weights.add(levels.bias), weights.add(levels.gain)]
    return _add_arguments(args, [*tables, *levels.edges])


def _add_arguments(args: list[int], new: list[int]) -> int:
    args += new
    return len(args) - len(new)
