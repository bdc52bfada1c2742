"""Which maps have their channels in the lanes: `[pixel][channel]` instead of planes (kernels/run/pixels.h).

Enters: the fused steps of a float32 network, every map in planes. Leaves: the same steps, each map in the
layout that makes the network cheapest, with a Pack wherever a step reads a map that lies otherwise.

Each step works in one of the two layouts. A convolution costs its products divided by the rate that its kind
reaches there; a residual sum costs more in pixels; a map whose maker and reader differ costs a conversion.
The cheapest choice for all steps together is a minimum cut between "planes" and "pixels".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from penstock.engine.cut import Graph
from penstock.engine.fuse import fold_sum, foldable_sums
from penstock.engine.steps import (
    AdaptivePool,
    Add,
    Affine,
    Concat,
    Conv,
    Layout,
    Network,
    Pack,
    Pool,
    Scale,
    Spread,
    Step,
)
from penstock.native import chosen_isa, native

_NEVER = 1e18
_IMAGE_CHANNELS, _WIDE_KERNEL = 4, 7
_LARGE, _SMALL = 400, 64  # pixels
_VECTOR = 16  # outputs of a group from which on a register tile is full

Layouts = Literal["cheapest", "planes", "pixels"]


def choose_layouts(network: Network, layouts: Layouts = "cheapest") -> None:
    """Set the layout of every map, in place, and convert where layouts meet.

    layouts: "cheapest", or the one layout for every step that has both.
    """
    if layouts == "planes":
        return
    able = [step for step in network.steps if _may_use_pixels(network, step)]
    in_pixels = able if layouts == "pixels" else _cheapest(network)
    for step in in_pixels:
        if step.output >= 0 and network.values[step.output].is_map:
            network.values[step.output].layout = Layout.PIXELS
    steps: list[Step] = []
    twins: dict[int, int] = {}
    chosen = {id(step) for step in in_pixels}
    for step in network.steps:
        for place, source in enumerate(step.inputs):
            value = network.values[source]
            in_pixels_here = id(step) in chosen and not _reads_planes(network, step)
            wanted = Layout.PIXELS if in_pixels_here else Layout.PLANES
            if not value.is_map or value.layout is wanted:
                continue
            if source not in twins:
                twins[source] = network.new_value(value.channels, value.height, value.width, value.name)
                twin = network.values[twins[source]]
                twin.layout, twin.filled = wanted, value.filled
                steps.append(Pack(f"{step.name} (to {wanted.value})", [source], twins[source]))
            step.inputs[place] = twins[source]
        steps.append(step)
    network.steps = steps
    for sum_ in foldable_sums(network):
        value = network.values[sum_.output]
        if value.in_pixels and value.area > _LARGE:
            fold_sum(network, sum_)


def is_depthwise(step: Conv, channels: int) -> bool:
    """Whether each output reads the input of its own number alone."""
    return step.groups > 1 and step.groups == channels == len(step.weights)


def _reads_planes(network: Network, step: Step) -> bool:
    """An image comes in planes; its convolution can read those and write pixels."""
    return isinstance(step, Conv) and network.values[step.inputs[0]].channels <= _IMAGE_CHANNELS


def _may_use_pixels(network: Network, step: Step) -> bool:
    maps = [value for value in (*step.inputs, step.output) if value >= 0 and network.values[value].is_map]
    if not maps or any(network.values[value].area == 1 for value in maps):
        return False
    if isinstance(step, AdaptivePool):
        return not network.values[step.output].is_map
    return isinstance(step, Conv | Pool | Add | Concat | Affine | Scale | Spread)


def _costs(network: Network, step: Step, tuning: Mapping[str, float]) -> tuple[float, float]:
    """Of a step in planes and in pixels, in products at the processor's peak."""
    if not _may_use_pixels(network, step):
        return 0.0, _NEVER
    if isinstance(step, Add):
        result = network.values[step.output]
        return 0.0, tuning["pixels_sum"] * result.channels * result.area
    if not isinstance(step, Conv):
        return 0.0, 0.0
    source, result = network.values[step.inputs[0]], network.values[step.output]
    products = 2.0 * step.weights.size * result.area
    planes, pixels = _rates(step, source.channels, result.area, tuning)
    return products / planes, products / pixels


def _rates(step: Conv, channels: int, area: int, tuning: Mapping[str, float]) -> tuple[float, float]:
    """The share of the peak that a convolution reaches in planes and in pixels (machine/tuning.def)."""
    height, width = step.weights.shape[2:]
    if is_depthwise(step, channels):
        return tuning["planes_depthwise"], tuning["pixels_depthwise"]
    if step.groups > 1:
        filled = min(1.0, len(step.weights) / step.groups / _VECTOR)
        return tuning["planes_groups"], tuning["pixels_groups"] * filled
    if channels <= _IMAGE_CHANNELS:
        kind = "image_wide" if height >= _WIDE_KERNEL else "image"
        return tuning[f"planes_{kind}"], tuning[f"pixels_{kind}"]
    kind = "one_tap" if height * width == 1 else "taps"
    if (height, width) == (3, 3) and step.stride == (1, 1) and step.dilation == (1, 1):
        kind = "winograd"
    size = "large" if area > _LARGE else "medium" if area > _SMALL else "small"
    return tuning[f"planes_{kind}_{size}"], tuning[f"pixels_{size}"]


def _cheapest(network: Network) -> list[Step]:
    """The steps that work in pixels when all costs together are least."""
    tuning = native().tuning(chosen_isa())
    count = len(network.steps)
    planes, pixels = count, count + 1
    graph = Graph(count + 2)
    makers: dict[int, int] = {}
    for number, step in enumerate(network.steps):
        in_planes, in_pixels = _costs(network, step, tuning)
        graph.add(planes, number, in_pixels)
        graph.add(number, pixels, in_planes)
        for value in [] if _reads_planes(network, step) else step.inputs:
            of = network.values[value]
            if of.is_map:
                cost = tuning["layout_change"] * of.channels * of.area
                graph.add(makers[value], number, cost)
                graph.add(number, makers[value], cost)
        makers[step.output] = number
    kept = graph.cut(planes, pixels)
    return [step for number, step in enumerate(network.steps) if number not in kept]
