"""Channel flow: a traced network in, which channels of every value can be nonzero out.

A gated layer zeroes the channels that lost; activations with f(0) = 0, pooling, dropout and reshaping leave
those zeros where they are; a residual sum is zero only where both summands are; a product where either is.
A depthwise convolution makes a constant of a zero channel, act(bias) at every pixel, and what acts on each
channel alone (norms, activations, pooling, squeeze-excite) keeps it constant; a 1×1 convolution or a linear
layer over pooled channels then reads it as one number. Everything else (a batch norm of its own, a sigmoid,
an ungated convolution) may make any channel nonzero.

    traced = trace(network, example)
    flow = channel_flow(traced)             # {node name: Channels}
    for layer in weight_layers(traced):     # every conv and linear, in the order they run
        mask = active_mask(layer.input, masks, batch)   # which inputs it may skip, image by image
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from penstock.surgery.channels import (
    Channels,
    Dense,
    Filled,
    Flow,
    Gate,
    Silent,
    concat,
    filled,
    meet,
    nonzero,
    spread,
    union,
    varying,
)
from penstock.surgery.operators import (
    Joined,
    Kind,
    Met,
    Padded,
    Product,
    Repeated,
    Same,
    is_inplace,
    kind_of,
    shape_of,
    tensor_inputs,
    use_of,
    way_of,
)
from penstock.surgery.operators.layers import CONV, is_depthwise, is_plain, reads_pixels_alone


@dataclass(frozen=True)
class WeightLayer:
    """One run of a convolution or linear layer.

    `module` is what stands in the network (a GatedConv2d if gated); `weights` is the convolution or linear
    layer that holds the weights (the conv inside the gate, or `module` itself). `input` and `output` say
    which channels can be nonzero; a gated layer's output is ``Gate(name, C)``. With `constants`, the inputs
    outside of `input` are not zero but one number each, which costs one product with every computed output.
    `product` is what it multiplies for one image. Shapes have the batch of the traced example.
    """

    node: fx.Node
    name: str
    module: nn.Module
    weights: _ConvNd | nn.Linear
    gated: bool
    input: Channels
    output: Channels
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    product: Product
    constants: bool = False


def channel_flow(traced: fx.GraphModule) -> dict[str, Flow]:
    """{node name: which of its channels (axis 1) can be nonzero}, for every value that has a channel axis.

    `traced` comes from `trace` or `add_gates`. For a value that a later step overwrites in place, the entry
    is what the node itself produced.
    """
    return _analyse(traced)[0]


def weight_layers(traced: fx.GraphModule) -> list[WeightLayer]:
    """Every convolution and linear layer in the order they run; a module that runs twice is there twice."""
    flow, inputs = _analyse(traced)
    layers = []
    for node in traced.graph.nodes:
        use = use_of(node)
        if use.module is None or use.operator.product is None:
            continue
        gated = use.kind is Kind.GATED
        weights = use.module.conv if gated else use.module
        assert isinstance(weights, _ConvNd | nn.Linear)
        input_shape, output_shape = shape_of(tensor_inputs(node)[0]), shape_of(node)
        assert input_shape is not None
        assert output_shape is not None
        product = use.operator.product(use.module, input_shape, output_shape)
        entering = inputs[node.name]
        if entering is None or entering.count != product.inputs:
            entering = Dense(product.inputs)  # a linear layer over the last of many axes
        constants = isinstance(entering, Filled) and _reads_constants(weights, input_shape)
        leaving = flow[node.name]
        layers.append(
            WeightLayer(
                node=node,
                name=str(node.target),
                module=use.module,
                weights=weights,
                gated=gated,
                input=varying(entering) if constants else nonzero(entering),
                output=varying(leaving) if gated or isinstance(leaving, Filled) else Dense(product.outputs),
                input_shape=input_shape,
                output_shape=output_shape,
                product=product,
                constants=constants,
            )
        )
    return layers


def _reads_constants(weights: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a layer can take a constant channel for one number: no output of it sees a border."""
    if isinstance(weights, nn.Linear):
        return len(shape) == 2
    return isinstance(weights, nn.Conv2d) and reads_pixels_alone(weights)


