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
from math import prod
from typing import Any

from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from penstock.gating import GatedConv2d
from penstock.surgery.channels import Channels, Dense, Gate, Silent, concat, meet, spread, union
from penstock.surgery.ops import Kind, argument, is_inplace, kind_of, module_of
from penstock.surgery.trace import shape_of


@dataclass(frozen=True)
class WeightLayer:
    """One run of a convolution or linear layer.

    `module` is what stands in the network (a GatedConv2d if gated); `weights` is the convolution or linear
    layer that holds the weights (the conv inside the gate, or `module` itself). `input` and `output` say
    which channels can be nonzero; a gated layer's output is ``Gate(name, C)``. Shapes have the batch of the
    traced example.
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
        module = module_of(node)
        weights = module.conv if isinstance(module, GatedConv2d) else module
        if not isinstance(weights, _ConvNd | nn.Linear):
            continue
        assert module is not None
        source = _tensor_inputs(node)[0]
        input_shape, output_shape = shape_of(source), shape_of(node)
        assert input_shape is not None
        assert output_shape is not None
        count = weights.in_features if isinstance(weights, nn.Linear) else weights.in_channels
        entering = inputs[node.name]
        if entering is None or entering.count != count:
            entering = Dense(count)  # a linear layer over the last of many axes
        leaving = weights.out_features if isinstance(weights, nn.Linear) else weights.out_channels
        layers.append(
            WeightLayer(
                node=node,
                name=str(node.target),
                module=module,
                weights=weights,
                gated=isinstance(module, GatedConv2d),
                input=entering,
                output=flow[node.name] if isinstance(module, GatedConv2d) else Dense(leaving),
                input_shape=input_shape,
                output_shape=output_shape,
            )
        )
    return layers


def _analyse(traced: fx.GraphModule) -> tuple[dict[str, Channels], dict[str, Channels | None]]:
    """The flow by node name, and what each node found in its first tensor input when it ran."""
    produced: dict[str, Channels] = {}
    inputs: dict[str, Channels | None] = {}
    current: dict[fx.Node, Channels] = {}  # what a value holds now, after steps that overwrote it
    for node in traced.graph.nodes:
        sources = _tensor_inputs(node)
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


def _tensor_inputs(node: fx.Node) -> list[fx.Node]:
    return [source for source in node.all_input_nodes if shape_of(source) is not None]


def _result(node: fx.Node, shape: tuple[int, ...], current: dict[fx.Node, Channels]) -> Channels | None:
    kind = kind_of(node)
    if kind is Kind.GATED:
        return Gate(str(node.target), shape[1])
    if kind is Kind.ADD:
        return _sum(node, shape, current)
    if kind is Kind.MULTIPLY:
        return _product(node, shape, current)
    if kind is Kind.CONCAT:
        return _concatenation(node, shape, current)
    sources = _tensor_inputs(node)
    source = current.get(sources[0]) if sources else None
    before = shape_of(sources[0]) if sources else None
    if source is None or before is None:
        return None
    if kind in (Kind.ACTIVATION, Kind.PASS):
        return source
    if kind is Kind.MOVE:
        return _moved(source, before, shape)
    if kind is Kind.REDUCE:
        return source if spares_channels(node, len(before)) else None
    if kind is Kind.SELECT:
        return source if takes_all_channels(node.args[1]) else None
    if kind is Kind.PAD:
        return _padded(node, source, len(before))
    return None


def _operands(
    node: fx.Node, shape: tuple[int, ...], current: dict[fx.Node, Channels]
) -> list[Channels | None]:
    """Each tensor operand's channels, or None if it is spread over the result's channels by broadcasting."""
    found: list[Channels | None] = []
    for argument_ in node.args[:2]:
        if not isinstance(argument_, fx.Node) or shape_of(argument_) is None:
            continue
        own = shape_of(argument_)
        assert own is not None
        aligned = len(own) == len(shape) and own[1] == shape[1]
        found.append(current.get(argument_) if aligned else None)
    return found


def _sum(node: fx.Node, shape: tuple[int, ...], current: dict[fx.Node, Channels]) -> Channels | None:
    operands = _operands(node, shape, current)
    if len(operands) != 2:  # a number was added
        return operands[0] if 0 in node.args[:2] and operands else None
    first, second = operands
    return None if first is None or second is None else union(first, second)


def _product(node: fx.Node, shape: tuple[int, ...], current: dict[fx.Node, Channels]) -> Channels | None:
    known = [operand for operand in _operands(node, shape, current) if operand is not None]
    return meet(*known) if known else None


def _concatenation(
    node: fx.Node, shape: tuple[int, ...], current: dict[fx.Node, Channels]
) -> Channels | None:
    parts = argument(node, 0, "tensors")
    axis = argument(node, 1, "dim", 0)
    if axis not in (1, 1 - len(shape)) or not isinstance(parts, list | tuple):
        return None
    found = [current.get(part) for part in parts]
    return None if any(part is None for part in found) else concat(part for part in found if part is not None)


def _moved(source: Channels, before: tuple[int, ...], after: tuple[int, ...]) -> Channels | None:
    # A reshape keeps the order of the numbers, so equal leading axes mean equal channels.
    if after[:2] == before[:2]:
        return source
    if len(after) == 2 and after[0] == before[0] and after[1] == prod(before[1:]):
        return spread(source, prod(before[2:]))
    return None


def spares_channels(node: fx.Node, ndim: int) -> bool:
    """Whether a reduction is over axes of the maps only."""
    axes = argument(node, 1, "dim")
    axes = (axes,) if isinstance(axes, int) else axes
    if not isinstance(axes, list | tuple) or not axes:
        return False
    return all(isinstance(axis, int) and axis % ndim >= 2 for axis in axes)


def takes_all_channels(index: Any) -> bool:
    """Whether an index such as ``[:, :, ::2, ::2]`` leaves samples and channels alone."""
    whole = slice(None, None, None)
    return (
        isinstance(index, tuple)
        and len(index) >= 2
        and index[0] == whole
        and index[1] == whole
        and all(isinstance(part, slice) for part in index)
    )


def _padded(node: fx.Node, source: Channels, ndim: int) -> Channels | None:
    added = pads_channels(node, ndim)
    if added is None:
        return None
    before, after = (Silent(width) for width in added)
    return concat(part for part in (before, source, after) if part.count)


def pads_channels(node: fx.Node, ndim: int) -> tuple[int, int] | None:
    """How many zero channels F.pad puts before and after, or None if it does anything but pad with zeros."""
    widths = argument(node, 1, "pad")
    mode, value = argument(node, 2, "mode", "constant"), argument(node, 3, "value", None)
    if not isinstance(widths, list | tuple) or not all(isinstance(width, int) for width in widths):
        return None
    if mode == "constant" and value not in (None, 0):
        return None
    beyond_maps = (*widths[2 * (ndim - 2) :], 0, 0)
    if not any(beyond_maps):
        return 0, 0
    if len(beyond_maps) != 4 or mode != "constant" or min(beyond_maps) < 0:
        return None
    return beyond_maps[0], beyond_maps[1]
