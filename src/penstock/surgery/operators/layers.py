"""Rows: layers with weights, norms and windows."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from penstock.gating import GatedConv2d
from penstock.surgery.operators.row import Cutting, Kind, Operator, convolution_product, linear_product
from penstock.surgery.operators.uses import Use
from penstock.surgery.pixels import PixelConv


def _refit_convolution(module: Any) -> None:
    depthwise = is_depthwise(module)
    outputs, inputs = module.weight.shape[:2]
    module.groups = outputs if depthwise else module.groups
    module.out_channels, module.in_channels = outputs, inputs * module.groups


def _refit_linear(module: Any) -> None:
    module.out_features, module.in_features = module.weight.shape


def _refit_norm(module: Any) -> None:
    statistics = module.weight if module.running_mean is None else module.running_mean
    module.num_features = len(statistics)


def _refit_gated(module: Any) -> None:
    _refit_convolution(module.conv)
    if isinstance(module.norm, _BatchNorm) and module.norm.running_mean is not None:
        module.norm.num_features = len(module.norm.running_mean)


def is_depthwise(module: Any) -> bool:
    """Whether each output channel of a convolution reads one input channel, its own."""
    return module.groups > 1 and module.groups == module.in_channels == module.out_channels


def is_plain(module: Any) -> bool:
    """Whether a convolution runs as torch's own does: a subclass may pad, or change weights, as it runs."""
    ours = type(module)
    return ours.forward is nn.Conv2d.forward and ours._conv_forward is nn.Conv2d._conv_forward


def reads_pixels_alone(module: Any) -> bool:
    """Whether every output pixel of a convolution reads one input pixel: 1×1, no padding, no groups."""
    padded = any(module.padding) if not isinstance(module.padding, str) else False
    return is_plain(module) and set(module.kernel_size) == {1} and not padded and module.groups == 1


def _always(module: Any) -> bool:
    return True


def _never(module: Any) -> bool:
    return False


_CONVOLUTION = {
    "weight": None,
    "bias": None,
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "groups": 1,
}

CONV = Operator(
    "conv2d",
    Kind.WEIGHT,
    modules=(nn.Conv2d,),
    subclasses=True,
    settings=_CONVOLUTION,
    cutting=Cutting(
        outputs={"weight": 0, "bias": 0}, inputs={"weight": 1}, refit=_refit_convolution, carries=is_depthwise
    ),
    product=convolution_product,
)
OTHER_CONVS = Operator(
    "conv1d",
    Kind.WEIGHT,
    aliases=("conv3d",),
    modules=(_ConvNd,),
    subclasses=True,
    product=convolution_product,
)
TRANSPOSED_CONV = Operator(
    "conv_transpose2d",
    Kind.WEIGHT,
    aliases=("conv_transpose1d", "conv_transpose3d"),
    modules=(_ConvTransposeNd,),
    subclasses=True,
    product=partial(convolution_product, transposed=True),
)
LINEAR = Operator(
    "linear",
    Kind.WEIGHT,
    modules=(nn.Linear,),
    subclasses=True,
    settings={"weight": None, "bias": None},
    cutting=Cutting(
        outputs={"weight": 0, "bias": 0}, inputs={"weight": 1}, refit=_refit_linear, carries=_never
    ),
    product=linear_product,
)
# The gate's own tensors, and those of the convolution and the norm inside. With levels, shift and ρ have a
# row for each, so their channels are the last axis.
GATED_CONV = Operator(
    "GatedConv2d",
    Kind.GATED,
    functions=False,
    modules=(GatedConv2d,),
    subclasses=True,
    cutting=Cutting(
        outputs={
            "conv.weight": 0,
            "norm.running_mean": -1,
            "norm.running_var": -1,
            "shift": -1,
            "gate.weight": 1,
            "gate.bias": -1,
        },
        inputs={"conv.weight": 1, "gate.weight": 0},
        refit=_refit_gated,
        carries=_never,
    ),
    product=lambda module, before, after: convolution_product(module.conv, before, after),
)
BATCH_NORM = Operator(
    "batch_norm",
    Kind.NORM,
    functions=False,  # the functional form takes its statistics as arguments, so nothing is known of it
    modules=(_BatchNorm,),
    subclasses=True,
    cutting=Cutting(
        outputs={"weight": 0, "bias": 0, "running_mean": 0, "running_var": 0},
        inputs={},
        refit=_refit_norm,
        carries=_always,
    ),
)
LAYER_NORM = Operator(
    "layer_norm",
    Kind.OTHER,
    modules=(nn.LayerNorm,),
    settings={"normalized_shape": None, "weight": None, "bias": None, "eps": 1e-5},
)
GROUP_NORM = Operator(
    "group_norm",
    Kind.OTHER,
    modules=(nn.GroupNorm,),
    settings={"num_groups": None, "weight": None, "bias": None, "eps": 1e-5},
)
OTHER_NORMS = Operator(
    "instance_norm",
    Kind.OTHER,
    aliases=("local_response_norm",),
    modules=(nn.InstanceNorm2d, nn.LocalResponseNorm),
)
# What it skips depends on the image: the pruning methods that make it count that themselves.
PIXEL_CONV = Operator(
    "PixelConv", Kind.OTHER, functions=False, modules=(PixelConv,), subclasses=True, measured=True
)
# timm's VGG head, which torch.fx cannot look into.
CONV_MLP = Operator("ConvMlp", Kind.OTHER, functions=False, foreign=("timm.ConvMlp",), measured=True)

MAX_POOL = Operator(
    "max_pool2d",
    Kind.PASS,
    modules=(nn.MaxPool2d,),
    settings={"kernel_size": None, "stride": None, "padding": 0, "dilation": 1, "ceil_mode": False},
)


def _averages_no_padding(use: Use) -> bool:
    padding = use.setting("padding")
    padded = any(padding) if isinstance(padding, list | tuple) else padding != 0
    return use.setting("divisor_override") is None and not (padded and use.setting("count_include_pad"))


AVERAGE_POOL = Operator(
    "avg_pool2d",
    Kind.PASS,
    modules=(nn.AvgPool2d,),
    even=_averages_no_padding,
    settings={
        "kernel_size": None,
        "stride": None,
        "padding": 0,
        "ceil_mode": False,
        "count_include_pad": True,
        "divisor_override": None,
    },
)
ADAPTIVE_AVERAGE_POOL = Operator(
    "adaptive_avg_pool2d", Kind.PASS, modules=(nn.AdaptiveAvgPool2d,), settings={"output_size": None}
)
ADAPTIVE_MAX_POOL = Operator(
    "adaptive_max_pool2d", Kind.PASS, modules=(nn.AdaptiveMaxPool2d,), settings={"output_size": None}
)

ROWS = tuple(row for row in list(globals().values()) if isinstance(row, Operator))
