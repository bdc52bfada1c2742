"""Random networks with depthwise convolutions behind gates, and everything that can stand after them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from tests.engine.networks import (
    ACTIVATIONS,
    Branches,
    Case,
    Excite,
    Residual,
    Size,
    activation,
    gated_case,
    heads,
    pools,
)
from torch import nn

_AFTER = ("relu6", "silu", "hardswish", "leaky_relu", "sigmoid", "none")


@st.composite
def separable_cases(draw: st.DrawFn) -> Case:
    """One to three blocks: a convolution, a depthwise one, steps on its result, and who reads that."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    size: Size = (draw(st.integers(1, 6)), draw(st.integers(5, 15)), draw(st.integers(5, 15)))
    images = torch.randn(draw(st.integers(1, 3)), *size)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 3))):
        block, size = draw(_blocks(size))
        layers.append(block)
    return gated_case(draw, nn.Sequential(*layers, *draw(heads(size))), images)


@st.composite
def _blocks(draw: st.DrawFn, size: Size) -> tuple[nn.Module, Size]:
    hidden, kernel = draw(st.integers(2, 24)), draw(st.sampled_from((1, 3)))
    first = nn.Conv2d(size[0], hidden, kernel, padding=kernel // 2, bias=False)
    parts: list[nn.Module] = [first, nn.BatchNorm2d(hidden), activation(draw(st.sampled_from(ACTIVATIONS)))]
    depthwise, size = draw(_depthwise((hidden, *size[1:])))
    parts.append(depthwise)
    for _ in range(draw(st.integers(0, 2))):
        part, size = draw(_steps(size))
        parts.append(part)
    reader = draw(st.sampled_from(("1x1", "1x1", "1x1", "padded", "grouped", "none")))
    if reader != "none":
        out, kernel = draw(st.integers(1, 20)), 3 if reader == "padded" else 1
        groups = size[0] if reader == "grouped" else 1
        stride = draw(st.sampled_from((1, 1, 2)))
        bias = draw(st.booleans())
        parts.append(nn.Conv2d(size[0], out * groups, kernel, stride, kernel // 2, groups=groups, bias=bias))
        size = (out * groups, (size[1] - 1) // stride + 1, (size[2] - 1) // stride + 1)
        parts.append(activation(draw(st.sampled_from(ACTIVATIONS))))
    return nn.Sequential(*parts), size


@st.composite
def _depthwise(draw: st.DrawFn, size: Size, same_size: bool = False) -> tuple[nn.Module, Size]:
    channels, height, width = size
    kernel = draw(st.sampled_from([k for k in (1, 3, 3, 5) if k <= min(height, width)]))
    stride = 1 if same_size else draw(st.sampled_from((1, 1, 2)))
    padding = kernel // 2 if same_size else draw(st.sampled_from((0, kernel // 2)))
    norm = draw(st.booleans())
    conv = nn.Conv2d(
        channels, channels, kernel, stride, padding, groups=channels, bias=not norm or draw(st.booleans())
    )
    name = draw(st.sampled_from(_AFTER))
    parts: list[nn.Module] = [conv]
    if norm:
        parts.append(nn.BatchNorm2d(channels))
    parts.append(nn.Sigmoid() if name == "sigmoid" else activation(name))
    after = [(side + 2 * padding - kernel) // stride + 1 for side in (height, width)]
    return nn.Sequential(*parts), (channels, after[0], after[1])


@st.composite
def _steps(draw: st.DrawFn, size: Size) -> tuple[nn.Module, Size]:
    """What may come between a depthwise convolution and its reader."""
    kind = draw(st.sampled_from(("excite", "excite", "pool", "norm", "sum", "concat", "depthwise", "two")))
    if kind == "excite":
        return Excite(size[0], draw(st.sampled_from((nn.Sigmoid(), nn.Hardsigmoid())))), size
    if kind == "pool":
        return draw(pools(size))
    if kind == "norm":
        return nn.Sequential(nn.BatchNorm2d(size[0]), draw(st.sampled_from((nn.SiLU(), nn.Sigmoid())))), size
    if kind == "depthwise":
        return draw(_depthwise(size))
    body, _ = draw(_depthwise(size, same_size=True))
    if kind == "concat":
        return Branches(body, nn.Identity()), (2 * size[0], *size[1:])
    if kind == "two":
        other, _ = draw(_depthwise(size, same_size=True))
        return Residual(body, other, activation(draw(st.sampled_from(("relu", "none"))))), size
    return Residual(body, nn.Identity(), activation(draw(st.sampled_from(("relu", "none"))))), size
