"""Lists through depthwise convolutions: which steps keep them, and where every channel must be stored again.

A channel that a gate skipped enters a depthwise convolution as zeros and leaves it as function(bias), one
constant over its whole map, borders included. So the convolution may keep its input's list, and later steps
know the rest as constants: a 1×1 convolution adds their part to its bias, its gate adds their summaries.
Steps that cannot read constants (a convolution with padding sees zeros around them) get a `Spread` before.

`penstock.surgery.flow` says the same of a traced network, and the accounting counts by it.
"""

from __future__ import annotations

import enum

import numpy as np

from penstock.engine.steps import (
    AdaptivePool,
    Add,
    Affine,
    Concat,
    Conv,
    Linear,
    Network,
    Pack,
    Pool,
    Scale,
    Spread,
    Step,
)


class Rest(enum.Enum):
    """What a value holds in the channels that are not stored."""

    NOTHING = "every channel is stored"
    ZEROS = "zeros"
    CONSTANTS = "one number a channel"


def carry_lists(network: Network) -> None:
    """Let depthwise convolutions keep their input's list, in place."""
    rests: dict[int, Rest] = {}
    spread: dict[int, int] = {}  # values of which every channel is stored besides
    steps: list[Step] = []
    for step in network.steps:
        if isinstance(step, Conv) and is_depthwise(step) and rests[step.inputs[0]] is Rest.ZEROS:
            step.keeps_list = True
        for place, source in enumerate(step.inputs):
            if rests[source] is not Rest.CONSTANTS or _reads_constants(network, step, place):
                continue
            if source not in spread:
                of = network.values[source]
                spread[source] = twin = network.new_value(of.channels, of.height, of.width, of.name)
                network.values[twin].layout = of.layout
                rests[twin] = Rest.NOTHING
                steps.append(Spread(f"{step.name} (every channel)", [source], twin))
            step.inputs[place] = spread[source]
        if isinstance(step, Conv) and (step.keeps_list or rests[step.inputs[0]] is Rest.CONSTANTS):
            step.bias = np.zeros(len(step.weights), np.float32) if step.bias is None else step.bias
        rests[step.output] = _rest(step, [rests[source] for source in step.inputs])
        if step.output >= 0:
            network.values[step.output].filled = rests[step.output] is Rest.CONSTANTS
        steps.append(step)
    network.steps = steps


def carry_code_lists(network: Network) -> None:
    """The same of an int8 network, in place, where nothing but what reads constants of codes follows.

    Constants are codes too, and a 1×1 convolution adds whole numbers for them, so results stay the same to
    the bit: docs/int8.md.
    """
    readers = network.readers()
    rests: dict[int, Rest] = {}
    for step in network.steps:
        if isinstance(step, Conv) and step.quantised is not None and is_depthwise(step):
            before = rests[step.inputs[0]]
            if before is Rest.ZEROS and _reads_code_constants(network, readers, step.output):
                step.keeps_list = True
                step.bias = np.zeros(len(step.weights), np.float32) if step.bias is None else step.bias
        rest = _rest(step, [rests[source] for source in step.inputs])
        if isinstance(step, AdaptivePool) and rest is Rest.CONSTANTS:
            rest = Rest.NOTHING
        rests[step.output] = rest
        if step.output >= 0:
            network.values[step.output].filled = rest is Rest.CONSTANTS


def _reads_code_constants(network: Network, readers: dict[int, list[Step]], value: int) -> bool:
    """Whether everybody who reads a value can do with constants of codes (kernels/run/program.cpp)."""
    for step in readers.get(value, []):
        if isinstance(step, Conv):
            fits = step.quantised is not None and _reads_constants(network, step, step.inputs.index(value))
        elif isinstance(step, AdaptivePool):
            fits = not network.values[step.output].is_map and step.kind == "average"
        else:
            fits = isinstance(step, Scale) and step.inputs.index(value) == 0
            fits = fits and _reads_code_constants(network, readers, step.output)
        if not fits:
            return False
    return value in readers


def is_depthwise(step: Conv) -> bool:
    """Whether each output reads one input, its own, and no gate chooses among them."""
    outputs, per_group = step.weights.shape[:2]
    return step.gates is None and len(step.inputs) == 1 and per_group == 1 and 1 < step.groups == outputs


def _reads_constants(network: Network, step: Step, place: int) -> bool:
    """Whether a step can do with the constants of its input number `place` (kernels/run/program.cpp)."""
    if isinstance(step, Conv):
        plain = step.weights.shape[2:] == (1, 1) and step.padding == (0, 0) and step.groups == 1
        return plain and place == 0
    if isinstance(step, Pool):
        padded = step.padding != (0, 0) and step.count_padding
        return step.kind == "max" or not (padded or step.divisor)
    if isinstance(step, Linear):
        return not network.values[step.inputs[0]].is_map
    return isinstance(step, AdaptivePool | Affine | Add | Scale | Pack)


def _rest(step: Step, inputs: list[Rest]) -> Rest:
    """What a step's result holds in the channels that it does not store."""
    if isinstance(step, Conv):
        if step.keeps_list:
            return Rest.CONSTANTS
        return Rest.NOTHING if step.gates is None or len(inputs) > 1 else Rest.ZEROS
    if isinstance(step, Pool | AdaptivePool | Pack):
        return inputs[0]
    if isinstance(step, Affine):
        return inputs[0] if step.keeps_zero or inputs[0] is Rest.CONSTANTS else Rest.NOTHING
    if isinstance(step, Scale) and inputs[0] is Rest.CONSTANTS:
        return Rest.CONSTANTS
    if isinstance(step, Scale | Concat):
        return Rest.ZEROS if Rest.ZEROS in inputs else Rest.NOTHING
    if isinstance(step, Add) and Rest.NOTHING not in inputs:
        return Rest.CONSTANTS if Rest.CONSTANTS in inputs else Rest.ZEROS
    return Rest.NOTHING
