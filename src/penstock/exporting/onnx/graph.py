"""The ONNX graph under construction: operators and constants in, a model out.

Tensors are named after the layer that made them (``layer1.0.conv1/Conv``), so that Netron, profilers and
error messages of any runtime speak the user's language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import import_extra
from penstock.surgery import Channels, Dense

OPSETS = (17, 21)  # the lowest with LayerNormalization; the highest that every runtime tested here takes
_SHARED_BYTES = 4096  # constants up to this size are stored once however often they occur


@dataclass(frozen=True)
class Value:
    """A tensor of the graph.

    shape: what PyTorch has there, all channels counted, with the batch of the traced example. stored: which
    channels (axis 1) the ONNX tensor really holds, in the order of their index list; Dense means all of them.
    fill: (1, C, 1, 1), the constant that a channel holds if it is not stored; without it they are zero.
    """

    name: str
    shape: tuple[int, ...]
    stored: Channels
    nonnegative: bool = False
    fill: str | None = None

    @property
    def compact(self) -> bool:
        return not isinstance(self.stored, Dense)


def dense_value(name: str, shape: tuple[int, ...], nonnegative: bool = False) -> Value:
    """A value that holds all its channels."""
    return Value(name, shape, Dense(shape[1] if len(shape) > 1 else 1), nonnegative)


class GraphWriter:
    """Collects nodes and constants; `scope` is the layer that is being written."""

    def __init__(self, opset: int) -> None:
        self.onnx = import_extra("onnx", "onnx")
        import_extra("onnx.helper", "onnx")
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.metadata: dict[str, str] = {}
        self._scope = ""
        self._names: Counter[str] = Counter()
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Everything written inside is named after `name`."""
        before, self._scope = self._scope, name
        try:
            yield
        finally:
            self._scope = before

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One operator with one output; returns the output's name."""
        return self.op_with(kind, inputs, 1, **attributes)[0]

    def op_with(self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """One operator with several outputs."""
        name = self._fresh(kind)
        results = [name if place == 0 else f"{name}:{place}" for place in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), results, name=name, **attributes))
        return results

    def constant(self, array: np.ndarray[Any, Any] | Tensor, hint: str = "const") -> str:
        """A constant's name; equal small constants share one."""
        data = array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)
        data = np.ascontiguousarray(data).reshape(data.shape)
        key = (str(data.dtype), data.shape, data.tobytes() if data.nbytes <= _SHARED_BYTES else b"")
        if data.nbytes <= _SHARED_BYTES and key in self._shared:
            return self._shared[key]
        name = self._fresh(hint)
        self.constants.append(self.onnx.numpy_helper.from_array(data, name))
        if data.nbytes <= _SHARED_BYTES:
            self._shared[key] = name
        return name

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        return self.constant(np.array(values, dtype=np.int64))

    def number(self, value: float) -> str:
        """A float32 scalar."""
        return self.constant(np.array(value, dtype=np.float32))

    def reduce(self, kind: str, source: str, axes: Sequence[int], keepdims: bool) -> str:
        """ReduceMean and its kin, whose axes became an input in opset 18 (ReduceSum's: in 13)."""
        if kind == "ReduceSum" or self.opset >= 18:
            return self.op(kind, source, self.ints(*axes), keepdims=int(keepdims))
        return self.op(kind, source, axes=list(axes), keepdims=int(keepdims))

    def model(self, inputs: Sequence[Any], outputs: Sequence[Any], title: str) -> Any:
        """The finished model, with unused constants left out."""
        helper = self.onnx.helper
        used = {name for node in self.nodes for name in node.input} | {value.name for value in inputs}
        graph = helper.make_graph(
            self.nodes, title, list(inputs), list(outputs), [c for c in self.constants if c.name in used]
        )
        opset = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opset, producer_name="penstock")
        model.ir_version = max(8, helper.find_min_ir_version_for(opset))
        helper.set_model_props(model, self.metadata)
        return model

    def _fresh(self, kind: str) -> str:
        name = f"{self._scope}/{kind}" if self._scope else kind
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name]}"
