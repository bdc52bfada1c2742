"""Channel flow: a traced network in, which channels of every value can be nonzero out.

A gated layer zeroes the channels that lost; activations with f(0) = 0, pooling, dropout and reshaping leave
those zeros where they are; a residual sum is zero only where both summands are; a product where either is.
Everything else (a batch norm of its own, a sigmoid, an ungated convolution) may make any channel nonzero.

    traced = trace(network, example)
    flow = channel_flow(traced)             # {node name: Channels}
    for layer in weight_layers(traced):     # every conv and linear, in the order they run
        mask = active_mask(layer.input, masks, batch)   # which inputs it may skip, image by image
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from penstock.surgery.channels import Channels, Dense, Gate, Silent, concat, meet, spread, union
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


@dataclass(frozen=True)
class WeightLayer:
    """One run of a convolution or linear layer.

    `module` is what stands in the network (a GatedConv2d if gated); `weights` is the convolution or linear
    layer that holds the weights (the conv inside the gate, or `module` itself). `input` and `output` say
    which channels can be nonzero; a gated layer's output is ``Gate(name, C)``. `product` is what it
    multiplies for one image. Shapes have the batch of the traced example.
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


def channel_flow(traced: fx.GraphModule) -> dict[str, Channels]:
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
        layers.append(
            WeightLayer(
                node=node,
                name=str(node.target),
                module=use.module,
                weights=weights,
                gated=gated,
                input=entering,
                output=flow[node.name] if gated else Dense(product.outputs),
                input_shape=input_shape,
                output_shape=output_shape,
                product=product,
            )
        )
    return layers


def _analyse(traced: fx.GraphModule) -> tuple[dict[str, Channels], dict[str, Channels | None]]:
    """The flow by node name, and what each node found in its first tensor input when it ran."""
    produced: dict[str, Channels] = {}
    inputs: dict[str, Channels | None] = {}
    current: dict[fx.Node, Channels] = {}  # what a value holds now, after steps that overwrote it
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
                current[sources[0]] = union(before, channels)
    return produced, inputs


def _result(node: fx.Node, shape: tuple[int, ...], current: dict[fx.Node, Channels]) -> Channels | None:
    kind = kind_of(node)
    if kind is Kind.GATED:
        return Gate(str(node.target), shape[1])
    way = way_of(node)
    if isinstance(way, Met):
        return _sum(way, current) if kind is Kind.ADD else _product(way, current)
    if isinstance(way, Joined):
        found = [current.get(part) for part in way.parts]
        known = [part for part in found if part is not None]
        return concat(known) if len(known) == len(found) else None
    source = None if way is None else current.get(way.source)
    if source is None or way is None or isinstance(way, Same):
        return source
    if isinstance(way, Repeated):
        return spread(source, way.factor)
    assert isinstance(way, Padded)
    before, after = Silent(way.before), Silent(way.after)
    return concat(part for part in (before, source, after) if part.count)


def _sum(way: Met, current: dict[fx.Node, Channels]) -> Channels | None:
    summands = [current.get(operand) for operand in way.whole]
    if way.spread or not summands or (way.numbers and way.numbers != (0,)):
        return None  # a constant makes every channel nonzero
    known = [summand for summand in summands if summand is not None]
    return union(*known) if len(known) == len(summands) else None


def _product(way: Met, current: dict[fx.Node, Channels]) -> Channels | None:
    known = [factor for operand in way.whole if (factor := current.get(operand)) is not None]
    return meet(*known) if known else None
