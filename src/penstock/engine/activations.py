"""Which of the engine's functions an activation is.

A row of the table of operators whose name stands among the program's functions is that function; those with
settings of their own are worked out here.
"""

from __future__ import annotations

from typing import Any

from penstock.engine.steps import FUNCTIONS, Function
from penstock.surgery.operators import Kind, Use
from penstock.surgery.operators.activations import (
    CLAMP,
    ELU,
    GELU,
    GELU_TANH,
    HARDTANH,
    LEAKY_RELU,
    RELU,
    RELU6,
)
from penstock.surgery.operators.moving import IDENTITY

_SLOPES = {LEAKY_RELU: "negative_slope", ELU: "alpha"}


def function_of(use: Use) -> Function | None:
    """The engine's function for one use of an activation; None if it has none."""
    row = use.operator
    if row is IDENTITY:
        return Function()
    if row in (CLAMP, HARDTANH):
        names = [name for name in row.settings if name != "inplace"]
        return _clamp(*(use.setting(name) for name in names))
    if row is GELU and use.setting("approximate") != "none":
        row = GELU_TANH
    if row.name not in FUNCTIONS:
        return None
    slope = float(use.setting(_SLOPES[row])) if row in _SLOPES else Function.slope
    return Function(row.name, slope, keeps_zero=row.kind is Kind.ACTIVATION)


def _clamp(low: Any, high: Any) -> Function | None:
    if low == 0 and high is None:
        return Function(RELU.name)
    return Function(RELU6.name) if low == 0 and high == 6 else None
