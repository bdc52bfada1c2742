"""What each node of a traced network does to zero channels: the one place that knows torch's operators.

`kind_of` sorts a node into one of a few kinds; flow, site finding and shrinking all decide by kind. Modules,
functions and methods that do the same thing get the same kind. Whatever is not listed is OTHER, which
everyone treats as able to turn zeros into anything.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from penstock.gating import GatedConv2d


class Kind(enum.Enum):
    """What a node does to the channels of its input."""

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
    CONCAT = "torch.cat"
    PAD = "padding"
    SELECT = "indexing"
    REDUCE = "a mean, sum or extreme over some axes"
    SIZE = "a number about a tensor, not a tensor"
    OTHER = "anything else"


_ACTIVATION_MODULES = (
    nn.ReLU,
    nn.ReLU6,
    nn.SiLU,
    nn.GELU,
    nn.Hardswish,
    nn.LeakyReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.Mish,
    nn.PReLU,
    nn.RReLU,
    nn.Tanh,
    nn.Softsign,
    nn.Tanhshrink,
    nn.Hardshrink,
    nn.Softshrink,
)
_ACTIVATION_NAMES = frozenset(
    {
        "relu",
        "relu6",
        "silu",
        "gelu",
        "hardswish",
        "leaky_relu",
        "elu",
        "celu",
        "selu",
        "mish",
        "prelu",
        "rrelu",
        "tanh",
        "softsign",
        "tanhshrink",
        "hardshrink",
        "softshrink",
    }
)
_PASS_MODULES = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.Upsample,
    nn.ZeroPad2d,
    nn.ReflectionPad2d,
    nn.ReplicationPad2d,
)
_PASS_NAMES = frozenset(
    {
        "dropout",
        "dropout2d",
        "feature_dropout",
        "max_pool2d",
        "avg_pool2d",
        "adaptive_avg_pool2d",
        "adaptive_max_pool2d",
        "interpolate",
        "upsample",
        "contiguous",
        "clone",
        "detach",
        "to",
        "float",
        "half",
        "bfloat16",
        "double",
        "type",
        "type_as",
        "neg",
        "negative",
        "abs",
        "sign",
        "sqrt",
        "square",
    }
)
# Stochastic depth multiplies a whole sample by one number; timm and torchvision each have their own class.
_PASS_CLASS_NAMES = frozenset({"DropPath", "StochasticDepth"})
_MOVE_NAMES = frozenset({"view", "reshape", "flatten", "squeeze", "unsqueeze"})
_ADD_NAMES = frozenset({"add", "sub", "subtract", "iadd", "isub", "maximum", "minimum"})
_MULTIPLY_NAMES = frozenset({"mul", "multiply", "imul"})
_CONCAT_NAMES = frozenset({"cat", "concat", "concatenate"})
_REDUCE_NAMES = frozenset({"mean", "sum", "amax", "amin"})
_WEIGHT_NAMES = frozenset(
    {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear"}
)
_SIZE_NAMES = frozenset({"size", "dim", "numel", "ndimension"})
_DIVIDE_NAMES = frozenset({"div", "divide", "true_divide", "truediv", "itruediv"})


def module_of(node: fx.Node) -> nn.Module | None:
    """The module a call_module node calls."""
    if node.op != "call_module":
        return None
    owner = node.graph.owning_module
    return None if owner is None else owner.get_submodule(str(node.target))


def operator_name(node: fx.Node) -> str | None:
    """The bare name of a torch operator: ``torch.relu_``, ``F.relu`` and ``x.relu()`` are all ``relu``."""
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        # A user's own function may be called `relu` and be something else.
        home = getattr(node.target, "__module__", None)
        if home is not None and home.split(".")[0] not in ("torch", "_operator"):
            return None
        name = getattr(node.target, "__name__", "")
    else:
        return None
    return name if name.startswith("_") else name.rstrip("_")


def is_inplace(node: fx.Node) -> bool:
    """Whether running the node overwrites its first argument."""
    module = module_of(node)
    if module is not None:
        return bool(getattr(module, "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        if node.target in (operator.iadd, operator.isub, operator.imul, operator.itruediv):
            return True
        return name.endswith("_") or bool(node.kwargs.get("inplace", False)) or _positional_inplace(node)
    return False


def kind_of(node: fx.Node) -> Kind:
    """What the node does to zero channels."""
    if node.op == "placeholder":
        return Kind.INPUT
    if node.op == "output":
        return Kind.OUTPUT
    if node.op == "get_attr":
        return Kind.CONSTANT
    module = module_of(node)
    if module is not None:
        return _module_kind(module)
    return _operator_kind(node)


def _module_kind(module: nn.Module) -> Kind:
    if isinstance(module, GatedConv2d):
        return Kind.GATED
    if isinstance(module, _ConvNd | nn.Linear):
        return Kind.WEIGHT
    if isinstance(module, _BatchNorm):
        return Kind.NORM
    if type(module) in _ACTIVATION_MODULES:
        return Kind.ACTIVATION
    if isinstance(module, nn.Hardtanh):
        return Kind.ACTIVATION if module.min_val <= 0 <= module.max_val else Kind.OTHER
    if type(module) in _PASS_MODULES or type(module).__name__ in _PASS_CLASS_NAMES:
        return Kind.PASS
    if type(module) is nn.Flatten:
        return Kind.MOVE
    return Kind.OTHER


def _operator_kind(node: fx.Node) -> Kind:
    if node.op == "call_function" and node.target is getattr:
        return Kind.SIZE
    if node.target is operator.getitem:
        return Kind.SELECT
    name = operator_name(node)
    if name is None:
        return Kind.OTHER
    if name in ("hardtanh", "clamp", "clip"):
        low, high = _bounds(node, -1.0 if name == "hardtanh" else None, 1.0 if name == "hardtanh" else None)
        return Kind.ACTIVATION if _spans_zero(low, high) else Kind.OTHER
    for kind, names in (
        (Kind.ACTIVATION, _ACTIVATION_NAMES),
        (Kind.PASS, _PASS_NAMES),
        (Kind.MOVE, _MOVE_NAMES),
        (Kind.ADD, _ADD_NAMES),
        (Kind.MULTIPLY, _MULTIPLY_NAMES),
        (Kind.CONCAT, _CONCAT_NAMES),
        (Kind.REDUCE, _REDUCE_NAMES),
        (Kind.WEIGHT, _WEIGHT_NAMES),
        (Kind.SIZE, _SIZE_NAMES),
    ):
        if name in names:
            return kind
    if name == "pad":
        return Kind.PAD
    if name in _DIVIDE_NAMES and len(node.args) > 1 and isinstance(node.args[1], int | float):
        return Kind.PASS
    return Kind.OTHER


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a function or method node, given by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _bounds(node: fx.Node, low: float | None, high: float | None) -> tuple[Any, Any]:
    names = ("min_val", "max_val") if operator_name(node) == "hardtanh" else ("min", "max")
    return argument(node, 1, names[0], low), argument(node, 2, names[1], high)


def _spans_zero(low: Any, high: Any) -> bool:
    fits_low = low is None or (isinstance(low, int | float) and low <= 0)
    fits_high = high is None or (isinstance(high, int | float) and high >= 0)
    return fits_low and fits_high


def _positional_inplace(node: fx.Node) -> bool:
    # F.relu(x, True) and F.dropout(x, p, training, True): `inplace` is the last parameter of each.
    last_place = {
        "relu": 1,
        "relu6": 1,
        "silu": 1,
        "hardswish": 1,
        "mish": 1,
        "leaky_relu": 2,
        "elu": 2,
        "dropout": 3,
    }
    place = last_place.get(operator_name(node) or "")
    return place is not None and len(node.args) > place and bool(node.args[place])
