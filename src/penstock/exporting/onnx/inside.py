"""A module that plain tracing cannot enter, traced with the sizes its inputs really have.

Such modules branch on shapes (``if x.shape[-1] < 7:``). Here every traced value carries the tensor it stands
for, so a shape is a tuple of numbers and the branch is taken as it would be; the result holds for these sizes
only, and an exported network has no others.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

_CONTENT = "content"


class _SizedProxy(fx.Proxy):
    """A proxy that knows its tensor's shape."""

    content: Any = None

    @property
    def shape(self) -> Any:
        return self.content.shape

    @property
    def ndim(self) -> Any:
        return self.content.ndim

    def size(self, axis: int | None = None) -> Any:
        return self.content.shape if axis is None else self.content.shape[axis]

    def dim(self) -> Any:
        return self.content.ndim


class _SizedTracer(fx.Tracer):
    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.waiting = list(inputs)
        self.computing = (
            False  # fx patches every module while it traces; what we compute ourselves must not be traced
        )

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return forward(*args, **kwargs) if self.computing else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.computing else super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        made = _SizedProxy(node, self)
        made.content = node.meta.get(_CONTENT)
        return made

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any
    ) -> fx.Node:
        node = super().create_node(kind, target, args, kwargs, *more, **named)
        if kind == "placeholder":
            node.meta[_CONTENT] = self.waiting.pop(0)
        elif kind != "output":
            self.computing = True
            node.meta[_CONTENT] = self._carry_out(node)
            self.computing = False
        content = node.meta.get(_CONTENT)
        node.meta["shape"] = tuple(content.shape) if isinstance(content, Tensor) else None
        return node

    def _carry_out(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta[_CONTENT])
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "get_attr":
            found: Any = self.root
            for part in str(node.target).split("."):
                found = getattr(found, part)
            return found
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)


def trace_with_sizes(module: nn.Module, shapes: list[tuple[int, ...]]) -> fx.GraphModule | None:
    """`module` traced for inputs of these shapes, its nodes with shapes; None if it cannot be looked into."""
    if not any(True for _ in module.children()):
        return None
    root = copy.deepcopy(module).eval()
    tracer = _SizedTracer([torch.zeros(shape) for shape in shapes])
    try:
        with torch.no_grad():
            graph = tracer.trace(root)
    except Exception:  # whatever a user's forward raises on a proxy: it cannot be looked into
        return None
    for node in graph.nodes:
        node.meta.pop(_CONTENT, None)
    return fx.GraphModule(root, graph)
