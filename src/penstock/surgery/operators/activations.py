"""Rows: functions of each number alone.

Those with f(0) = 0 are of kind ACTIVATION, because a channel that a gate made zero stays zero under them; the
others are of kind OTHER.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from penstock.surgery.operators.row import Cutting, Kind, Operator
from penstock.surgery.operators.uses import Use

_INPLACE = {"inplace": False}


def _spans_zero(use: Use) -> bool:
    """Whether zero lies between the two bounds, so that clamping leaves it alone."""
    low, high = (use.setting(name) for name in use.operator.settings if name != "inplace")
    fits_low = low is None or (isinstance(low, int | float) and low <= 0)
    fits_high = high is None or (isinstance(high, int | float) and high >= 0)
    return fits_low and fits_high


def _refit_prelu(module: Any) -> None:
    module.num_parameters = len(module.weight)


def _has_slope_per_channel(module: nn.Module) -> bool:
    return getattr(module, "num_parameters", 1) > 1


RELU = Operator("relu", Kind.ACTIVATION, modules=(nn.ReLU,), settings=_INPLACE, nonnegative=True)
RELU6 = Operator("relu6", Kind.ACTIVATION, modules=(nn.ReLU6,), settings=_INPLACE, nonnegative=True)
SILU = Operator("silu", Kind.ACTIVATION, modules=(nn.SiLU,), foreign=("timm.Swish",), settings=_INPLACE)
GELU = Operator(
    "gelu",
    Kind.ACTIVATION,
    modules=(nn.GELU,),
    foreign=("timm.GELU",),
    settings={"approximate": "none"},
)
GELU_TANH = Operator("gelu_tanh", Kind.ACTIVATION, functions=False, foreign=("timm.GELUTanh",))
HARDSWISH = Operator(
    "hardswish", Kind.ACTIVATION, modules=(nn.Hardswish,), foreign=("timm.HardSwish",), settings=_INPLACE
)
LEAKY_RELU = Operator(
    "leaky_relu",
    Kind.ACTIVATION,
    modules=(nn.LeakyReLU,),
    settings={"negative_slope": 0.01, "inplace": False},
)
ELU = Operator("elu", Kind.ACTIVATION, modules=(nn.ELU,), settings={"alpha": 1.0, "inplace": False})
CELU = Operator("celu", Kind.ACTIVATION, modules=(nn.CELU,), settings={"alpha": 1.0, "inplace": False})
SELU = Operator("selu", Kind.ACTIVATION, modules=(nn.SELU,), settings=_INPLACE)
MISH = Operator("mish", Kind.ACTIVATION, modules=(nn.Mish,), settings=_INPLACE)
PRELU = Operator(
    "prelu",
    Kind.ACTIVATION,
    modules=(nn.PReLU,),
    settings={"weight": None},
    cutting=Cutting(outputs={"weight": 0}, inputs={}, refit=_refit_prelu, carries=_has_slope_per_channel),
)
RRELU = Operator(
    "rrelu",
    Kind.ACTIVATION,
    modules=(nn.RReLU,),
    settings={"lower": 1 / 8, "upper": 1 / 3, "training": False, "inplace": False},
)
TANH = Operator("tanh", Kind.ACTIVATION, modules=(nn.Tanh,), foreign=("timm.Tanh",))
SOFTSIGN = Operator("softsign", Kind.ACTIVATION, modules=(nn.Softsign,))
TANHSHRINK = Operator("tanhshrink", Kind.ACTIVATION, modules=(nn.Tanhshrink,))
HARDSHRINK = Operator("hardshrink", Kind.ACTIVATION, modules=(nn.Hardshrink,), settings={"lambd": 0.5})
SOFTSHRINK = Operator("softshrink", Kind.ACTIVATION, modules=(nn.Softshrink,), settings={"lambd": 0.5})
HARDTANH = Operator(
    "hardtanh",
    Kind.ACTIVATION,
    modules=(nn.Hardtanh,),
    subclasses=True,
    settings={"min_val": -1.0, "max_val": 1.0, "inplace": False},
    condition=_spans_zero,
)
CLAMP = Operator(
    "clamp",
    Kind.ACTIVATION,
    aliases=("clip",),
    settings={"min": None, "max": None},
    condition=_spans_zero,
)

SIGMOID = Operator(
    "sigmoid", Kind.OTHER, modules=(nn.Sigmoid,), foreign=("timm.Sigmoid",), even=True, nonnegative=True
)
HARDSIGMOID = Operator(
    "hardsigmoid",
    Kind.OTHER,
    modules=(nn.Hardsigmoid,),
    foreign=("timm.HardSigmoid",),
    settings=_INPLACE,
    even=True,
    nonnegative=True,
)
SOFTPLUS = Operator(
    "softplus", Kind.OTHER, modules=(nn.Softplus,), settings={"beta": 1, "threshold": 20}, even=True
)
SOFTMAX = Operator("softmax", Kind.OTHER, modules=(nn.Softmax,), settings={"dim": None}, nonnegative=True)
LOG_SOFTMAX = Operator("log_softmax", Kind.OTHER, modules=(nn.LogSoftmax,), settings={"dim": None})
EXP = Operator("exp", Kind.OTHER, even=True, nonnegative=True)

ABS = Operator("abs", Kind.PASS, nonnegative=True)
NEGATE = Operator("neg", Kind.PASS, aliases=("negative",))
SIGN = Operator("sign", Kind.PASS)
SQRT = Operator("sqrt", Kind.PASS, nonnegative=True)
SQUARE = Operator("square", Kind.PASS, nonnegative=True)

ROWS = tuple(row for row in list(globals().values()) if isinstance(row, Operator))
