"""One row of the table of operators: everything that the house knows about one torch operator.

name, aliases      torch's bare names: ``torch.relu_``, ``F.relu`` and ``x.relu()`` are all ``relu``
modules, foreign   classes that compute the same
settings           its parameters after the tensor, in order, with torch's defaults
kind, condition    its effect on channels, and when it has that effect
even               whether a channel that holds one constant over its whole map stays so
cutting            how its module loses channels
product            its MACs
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from penstock.surgery.operators.uses import Use


class Kind(enum.Enum):
    """What an operator does to the channels of its input."""

    INPUT = "the network's input"
    OUTPUT = "the network's output"
    CONSTANT = "a parameter or buffer"
    GATED = "a gated convolution"
    WEIGHT = "a convolution or linear layer"
    NORM = "a batch norm"
    ACTIVATION = "an activation with f(0) = 0, channel by channel"
    PASS = "acts on each channel alone and leaves a zero channel zero"
    MOVE = "the same numbers under another shape"
    ADD = "a sum of two tensors"
    MULTIPLY = "a product"
    CONCAT = "parts side by side"
    PAD = "padding"
    SELECT = "indexing"
    REDUCE = "a mean, sum or extreme over some axes"
    SIZE = "a number about a tensor, not a tensor"
    OTHER = "anything else: it may turn a zero channel into anything"


@dataclass(frozen=True)
class Cutting:
    """How a module loses channels: {tensor: its axis of output (or input) channels}; dots lead to submodules.

    `refit` then makes the numbers that the module keeps beside its tensors agree with them. `carries`:
    whether a module has one parameter (or filter) a channel, so that the same channels leave as entered.
    """

    outputs: Mapping[str, int]
    inputs: Mapping[str, int]
    refit: Callable[[Any], None]
    carries: Callable[[Any], bool]


@dataclass(frozen=True)
class Product:
    """MACs of a layer with weights = taps · positions · (active inputs × active outputs, group by group)."""

    taps: int  # k² of a convolution, 1 of a linear layer
    positions: int  # where the kernel is applied: H·W of the output (of the input, if transposed)
    groups: int
    inputs: int
    outputs: int
    input_map: int  # values a channel has at the input
    output_map: int

    @property
    def pairs(self) -> int:
        """Input-output channel pairs that are connected."""
        return self.inputs * self.outputs // self.groups

    @property
    def dense_macs(self) -> int:
        """MACs for one image, nothing skipped."""
        return self.taps * self.positions * self.pairs


Shape = tuple[int, ...]
ProductRule = Callable[[Any, Shape, Shape], Product]
"""(module, shape of the input, shape of the output) → its product."""


@dataclass(frozen=True, eq=False)
class Operator:
    """One row; rows are compared by identity, so that lowerings and writers can be looked up by row.

    functions: whether `name` is also that of a torch function or method (rows of modules alone say no).
    inplace_names: names under which it overwrites its first argument, besides those that end with ``_``.
    subclasses: whether a subclass with a forward of its own still counts as this operator.
    foreign: class names outside of torch, ``timm.Swish``, or ``DropPath`` wherever it is defined.
    condition: without it being true, the kind is OTHER.
    even: whether a channel that holds one constant leaves as a constant; None: as its kind does.
    nonnegative: no result is below zero. same_in_eval: the identity, once the network is in eval mode.
    view: the result shares its memory with the input. measured: its MACs are counted by running it.
    """

    name: str
    kind: Kind
    aliases: tuple[str, ...] = ()
    functions: bool = True
    inplace_names: tuple[str, ...] = ()
    modules: tuple[type[nn.Module], ...] = ()
    subclasses: bool = False
    foreign: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    condition: Callable[[Use], bool] | None = None
    even: Callable[[Use], bool] | bool | None = None
    nonnegative: bool = False
    same_in_eval: bool = False
    view: bool = False
    cutting: Cutting | None = None
    product: ProductRule | None = None
    measured: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every bare name of a torch function or method that is this operator."""
        return ((self.name,) if self.functions else ()) + self.aliases + self.inplace_names

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


def convolution_product(module: Any, before: Shape, after: Shape, transposed: bool = False) -> Product:
    """The product of a convolution module."""
    areas = prod(before[2:]), prod(after[2:])
    return Product(
        taps=prod(module.kernel_size),
        positions=areas[0] if transposed else areas[1],
        groups=module.groups,
        inputs=module.in_channels,
        outputs=module.out_channels,
        input_map=areas[0],
        output_map=areas[1],
    )


def linear_product(module: Any, before: Shape, after: Shape) -> Product:
    """The product of a linear layer, which reads the last axis."""
    rows = prod(after[1:-1])
    return Product(1, rows, 1, module.in_features, module.out_features, rows, rows)
