"""From a traced network to ONNX nodes: every step in order, each by the writer that knows it.

What PyTorch overwrites in place is written as a new tensor that every later reader gets. Steps that no writer
knows are collected, so that one error names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx, nn

from penstock.errors import ExportError
from penstock.exporting.onnx import constants, layers, shapes
from penstock.exporting.onnx import pointwise as points
from penstock.exporting.onnx.call import Call, Unsupported, static
from penstock.exporting.onnx.gates import Gates
from penstock.exporting.onnx.graph import GraphWriter, Value, dense_value
from penstock.exporting.onnx.inside import trace_with_sizes
from penstock.exporting.onnx.lists import listable
from penstock.gating import GatedConv2d
from penstock.surgery import Dense, Filled, channel_flow, shape_of
from penstock.surgery.operators import (
    TABLE,
    Kind,
    Operator,
    is_inplace,
    kind_of,
    module_of,
    moving,
    place_of,
    use_of,
    use_of_module,
)
from penstock.surgery.operators import layers as rows
from penstock.surgery.operators.activations import RELU

_WRITERS: dict[Operator, Callable[[Call], Value]] = {
    **dict.fromkeys(points.POINTWISE, points.pointwise),
    **dict.fromkeys(points.ARITHMETIC, points.arithmetic),
    **dict.fromkeys((moving.ZERO_PAD, moving.REFLECTION_PAD, moving.REPLICATION_PAD, moving.PAD), shapes.pad),
    **dict.fromkeys((row for row in TABLE if row.kind is Kind.MOVE), shapes.reshape),
    **dict.fromkeys((row for row in TABLE if row.kind is Kind.REDUCE), shapes.reduce),
    **dict.fromkeys((rows.ADAPTIVE_AVERAGE_POOL, rows.ADAPTIVE_MAX_POOL), layers.adaptive_pool),
    moving.CONCAT: points.concatenate,
    moving.RESIZE: shapes.resize,
    rows.MAX_POOL: layers.max_pool,
    rows.AVERAGE_POOL: layers.avg_pool,
    rows.CONV: layers.conv2d,
    rows.LINEAR: layers.linear,
    rows.LAYER_NORM: layers.layer_norm,
    rows.GROUP_NORM: layers.group_norm,
    moving.PERMUTE: shapes.permute,
    moving.TRANSPOSE: shapes.transpose,
    moving.INDEX: shapes.select,
}


@dataclass
class _Cell:
    """A piece of PyTorch memory: several nodes may name it, and a step in place changes it for all."""

    value: Value
    nodes: list[fx.Node]
    family: list[_Cell] = field(default_factory=list)  # cells that are views of the same memory


class NetworkWriter:
    """One pass over a traced network."""

    def __init__(
        self, traced: fx.GraphModule, writer: GraphWriter, gates: Gates, skipping: bool, unions: bool = True
    ) -> None:
        self.writer, self.gates, self.skipping, self.unions = writer, gates, skipping, unions
        self.flow = channel_flow(traced) if skipping else {}
        self.order = {node: place for place, node in enumerate(traced.graph.nodes)}
        self.cells: dict[fx.Node, _Cell] = {}
        self.folded: set[fx.Node] = set()  # batch norms that went into the convolution before them
        self.problems: list[str] = []

    def run(self, graph: fx.Graph, image: str) -> list[tuple[str, Value]]:
        """Write the whole network; returns its outputs with their names."""
        shape = next(shape for node in graph.nodes if (shape := shape_of(node)) is not None)
        found = self.write(graph, [dense_value(image, shape)])
        if self.problems:
            listed = "\n  ".join(self.problems)
            raise ExportError(f"these steps cannot be written in ONNX, so nothing was written:\n  {listed}")
        return found

    def write(self, graph: fx.Graph, inputs: list[Value], prefix: str = "") -> list[tuple[str, Value]]:
        """Write every step; what could not be written is in `problems` afterwards."""
        given = iter(inputs)
        for node in graph.nodes:
            if node.op == "output":
                return self._outputs(node)
            shape = shape_of(node)
            if shape is None:  # sizes and tuples of tensors are worked out where they are used
                continue
            if node.op == "placeholder":
                self._keep(node, next(given))
                continue
            try:
                with self.writer.scope(f"{prefix}.{_place(node)}" if prefix else _place(node)):
                    self._step(node, shape)
            except Unsupported as error:
                self.problems.append(f"{_describe(node)}: {error}")
                self._keep(node, dense_value(inputs[0].name, shape))
        raise AssertionError("a traced graph ends with its output")

    def _step(self, node: fx.Node, shape: tuple[int, ...]) -> None:
        sources = [source for source in node.all_input_nodes if source in self.cells]
        if self._changes_nothing(node):
            self.cells[node] = self.cells[sources[0]]
            self.cells[node].nodes.append(node)
            return
        value = self._write(node, shape, {source: self.cells[source].value for source in sources})
        if is_inplace(node):
            self._overwrite(node, self.cells[sources[0]], value)
            return
        self._keep(node, value)
        if use_of(node).operator.view and sources:
            cell, base = self.cells[node], self.cells[sources[0]]
            family = base.family or [base]
            family.append(cell)
            base.family = cell.family = family

    def _write(self, node: fx.Node, shape: tuple[int, ...], values: dict[fx.Node, Value]) -> Value:
        use = use_of(node)
        if use.kind is Kind.CONSTANT:
            owner = node.graph.owning_module
            tensor: Any = owner
            for part in str(node.target).split("."):
                tensor = getattr(tensor, part)
            return dense_value(self.writer.constant(tensor, str(node.target)), shape)
        flow = self.flow.get(node.name)
        # A step that does not carry constants on has its input laid out, and its result is whole.
        zeros = None if isinstance(flow, Filled) else flow
        target = listable(zeros, shape[1] if len(shape) > 1 else 1, self.unions)
        lists, dynamic = self.gates.lists, not self.skipping
        call = Call(node, use, values, shape, target, self.writer, lists, dynamic)
        if isinstance(use.module, GatedConv2d):
            return self._gated(call, use.module)
        if isinstance(use.module, nn.Conv2d):
            return self._convolution(call, use.module)
        if node in self.folded:
            return call.x
        if isinstance(flow, Filled) and constants.carries(call):
            return constants.carry(call, self._plain)
        whole = {n: v if v.fill is None else call.dense(v) for n, v in values.items()}
        return self._plain(replace(call, values=whole))

    def _plain(self, call: Call) -> Value:
        """A step that is no convolution."""
        node, use = call.node, call.use
        if use.kind is Kind.NORM:
            return layers.batch_norm(call)
        if use.kind is Kind.SELECT and shape_of(node.args[0]) is None:  # type: ignore[arg-type]
            return self._piece(call)
        if use.operator in _WRITERS:
            return _WRITERS[use.operator](call)
        if use.module is not None:
            return self._inside(call, use.module)
        raise Unsupported("there is no ONNX writer for it")

    def _inside(self, call: Call, module: nn.Module) -> Value:
        """A module that torch.fx kept whole: traced with the sizes it really gets, written step by step."""
        inner = trace_with_sizes(module, [value.shape for value in call.values.values()])
        if inner is None:
            raise Unsupported("there is no ONNX writer for it")
        inner_writer = NetworkWriter(inner, self.writer, self.gates, self.skipping)
        named = inner_writer.write(
            inner.graph, [call.dense(value) for value in call.values.values()], call.node.name
        )
        self.problems.extend(f"in {_describe(call.node)}: {problem}" for problem in inner_writer.problems)
        if len(named) != 1:
            raise Unsupported("it returns several tensors")
        return named[0][1]

    def _gated(self, call: Call, layer: GatedConv2d) -> Value:
        followers = {use_of(user).operator for user in call.node.users}
        own = use_of_module(layer.activation)
        relu = own.operator is RELU or (own.operator is moving.IDENTITY and followers == {RELU})
        write = self.gates.skipping if self.skipping else self.gates.masked
        value = write(str(call.node.target), layer, call.x, call.shape, relu)
        if own.operator in (moving.IDENTITY, RELU):
            return value
        if own.operator not in points.POINTWISE:
            raise Unsupported(f"there is no ONNX writer for its activation {own.title}")
        return points.pointwise(replace(call, values={call.node: value}, use=own, target=value.stored))

    def _convolution(self, call: Call, conv: nn.Conv2d) -> Value:
        users = list(call.node.users)
        follower = users[0] if len(users) == 1 and kind_of(users[0]) is Kind.NORM else None
        weight, bias = layers.fold(conv, None if follower is None else module_of(follower))
        if follower is not None:
            self.folded.add(follower)
        if isinstance(self.flow.get(call.node.name), Filled) and call.x.compact and call.x.fill is None:
            return constants.depthwise(call, self.gates, conv, weight, bias)
        x = self.gates.readable(conv, call.x, call.shape)
        if x.fill is not None and bias is None:
            bias = weight.new_zeros(conv.out_channels)
        offset = None if bias is None else self.writer.constant(bias, "bias")
        if conv.groups > 1:
            source, kernel = call.dense().name, self.writer.constant(weight, "weight")
        else:
            offset = None if offset is None else self.gates.with_constants(x, weight, offset)
            source, kernel = self.gates.cut_inputs(conv, weight, x, call.shape)
        return call.result(layers.convolve(self.writer, conv, source, kernel, offset))

    def _piece(self, call: Call) -> Value:
        """One part of chunk or split; the parts' sizes come from the shapes that were seen."""
        origin, place = call.node.args[0], static(call.node.args[1])
        assert isinstance(origin, fx.Node)
        use, whole = use_of(origin), origin.args[0]
        chunked = use.operator is moving.CHUNK
        known = chunked or use.operator is moving.SPLIT
        if not known or not isinstance(whole, fx.Node) or whole not in self.cells:
            raise Unsupported(f"it takes apart the result of {_describe(origin)}")
        value = self.cells[whole].value
        axis = static(use.setting("dim")) % len(value.shape)
        length = value.shape[axis]
        pieces = static(use.setting("chunks" if chunked else "split_size"))
        if isinstance(pieces, int):
            step = -(-length // pieces) if chunked else pieces
            pieces = [min(step, length - start) for start in range(0, length, step)]
        return shapes.part_of(replace(call, values={whole: value}), list(pieces), axis, place)

    def _changes_nothing(self, node: fx.Node) -> bool:
        use = use_of(node)
        if use.drops_at_random:
            raise Unsupported("it drops values at random even in eval mode (training=True)")
        return use.operator.same_in_eval

    def _keep(self, node: fx.Node, value: Value) -> None:
        self.cells[node] = _Cell(value, [node])

    def _overwrite(self, node: fx.Node, cell: _Cell, value: Value) -> None:
        now = self.order[node]
        for relative in cell.family:
            readers = (user for owner in relative.nodes for user in owner.users)
            if relative is not cell and any(self.order[reader] > now for reader in readers):
                raise Unsupported("it changes in place a value of which another view is read later")
        cell.value = value
        cell.nodes.append(node)
        self.cells[node] = cell

    def _outputs(self, node: fx.Node) -> list[tuple[str, Value]]:
        given = node.args[0]
        named: dict[str, Any]
        if isinstance(given, dict):
            named = {str(key): part for key, part in given.items()}
        elif isinstance(given, tuple | list):
            named = {f"output{place}": part for place, part in enumerate(given)}
        else:
            named = {"logits": given}
        for key, part in named.items():
            if not isinstance(part, fx.Node) or part not in self.cells:
                raise ExportError(
                    f"the network's output {key!r} is {part!r}, not a tensor; nothing was written"
                )
        lists = self.gates.lists
        found = [(key, self.cells[part].value) for key, part in named.items()]
        return [(key, lists.relayout(value, Dense(value.stored.count))) for key, value in found]


def _place(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _describe(node: fx.Node) -> str:
    """The step in the user's words: its place, and what it is."""
    return f"{place_of(node)} ({use_of(node).title})"
