"""From a traced network to ONNX nodes: every step in order, each by the writer that knows it.

What PyTorch overwrites in place is written as a new tensor that every later reader gets. Steps that no writer
knows are collected, so that one error names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock.errors import ExportError
from penstock.exporting import onnx_layers as layers
from penstock.exporting import onnx_pointwise as points
from penstock.exporting import onnx_shapes as shapes
from penstock.exporting.onnx_call import Call, Unsupported, static
from penstock.exporting.onnx_gates import Gates
from penstock.exporting.onnx_graph import GraphWriter, Value, dense_value
from penstock.exporting.onnx_inside import trace_with_sizes
from penstock.exporting.onnx_lists import listable
from penstock.gating import GatedConv2d
from penstock.surgery import Dense, channel_flow, shape_of
from penstock.surgery.ops import argument, is_inplace, module_of, operator_name

_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Hardtanh: "hardtanh",
    nn.LeakyReLU: "leaky_relu",
    nn.ELU: "elu",
    nn.CELU: "celu",
    nn.SELU: "selu",
    nn.Mish: "mish",
    nn.PReLU: "prelu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.Softplus: "softplus",
    nn.Softsign: "softsign",
    nn.Softmax: "softmax",
    nn.LogSoftmax: "log_softmax",
    nn.MaxPool2d: "max_pool2d",
    nn.AvgPool2d: "avg_pool2d",
    nn.AdaptiveAvgPool2d: "adaptive_avg_pool2d",
    nn.AdaptiveMaxPool2d: "adaptive_max_pool2d",
    nn.Flatten: "flatten",
    nn.Linear: "linear",
    nn.LayerNorm: "layer_norm",
    nn.GroupNorm: "group_norm",
    nn.ZeroPad2d: "pad",
    nn.ReflectionPad2d: "pad",
    nn.ReplicationPad2d: "pad",
    nn.Upsample: "interpolate",
}
_WRITERS: dict[str, Callable[[Call], Value]] = {
    **dict.fromkeys(points.POINTWISE, points.pointwise),
    **dict.fromkeys(points.ARITHMETIC, points.arithmetic),
    **dict.fromkeys(("cat", "concat", "concatenate"), points.concatenate),
    **dict.fromkeys(("view", "reshape", "flatten", "squeeze", "unsqueeze"), shapes.reshape),
    **dict.fromkeys(("mean", "sum", "amax", "amin"), shapes.reduce),
    **dict.fromkeys(("adaptive_avg_pool2d", "adaptive_max_pool2d"), layers.adaptive_pool),
    **dict.fromkeys(("interpolate", "upsample"), shapes.resize),
    "max_pool2d": layers.max_pool,
    "avg_pool2d": layers.avg_pool,
    "conv2d": layers.conv2d,
    "linear": layers.linear,
    "layer_norm": layers.layer_norm,
    "group_norm": layers.group_norm,
    "permute": shapes.permute,
    "transpose": shapes.transpose,
    "getitem": shapes.select,
    "pad": shapes.pad,
}
_SAME = frozenset(
    {"contiguous", "clone", "detach", "float"}
)  # steps that change nothing in an exported network
_SAME_MODULES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_SAME_CLASS_NAMES = frozenset({"DropPath", "StochasticDepth", "DropBlock2d"})
_VIEWS = frozenset({"view", "reshape", "flatten", "squeeze", "unsqueeze", "permute", "transpose", "getitem"})


@dataclass
class _Cell:
    """A piece of PyTorch memory: several nodes may name it, and a step in place changes it for all."""

    value: Value
    nodes: list[fx.Node]
    family: list[_Cell] = field(default_factory=list)  # cells that are views of the same memory


class Walk:
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
        if _name(node) in _VIEWS and sources:
            cell, base = self.cells[node], self.cells[sources[0]]
            family = base.family or [base]
            family.append(cell)
            base.family = cell.family = family

    def _write(self, node: fx.Node, shape: tuple[int, ...], values: dict[fx.Node, Value]) -> Value:
        module = module_of(node)
        if node.op == "get_attr":
            owner = node.graph.owning_module
            tensor: Any = owner
            for part in str(node.target).split("."):
                tensor = getattr(tensor, part)
            return dense_value(self.writer.constant(tensor, str(node.target)), shape)
        target = listable(self.flow.get(node.name), shape[1] if len(shape) > 1 else 1, self.unions)
        name = _name(node)
        lists, dynamic = self.gates.lists, not self.skipping
        call = Call(node, module, name, values, shape, target, self.writer, lists, dynamic)
        if isinstance(module, GatedConv2d):
            return self._gated(call, module)
        if isinstance(module, nn.Conv2d):
            return self._convolution(call, module)
        if isinstance(module, _BatchNorm):
            return call.x if node in self.folded else layers.batch_norm(call)
        if name == "getitem" and shape_of(node.args[0]) is None:  # type: ignore[arg-type]
            return self._piece(call)
        if isinstance(module, nn.Linear):
            return layers.linear(call)
        if module is not None and type(module) not in _MODULES:
            return self._inside(call, module)
        if name not in _WRITERS:
            raise Unsupported("there is no ONNX writer for it")
        return _WRITERS[name](call)

    def _inside(self, call: Call, module: nn.Module) -> Value:
        """A module that torch.fx kept whole: traced with the sizes it really gets, written step by step."""
        inner = trace_with_sizes(module, [value.shape for value in call.values.values()])
        if inner is None:
            raise Unsupported("there is no ONNX writer for it")
        walk = Walk(inner, self.writer, self.gates, self.skipping)
        named = walk.write(inner.graph, [call.dense(value) for value in call.values.values()], call.node.name)
        self.problems.extend(f"in {_describe(call.node)}: {problem}" for problem in walk.problems)
        if len(named) != 1:
            raise Unsupported("it returns several tensors")
        return named[0][1]

    def _gated(self, call: Call, layer: GatedConv2d) -> Value:
        relu_next = all(_name(user) == "relu" for user in call.node.users) and len(call.node.users) > 0
        own = type(layer.activation)
        relu = own is nn.ReLU or (own is nn.Identity and relu_next)
        write = self.gates.skipping if self.skipping else self.gates.masked
        value = write(str(call.node.target), layer, call.x, call.shape, relu)
        if own in (nn.Identity, nn.ReLU):
            return value
        inner = {"module": layer.activation, "name": _MODULES[own], "target": value.stored}
        return points.pointwise(replace(call, values={call.node: value}, **inner))  # type: ignore[arg-type]

    def _convolution(self, call: Call, conv: nn.Conv2d) -> Value:
        users = list(call.node.users)
        follower = users[0] if len(users) == 1 and isinstance(module_of(users[0]), _BatchNorm) else None
        weight, bias = layers.fold(conv, None if follower is None else module_of(follower))
        if follower is not None:
            self.folded.add(follower)
        offset = None if bias is None else self.writer.constant(bias, "bias")
        if conv.groups > 1:
            source, kernel = call.dense().name, self.writer.constant(weight, "weight")
        else:
            source, kernel = self.gates.cut_inputs(conv, weight, call.x, call.shape)
        return call.result(layers.convolve(self.writer, conv, source, kernel, offset))

    def _piece(self, call: Call) -> Value:
        """One part of chunk or split; the parts' sizes come from the shapes that were seen."""
        origin, place = call.node.args[0], static(call.node.args[1])
        assert isinstance(origin, fx.Node)
        kind, whole = operator_name(origin), origin.args[0]
        if kind not in ("chunk", "split") or not isinstance(whole, fx.Node) or whole not in self.cells:
            raise Unsupported(f"it takes apart the result of {_describe(origin)}")
        value = self.cells[whole].value
        axis = static(argument(origin, 2, "dim", 0)) % len(value.shape)
        length = value.shape[axis]
        share = static(argument(origin, 1, "chunks" if kind == "chunk" else "split_size"))
        if isinstance(share, int):
            step = -(-length // share) if kind == "chunk" else share
            share = [min(step, length - start) for start in range(0, length, step)]
        return shapes.part_of(replace(call, values={whole: value}), list(share), axis, place)

    def _changes_nothing(self, node: fx.Node) -> bool:
        module = module_of(node)
        if module is not None:
            return isinstance(module, _SAME_MODULES) or type(module).__name__ in _SAME_CLASS_NAMES
        name = operator_name(node)
        if name in ("dropout", "dropout2d", "feature_dropout", "alpha_dropout"):
            if static(argument(node, 2, "training", True)):
                raise Unsupported("it drops values at random even in eval mode (training=True)")
            return True
        return name in _SAME

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


def _name(node: fx.Node) -> str:
    module = module_of(node)
    if module is not None:
        return _MODULES.get(type(module), type(module).__name__)
    # A function of the user's own may have the name of one of torch's, so it is called by its full name.
    own = f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', node.target)}"
    return operator_name(node) or own


def _place(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _describe(node: fx.Node) -> str:
    """The step in the user's words: layer and class, or the operator and its place in the graph."""
    module = module_of(node)
    if module is not None:
        return f"layer {node.target!r} ({type(module).__name__})"
    return f"step {node.name!r} ({_name(node)})"
