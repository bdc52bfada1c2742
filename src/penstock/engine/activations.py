"""Which of the engine's functions an activation is, as a module or as an operator."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from penstock.engine.steps import Function
from penstock.surgery.ops import argument

_BY_NAME = {
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "hardswish": "hardswish",
    "sigmoid": "sigmoid",
    "hardsigmoid": "hardsigmoid",
    "tanh": "tanh",
}
# timm has its own classes for some of these; they compute the same.
_BY_CLASS = {
    "ReLU": "relu",
    "ReLU6": "relu6",
    "SiLU": "silu",
    "Swish": "silu",
    "Hardswish": "hardswish",
    "HardSwish": "hardswish",
    "Sigmoid": "sigmoid",
    "Hardsigmoid": "hardsigmoid",
    "HardSigmoid": "hardsigmoid",
    "Tanh": "tanh",
    "GELUTanh": "gelu_tanh",
}


def function_of_module(module: nn.Module) -> Function | None:
    """The engine's function for an activation module; None if it is not one of them."""
    home = type(module).__module__.split(".")[0]
    if home not in ("torch", "timm"):
        return None
    if isinstance(module, nn.LeakyReLU):
        return Function("leaky_relu", float(module.negative_slope))
    if isinstance(module, nn.GELU):
        return Function("gelu" if getattr(module, "approximate", "none") == "none" else "gelu_tanh")
    if type(module).__name__ == "GELU":
        return Function("gelu")
    if isinstance(module, nn.Hardtanh) and not isinstance(module, nn.ReLU6):
        return _clamp(module.min_val, module.max_val)
    name = _BY_CLASS.get(type(module).__name__)
    return None if name is None else Function(name)


def function_of_operator(name: str, node: fx.Node) -> Function | None:
    """The engine's function for an operator of this bare name; None if it is not one of them."""
    if name in _BY_NAME:
        return Function(_BY_NAME[name])
    if name == "leaky_relu":
        return Function("leaky_relu", float(argument(node, 1, "negative_slope", 0.01)))
    if name == "gelu":
        return Function("gelu" if argument(node, 1, "approximate", "none") == "none" else "gelu_tanh")
    if name in ("clamp", "clip", "hardtanh"):
        names = ("min_val", "max_val") if name == "hardtanh" else ("min", "max")
        return _clamp(argument(node, 1, names[0]), argument(node, 2, names[1]))
    return None


def _clamp(low: Any, high: Any) -> Function | None:
    if low == 0 and high is None:
        return Function("relu")
    return Function("relu6") if low == 0 and high == 6 else None
