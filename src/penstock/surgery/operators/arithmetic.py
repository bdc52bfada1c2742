"""Rows: sums, products and reductions."""

from __future__ import annotations

from penstock.surgery.operators.row import Kind, Operator
from penstock.surgery.operators.uses import Use


def _divides_by_a_number(use: Use) -> bool:
    return isinstance(use.setting("other"), int | float)


_OTHER = {"other": None, "alpha": 1}

ADD = Operator("add", Kind.ADD, inplace_names=("iadd",), settings=_OTHER)
SUBTRACT = Operator("sub", Kind.ADD, aliases=("subtract",), inplace_names=("isub",), settings=_OTHER)
MAXIMUM = Operator("maximum", Kind.ADD, settings={"other": None})
MINIMUM = Operator("minimum", Kind.ADD, settings={"other": None})
MULTIPLY = Operator(
    "mul", Kind.MULTIPLY, aliases=("multiply",), inplace_names=("imul",), settings={"other": None}
)
DIVIDE = Operator(
    "div",
    Kind.PASS,
    aliases=("divide", "true_divide", "truediv"),
    inplace_names=("itruediv",),
    settings={"other": None},
    condition=_divides_by_a_number,
)
POWER = Operator("pow", Kind.OTHER, settings={"exponent": None})

_AXES = {"dim": None, "keepdim": False}

MEAN = Operator("mean", Kind.REDUCE, settings=_AXES)
SUM = Operator("sum", Kind.REDUCE, settings=_AXES)
LARGEST = Operator("amax", Kind.REDUCE, settings=_AXES)
SMALLEST = Operator("amin", Kind.REDUCE, settings=_AXES)

# Matrix products and the like have MACs that no rule of ours knows: they are counted by running them.
MATRIX_PRODUCT = Operator(
    "matmul",
    Kind.OTHER,
    aliases=("mm", "bmm", "mv", "dot", "einsum", "scaled_dot_product_attention"),
    measured=True,
)

ROWS = tuple(row for row in list(globals().values()) if isinstance(row, Operator))
