"""Number-by-number steps in ONNX: activations, sums, products, concatenation."""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.exporting.onnx.call import Call, Unsupported, static
from penstock.exporting.onnx.graph import Value, dense_value
from penstock.surgery import Dense
from penstock.surgery.channels import concat
from penstock.surgery.operators import Operator
from penstock.surgery.operators import activations as act
from penstock.surgery.operators import arithmetic as arithmetic_rows

Pointwise = Callable[[Call, str], str]


def _plain(kind: str) -> Pointwise:
    return lambda call, x: call.writer.op(kind, x)


def _clip(call: Call, x: str) -> str:
    low, high = (call.setting(name) for name in call.operator.settings if name != "inplace")
    return _between(call, x, low, high)


def _between(call: Call, x: str, low: float | None, high: float | None) -> str:
    w = call.writer
    return w.op("Clip", x, "" if low is None else w.number(low), *(() if high is None else (w.number(high),)))


def _silu(call: Call, x: str) -> str:
    return call.writer.op("Mul", x, call.writer.op("Sigmoid", x))


def _gelu(call: Call, x: str) -> str:
    """x·Φ(x); from opset 20 on an operator of its own."""
    w, approximate = call.writer, call.setting("approximate")
    if w.opset >= 20:
        return w.op("Gelu", x, approximate=approximate)
    if approximate != "none":
        cube = w.op("Mul", w.op("Mul", x, x), x)
        inner = w.op("Add", x, w.op("Mul", cube, w.number(0.044715)))
        bell = w.op("Tanh", w.op("Mul", inner, w.number(math.sqrt(2 / math.pi))))
    else:
        bell = w.op("Erf", w.op("Div", x, w.number(math.sqrt(2))))
    return w.op("Mul", w.op("Mul", x, w.op("Add", bell, w.number(1.0))), w.number(0.5))


def _mish(call: Call, x: str) -> str:
    w = call.writer
    return w.op("Mul", x, w.op("Tanh", w.op("Softplus", x)))


def _hardsigmoid(call: Call, x: str) -> str:
    return call.writer.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)


def _prelu(call: Call, x: str) -> str:
    if call.module is None:
        raise Unsupported("functional prelu")
    slope = call.setting("weight").detach().reshape(-1, 1, 1)
    if slope.numel() > 1:
        raise Unsupported("PReLU with one slope a channel")
    return call.writer.op("PRelu", x, call.writer.constant(slope, "slope"))


def _softplus(call: Call, x: str) -> str:
    if call.setting("beta") != 1:
        raise Unsupported("softplus with beta other than 1")
    return call.writer.op("Softplus", x)


def _softmax(call: Call, x: str) -> str:
    kind = "LogSoftmax" if call.operator is act.LOG_SOFTMAX else "Softmax"
    axis = call.setting("dim")
    if axis is None:
        raise Unsupported("softmax without `dim`")
    return call.writer.op(kind, x, axis=axis)


POINTWISE: dict[Operator, Pointwise] = {
    act.RELU: _plain("Relu"),
    act.SIGMOID: _plain("Sigmoid"),
    act.TANH: _plain("Tanh"),
    act.HARDSWISH: _plain("HardSwish"),
    act.SOFTSIGN: _plain("Softsign"),
    act.ABS: _plain("Abs"),
    act.NEGATE: _plain("Neg"),
    act.SQRT: _plain("Sqrt"),
    act.EXP: _plain("Exp"),
    act.SIGN: _plain("Sign"),
    act.SQUARE: lambda call, x: call.writer.op("Mul", x, x),
    act.RELU6: lambda call, x: _between(call, x, 0.0, 6.0),
    act.HARDTANH: _clip,
    act.CLAMP: _clip,
    act.SILU: _silu,
    act.GELU: _gelu,
    act.MISH: _mish,
    act.HARDSIGMOID: _hardsigmoid,
    act.SOFTPLUS: _softplus,
    act.PRELU: _prelu,
    act.SOFTMAX: _softmax,
    act.LOG_SOFTMAX: _softmax,
    act.LEAKY_RELU: lambda call, x: call.writer.op("LeakyRelu", x, alpha=call.setting("negative_slope")),
    act.ELU: lambda call, x: call.writer.op("Elu", x, alpha=call.setting("alpha")),
    act.CELU: lambda call, x: call.writer.op("Celu", x, alpha=call.setting("alpha")),
    act.SELU: _plain("Selu"),
}
ARITHMETIC = {
    arithmetic_rows.ADD: "Add",
    arithmetic_rows.SUBTRACT: "Sub",
    arithmetic_rows.MULTIPLY: "Mul",
    arithmetic_rows.DIVIDE: "Div",
    arithmetic_rows.MAXIMUM: "Max",
    arithmetic_rows.MINIMUM: "Min",
    arithmetic_rows.POWER: "Pow",
}


