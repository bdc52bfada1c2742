"""Steps as numbers: the program that crosses the border to C++ (kernels/program.h has the fields).

Nothing but arrays of integers and floats leaves here, and the other side checks every one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.engine.layout import Placement
from penstock.engine.steps import (
    FUNCTIONS,
    SUMMARY_NUMBERS,
    AdaptivePool,
    Add,
    Affine,
    ChannelNorm,
    Concat,
    Conv,
    Export,
    Floats,
    Function,
    Import,
    Levels,
    Linear,
    Network,
    Pack,
    Pool,
    Scale,
    Step,
)

FORMAT = 2
OP_FIELDS = 24
_COMMON = 7
_KINDS: dict[type[Step], int] = {
    Import: 0,
    Export: 1,
    Conv: 2,
    Pool: 3,
    AdaptivePool: 4,
    Add: 5,
    Concat: 6,
    Affine: 7,
    Scale: 8,
    Linear: 9,
    Pack: 10,
    ChannelNorm: 11,
}
_POOLS = {"max": 0, "average": 1}
_ALIGN = 16  # weights of each layer start on a cache line

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Program:
    """Everything the native runtime needs. Names are for people; they do not cross the border."""

    tensors: Integers  # (tensor, field)
    ops: Integers  # (operation, field)
    scalars: Floats  # (operation, 2)
    args: Integers
    weights: Floats
    layers: tuple[str, ...]
    gated: tuple[str, ...]
    op_names: tuple[str, ...]
    op_kinds: tuple[str, ...]
    op_layers: tuple[int, ...]
    result_shape: tuple[int, ...]


class _Weights:
    def __init__(self) -> None:
        self.parts: list[Floats] = []
        self.size = 0

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
            halo = value.halo if value.planes else 0
            kind = 0 if value.planes else 1
            rows.append(
                [kind, value.channels, value.height, value.width, halo, placement.offsets[step.output]]
            )
    weights, args = _Weights(), list[int]()
    layers, gated = list[str](), list[str]()
    ops = np.zeros((len(network.steps), OP_FIELDS), np.int64)
    scalars = np.zeros((len(network.steps), 2), np.float32)
    op_layers = []
    for number, step in enumerate(network.steps):
        inputs = [numbers[value] for value in step.inputs]
        function: Function = getattr(step, "function", Function())
        layer = knob = -1
        if isinstance(step, Conv | Linear) and step.layer is not None:
            layer = len(layers)
            layers.append(step.layer)
        if isinstance(step, Conv) and step.gates is not None:
            knob = len(gated)
            gated.append(step.name)
        second = inputs[1] if len(inputs) == 2 and isinstance(step, Add | Scale | Conv) else -1
        common = [
            _KINDS[type(step)],
            inputs[0] if inputs else -1,
            second,
            numbers.get(step.output, -1),
            FUNCTIONS[function.name],
            layer,
            knob,
        ]
        fields = _fields(step, network, weights, args, inputs)
        ops[number, : _COMMON + len(fields)] = [*common, *fields]
        scalars[number] = _scalars(step, function)
        op_layers.append(layer)
    return Program(
        tensors=np.array(rows, np.int64),
        ops=ops,
        scalars=scalars,
        args=np.array(args, np.int64),
        weights=np.concatenate(weights.parts) if weights.parts else np.zeros(0, np.float32),
        layers=tuple(layers),
        gated=tuple(gated),
        op_names=tuple(step.name for step in network.steps),
        op_kinds=tuple(type(step).__name__ for step in network.steps),
        op_layers=tuple(op_layers),
        result_shape=network.result_shape,
    )


def _scalars(step: Step, function: Function) -> tuple[float, float]:
    if isinstance(step, ChannelNorm):
        return 0.0, step.eps
    return function.slope, step.after.slope if isinstance(step, Conv) else 0.0


def _fields(step: Step, network: Network, weights: _Weights, args: list[int], inputs: list[int]) -> list[int]:
    if isinstance(step, Conv):
        gates = step.gates
        return [
            *step.weights.shape[2:],
            *step.stride,
            *step.padding,
            *step.dilation,
            step.groups,
            weights.add(step.weights),
            -1 if step.bias is None else weights.add(step.bias),
            -1 if gates is None else weights.add(gates.phi),
            -1 if gates is None else weights.add(gates.rho),
            0 if gates is None else SUMMARY_NUMBERS[gates.summary],
            FUNCTIONS[step.after.name],
            0,  # the algorithm: chosen from the shape
            -1 if gates is None or gates.levels is None else _levels(gates.levels, weights, args),
        ]
    if isinstance(step, Pool):
        window = [*step.kernel, *step.stride, *step.padding, *step.dilation]
        return [_POOLS[step.kind], *window, step.divisor, int(step.count_padding)]
    if isinstance(step, AdaptivePool):
        return [_POOLS[step.kind]]
    if isinstance(step, Concat):
        return [_add_arguments(args, inputs), len(inputs)]
    if isinstance(step, Affine):
        return [-1 if part is None else weights.add(part) for part in (step.scale, step.shift)]
    if isinstance(step, Linear):
        # A vector is combined row by row, so its weights lie (in, out); planes are multiplied as (out, in).
        packed = not network.values[step.inputs[0]].planes
        return [weights.add(step.weights.T if packed else step.weights), weights.add(step.bias)]
    if isinstance(step, ChannelNorm):
        return [weights.add(step.scale), weights.add(step.shift)]
    return []


def _levels(levels: Levels, weights: _Weights, args: list[int]) -> int:
    """Where the arguments of a gated convolution's levels begin."""
    tables = [len(levels.bias), weights.add(levels.bias), weights.add(levels.gain)]
    return _add_arguments(args, [*tables, *levels.edges])


def _add_arguments(args: list[int], new: list[int]) -> int:
    args += new
    return len(args) - len(new)
