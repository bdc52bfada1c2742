"""Which maps have their channels in the lanes: `[pixel][channel]` instead of planes (kernels/run/pixels.h).

Enters: the fused steps of a float32 network, every map in planes. Leaves: the same steps, each map in the
layout that makes the network cheapest, with a Pack wherever a step reads a map that lies otherwise.

Each step works in one of the two layouts. A convolution costs its products divided by the rate that its kind
reaches there; a map whose maker and reader differ costs a conversion. The cheapest choice for all steps
together is a minimum cut between "planes" and "pixels".
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Literal

from penstock.engine.steps import (
    AdaptivePool,
    Add,
    Affine,
    Concat,
    Conv,
    Network,
    Pack,
    Pool,
    Scale,
    Step,
)

_CONVERSION = 60.0  # of one value, in the time of so many products and sums at the processor's peak
_NEVER = 1e18

Layouts = Literal["cheapest", "planes", "pixels"]


def choose_layouts(network: Network, layouts: Layouts = "cheapest") -> None:
    """Set `pixels` of every map, in place, and convert where layouts meet.

    layouts: "cheapest", or the one layout for every step that has both.
    """
    if layouts == "planes":
        return
    able = [step for step in network.steps if _may_use_pixels(network, step)]
    in_pixels = able if layouts == "pixels" else _cheapest(network)
    for step in in_pixels:
        if step.output >= 0 and network.values[step.output].planes:
            network.values[step.output].pixels = True
    steps: list[Step] = []
    twins: dict[int, int] = {}
    chosen = {id(step) for step in in_pixels}
    for step in network.steps:
        for place, source in enumerate(step.inputs):
            value = network.values[source]
            wanted = id(step) in chosen and not _reads_planes(network, step)
            if not value.planes or value.pixels == wanted:
                continue
            if source not in twins:
                twins[source] = network.new_value(value.channels, value.height, value.width, value.name)
                network.values[twins[source]].pixels = wanted
                kind = "pixels" if wanted else "planes"
                steps.append(Pack(f"{step.name} (to {kind})", [source], twins[source]))
            step.inputs[place] = twins[source]
        steps.append(step)
    network.steps = steps


def is_depthwise(step: Conv, channels: int) -> bool:
    """Whether each output reads the input of its own number alone."""
    return step.groups > 1 and step.groups == channels == len(step.weights)


def _reads_planes(network: Network, step: Step) -> bool:
    """An image comes in planes; its convolution can read those and write pixels."""
    return isinstance(step, Conv) and network.values[step.inputs[0]].channels <= _IMAGE_CHANNELS


_IMAGE_CHANNELS = 4


def _may_use_pixels(network: Network, step: Step) -> bool:
    maps = [value for value in (*step.inputs, step.output) if value >= 0 and network.values[value].planes]
    if not maps or any(network.values[value].area == 1 for value in maps):
        return False
    if isinstance(step, AdaptivePool):
        return not network.values[step.output].planes
    return isinstance(step, Conv | Pool | Add | Concat | Affine | Scale)


def _costs(network: Network, step: Step) -> tuple[float, float]:
    """Of a step in planes and in pixels, in products at the processor's peak."""
    if not _may_use_pixels(network, step):
        return 0.0, _NEVER
    if not isinstance(step, Conv):
        return 0.0, 0.0
    source, result = network.values[step.inputs[0]], network.values[step.output]
    products = 2.0 * step.weights.size * result.area
    planes, pixels = _rates(step, source.channels, result.area)
    return products / planes, products / pixels


def _rates(step: Conv, channels: int, area: int) -> tuple[float, float]:
    """The share of the peak that a convolution reaches in planes and in pixels (kernels/LAB.md)."""
    height, width = step.weights.shape[2:]
    narrow = min(1.0, len(step.weights) / step.groups / 16)
    if is_depthwise(step, channels):
        return 0.12, 0.3
    if step.groups > 1:
        return 0.3, 0.75 * narrow
    if channels <= _IMAGE_CHANNELS:
        return (0.9, 0.6) if height >= 7 else (0.4, 0.6)
    strided = step.stride != (1, 1)
    if (height, width) == (3, 3) and not strided and step.dilation == (1, 1):
        return (1.8 if area > 400 else 1.1 if area > 64 else 0.6), 0.85
    return (0.7 if height * width > 1 else 0.45), 0.85


def _cheapest(network: Network) -> list[Step]:
    """The steps that work in pixels when all costs together are least."""
    count = len(network.steps)
    planes, pixels = count, count + 1
    graph = _Graph(count + 2)
    makers: dict[int, int] = {}
    for number, step in enumerate(network.steps):
        in_planes, in_pixels = _costs(network, step)
        graph.add(planes, number, in_pixels)
        graph.add(number, pixels, in_planes)
        for value in [] if _reads_planes(network, step) else step.inputs:
            of = network.values[value]
            if of.planes:
                cost = _CONVERSION * of.channels * of.area
                graph.add(makers[value], number, cost)
                graph.add(number, makers[value], cost)
        makers[step.output] = number
    kept = graph.cut(planes, pixels)
    return [step for number, step in enumerate(network.steps) if number not in kept]


class _Graph:
    """Capacities between nodes; `cut` finds the side of the source in a minimum cut (Edmonds and Karp)."""

    def __init__(self, nodes: int) -> None:
        self.left: list[dict[int, float]] = [{} for _ in range(nodes)]

    def add(self, a: int, b: int, capacity: float) -> None:
        self.left[a][b] = self.left[a].get(b, 0.0) + capacity
        self.left[b].setdefault(a, 0.0)

    def cut(self, source: int, sink: int) -> set[int]:
        while True:
            before = self._search(source)
            if sink not in before:
                return set(before)
            path = [sink]
            while path[-1] != source:
                path.append(before[path[-1]])
            path.reverse()
            flow = min(self.left[a][b] for a, b in pairwise(path))
            for a, b in pairwise(path):
                self.left[a][b] -= flow
                self.left[b][a] += flow

    def _search(self, source: int) -> dict[int, int]:
        """Nodes that flow can reach, each with the one it comes from."""
        before = {source: source}
        open_ = deque([source])
        while open_:
            node = open_.popleft()
            for other, capacity in self.left[node].items():
                if capacity > 1e-6 and other not in before:
                    before[other] = node
                    open_.append(other)
        return before
