"""The program of a compiled network: arrays of numbers, and the names that belong to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock_runtime.file import Content

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Program:
    """Everything the native runtime needs (kernels/run/program.h has the fields of the arrays).

    Names are for people.
    """

    format: int
    tensors: Integers  # (tensor, field)
    ops: Integers  # (operation, field)
    scalars: Floats  # (operation, 2)
    args: Integers
    weights: Floats
    layers: tuple[str, ...]  # convolutions and linear layers, in the order they run
    gated: tuple[str, ...]
    op_names: tuple[str, ...]
    op_kinds: tuple[str, ...]
    result_shape: tuple[int, ...]
    precision: str = "float32"  # or "int8"
    float_steps: tuple[tuple[str, str], ...] = ()  # of an int8 program: steps in float32, and why

    def sections(self) -> dict[str, Content]:
        """The sections of a compiled file that hold this program."""
        texts = [text for pair in self.float_steps for text in pair]
        return {
            "program/format": np.array(self.format, np.int64),
            "program/tensors": self.tensors,
            "program/ops": self.ops,
            "program/scalars": self.scalars,
            "program/args": self.args,
            "names/layers": self.layers,
            "names/gated": self.gated,
            "names/operations": self.op_names,
            "names/kinds": self.op_kinds,
            "result/shape": np.array(self.result_shape, np.int64),
            **({"precision/float32": texts} if texts else {}),
            "program/weights": self.weights,
        }