def _analyse(traced: fx.GraphModule) -> tuple[dict[str, Flow], dict[str, Flow | None]]:
    """The flow by node name, and what each node found in its first tensor input when it ran."""
    produced: dict[str, Flow] = {}
    inputs: dict[str, Flow | None] = {}
    current: dict[fx.Node, Flow] = {}  # what a value holds now, after steps that overwrote it
    for node in traced.graph.nodes:
        sources = tensor_inputs(node)
        inputs[node.name] = current.get(sources[0]) if sources else None
        shape = shape_of(node)
        if node.op == "output" or shape is None or len(shape) < 2:
            continue
        channels = _result(node, shape, current) or Dense(shape[1])
        if channels.count != shape[1]:  # an expression of the wrong width would be worse than none
            channels = Dense(shape[1])
        produced[node.name] = current[node] = channels
        if sources and is_inplace(node):
            before = current.get(sources[0])
            if before is not None and before.count == channels.count:
                both = union(varying(before), varying(channels))
                constants = isinstance(before, Filled) or isinstance(channels, Filled)
                current[sources[0]] = filled(both) if constants else both
    return produced, inputs


def _result(node: fx.Node, shape: tuple[int, ...], current: dict[fx.Node, Flow]) -> Flow | None:
    use = use_of(node)
    if use.kind is Kind.GATED:
        return Gate(str(node.target), shape[1])
    constant = _constants(node, shape, current)
    if constant is not None:
        return constant
    way = way_of(node)
    if isinstance(way, Met):
        known = _known(way.whole, current)
        return _sum(way, known) if use.kind is Kind.ADD else (meet(*known) if known else None)
    if isinstance(way, Joined):
        known = _known(way.parts, current)
        return concat(known) if len(known) == len(way.parts) else None
    source = None if way is None or way.source not in current else nonzero(current[way.source])
    if source is None or way is None or isinstance(way, Same):
        return source
    if isinstance(way, Repeated):
        return spread(source, way.factor)
    assert isinstance(way, Padded)
    before, after = Silent(way.before), Silent(way.after)
    return concat(part for part in (before, source, after) if part.count)


def _known(operands: Iterable[fx.Node], current: Mapping[fx.Node, Flow]) -> list[Channels]:
    """Which channels of the operands can be nonzero, as far as that is known."""
    return [nonzero(current[operand]) for operand in operands if operand in current]


def _sum(way: Met, known: list[Channels]) -> Channels | None:
    if way.spread or len(known) < len(way.whole) or not known or (way.numbers and way.numbers != (0,)):
        return None  # a constant makes every channel nonzero
    return union(*known)


def _constants(node: fx.Node, shape: tuple[int, ...], current: dict[fx.Node, Flow]) -> Flow | None:
    """The result as channels that vary and constants; None where that says no more than the zeros do."""
    use, sources = use_of(node), tensor_inputs(node)
    if not sources:
        return None
    source = current.get(sources[0])
    if use.operator is CONV and isinstance(use.module, nn.Conv2d):
        if source is None or isinstance(source, Filled) or not is_plain(use.module):
            return None
        return filled(source) if is_depthwise(use.module) else None
    way = way_of(node)
    if isinstance(way, Met):
        return _constant_meeting(node, way, shape, current)
    same = isinstance(way, Same) or (isinstance(way, Repeated) and way.factor == 1)
    elementwise = way is None and use.kind in (Kind.NORM, Kind.OTHER) and len(sources) == 1
    return source if isinstance(source, Filled) and use.even and (same or elementwise) else None


def _constant_meeting(
    node: fx.Node, way: Met, shape: tuple[int, ...], current: dict[fx.Node, Flow]
) -> Flow | None:
    """A sum or product: constants stay where every other operand is one number a channel, or filled too."""
    pixels = prod(shape[2:])
    maps = [
        operand
        for operand in (*way.whole, *way.spread)
        if not (_is_even(operand) and (pixels > 1 or kind_of(operand) is Kind.CONSTANT))
    ]
    flows = [current[operand] for operand in maps if operand in current]
    if len(flows) < len(maps) or not any(isinstance(flow, Filled) for flow in flows):
        return None
    if kind_of(node) is Kind.ADD:
        return filled(union(*map(varying, flows)))
    if pixels == 1:
        maps, flows = maps[:1], flows[:1]  # of two vectors the second is one number a channel to the first
    if not all(isinstance(flow, Filled) for flow in flows):
        return None
    factors = [current[operand] for operand in way.whole if operand not in maps and operand in current]
    zeros = [flow for flow in factors if not isinstance(flow, Filled)]
    return filled(meet(union(*map(varying, flows)), *zeros))


def _is_even(operand: fx.Node) -> bool:
    """Whether an operand has one number for all of a channel's map."""
    shape = shape_of(operand)
    return shape is not None and prod(shape[-2:]) == 1