def pointwise(call: Call) -> Value:
    """An activation; the result holds the channels of the target."""
    x = call.stored()
    if x.nonnegative and call.operator in (act.RELU, act.ABS):
        return call.like_input(x.name, nonnegative=True)
    return call.like_input(POINTWISE[call.operator](call, x.name), call.operator.nonnegative)


def arithmetic(call: Call) -> Value:
    """A sum, product or quotient of tensors and numbers."""
    w, kind = call.writer, ARITHMETIC[call.operator]
    if static(call.node.kwargs.get("alpha", 1)) != 1 or call.node.kwargs.get("rounding_mode") is not None:
        raise Unsupported("alpha or rounding_mode")
    first = call.first()
    second = call.operand("exponent" if kind == "Pow" else "other")
    tensors = [value for value in (first, second) if isinstance(value, Value)]
    if kind == "Add" and len(tensors) == 2 and tensors[0].shape == tensors[1].shape == call.shape:
        return _sum(call, *tensors)
    names = [_operand(call, value) for value in (first, second)]
    nonnegative = kind in ("Mul", "Add", "Max") and len(tensors) == 2 and all(v.nonnegative for v in tensors)
    return call.like_input(w.op(kind, *names), nonnegative)


def _operand(call: Call, value: Value | float) -> str:
    """An operand fit for the target: cut to its channels, unless it has one number for all of them."""
    if not isinstance(value, Value):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unsupported(f"an operand that is {value!r}")
        return call.writer.number(value)
    if isinstance(call.target, Dense):
        return call.dense(value).name
    missing = len(call.shape) - len(value.shape)
    if missing and value.shape:  # (C, 1, 1) beside (batch, C, height, width)
        shape = (1,) * missing + value.shape
        value = dense_value(
            call.writer.op("Reshape", call.dense(value).name, call.writer.ints(*shape)), shape
        )
    aligned = len(value.shape) > 1 and value.shape[1] == call.shape[1]
    return call.lists.relayout(value, call.target).name if aligned else value.name


def _sum(call: Call, first: Value, second: Value) -> Value:
    """A residual sum: the longer list is laid out, and the other is added where it belongs."""
    w, lists, target = call.writer, call.lists, call.target
    nonnegative = first.nonnegative and second.nonnegative
    if second.stored == target and first.stored != target:
        first, second = second, first
    base = lists.relayout(first, target)
    if second.stored == target or not second.compact:
        name = w.op("Add", base.name, lists.relayout(second, target).name)
        return call.like_input(name, nonnegative)
    planes = w.op("Squeeze", base.name, w.ints(0))
    return call.like_input(lists.scatter(planes, second, target, add=True).name, nonnegative)


def concatenate(call: Call) -> Value:
    """torch.cat; along the channels the parts keep their own lists, shifted."""
    w = call.writer
    axis = call.setting("dim") % len(call.shape)
    parts = call.node.args[0] if call.node.args else call.node.kwargs["tensors"]
    assert isinstance(parts, list | tuple)
    values = [call.values[part] for part in parts]  # type: ignore[index]
    nonnegative = all(value.nonnegative for value in values)
    if axis == 1 and not isinstance(call.target, Dense):
        name = w.op("Concat", *(value.name for value in values), axis=1)
        return Value(name, call.shape, concat(value.stored for value in values), nonnegative)
    if axis == 0 and call.dynamic:
        raise Unsupported("concatenation along the batch axis")
    names = [call.dense(value).name for value in values]
    return call.result(w.op("Concat", *names, axis=axis), nonnegative)
