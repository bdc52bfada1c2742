"""From a traced network to steps: every node of the graph becomes steps, or is refused by name.

Enters: the graph of `penstock.surgery.trace`, each node with its shape. Leaves: a `Network`. Batch norms
become per-channel affines here; `fuse` folds them into the convolutions before them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from penstock.engine import layers, operators, pixels  # noqa: F401  they enter their functions into LOWERINGS
from penstock.engine.steps import Export, Import, Network
from penstock.engine.walk import LOWERINGS, Held, Walk
from penstock.errors import CompileError
from penstock.surgery.operators import Kind, is_inplace, module_of, shape_of, use_of
from penstock.surgery.trace import opaque_modules


def lower(traced: fx.GraphModule) -> Network:
    """The steps of a traced network, in its order."""
    return _Lowering(traced).run()


class _Lowering(Walk):
    def run(self) -> Network:
        for node in self.traced.graph.nodes:
            if node.op == "output":
                self._output(node)
            elif shape_of(node) is not None:
                self._lower(node)
        return self.network

    def _lower(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            shape = shape_of(node)
            if shape is None or len(shape) != 4 or self.network.steps:
                raise CompileError(
                    f"input {node.name!r}: the engine takes one batch of images, got shape {shape}"
                )
            value = self.network.new_value(*shape[1:], node.name)
            self.network.steps.append(Import(node.name, [], value))
            self.held[node] = Held(value)
        elif node.op == "get_attr":
            self.held[node] = _attribute(self.traced, str(node.target)).detach()
        elif all(isinstance(self.held.get(source), Tensor) for source in node.all_input_nodes):
            self.held[node] = _evaluate(node, self.held)
        else:
            self.held[node] = self._run_on(node)
            if is_inplace(node):
                # Whoever reads the overwritten value from here on sees the new one.
                first = node.all_input_nodes[0]
                old, new = self.get(node, first), self.held[node]
                assert isinstance(new, Held)
                for other, held in list(self.held.items()):
                    if isinstance(held, Held) and held.value == old.value:
                        self.held[other] = Held(new.value, held.form)

    def _run_on(self, node: fx.Node) -> Held:
        use = use_of(node)
        if use.operator.same_in_eval and not use.drops_at_random:
            return self.source(node)
        lowering = LOWERINGS.get(use.operator)
        if lowering is None:
            why = opaque_modules(self.traced).get(str(node.target))
            what = use.kind.value if use.kind is Kind.SELECT else use.title
            raise self.missing(node, what, f"; torch.fx could not look inside: {why}" if why else "")
        return lowering(self, node, use)

    def _output(self, node: fx.Node) -> None:
        result = node.args[0]
        if not isinstance(result, fx.Node):
            raise CompileError(
                f"the network returns {type(result).__name__}, and the engine returns one tensor; "
                "wrap the network in a module that picks the one you need"
            )
        held = self.get(node, result)
        shape = shape_of(result)
        assert shape is not None
        if held.form == "nhwc":
            raise CompileError(
                "the network returns a channels-last map; permute it back to (batch, channel, height, width)"
            )
        self.network.result_shape = shape[1:]
        self.network.steps.append(Export("output", [held.value], -1))


def _attribute(owner: nn.Module, path: str) -> Tensor:
    found: Any = owner
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, Tensor):
        raise CompileError(f"{path!r} is not a tensor")
    return found


def _evaluate(node: fx.Node, held: dict[fx.Node, Any]) -> Tensor:
    """A node that depends on weights alone is computed once, now."""
    args = fx.node.map_arg(node.args, lambda n: held[n])
    kwargs = fx.node.map_arg(node.kwargs, lambda n: held[n])
    with torch.no_grad():
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        module = module_of(node)
        if module is not None:
            return module(*args, **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)
