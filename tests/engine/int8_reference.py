"""The quantised network in plain PyTorch: whole numbers, and float32 in the order of docs/int8.md.

It walks the steps of a program one image at a time, densely, with masks instead of lists, and shares no line
with the kernels. Convolutions run in float64, which holds every sum exactly. `run` returns the result and the
winners of every gated layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.steps import (
    AdaptivePool,
    Add,
    Affine,
    Codes,
    Concat,
    Conv,
    Export,
    Function,
    Import,
    Linear,
    Network,
    Pack,
    Pool,
    Scale,
    Step,
)

F32 = torch.float32


def _f(number: float) -> Tensor:
    return torch.tensor(number, dtype=F32)


@dataclass
class Held:
    """A value of one image: q − zero as whole numbers where it is kept as codes, else float32; (C, H, W).

    active: which channels are stored; the others are zeros.
    """

    numbers: Tensor
    active: Tensor
    codes: Codes | None


def run(network: Network, image: Tensor, counts: dict[str, int]) -> tuple[Tensor, dict[str, Tensor]]:
    """image: (channel, height, width). counts: how many channels each gated layer computes."""
    held: dict[int, Held] = {}
    winners: dict[str, Tensor] = {}
    for step in network.steps:
        if isinstance(step, Export):
            found = held[step.inputs[0]]
            return _to_float(found), winners
        codes = network.values[step.output].codes
        if isinstance(step, Import):
            everything = torch.ones(image.shape[0], dtype=torch.bool)
            numbers = image if codes is None else _codes(image * (_f(1) / _f(codes.scale)), codes, Function())
            held[step.output] = Held(numbers, everything, codes)
        else:
            value = network.values[step.output]
            size = (value.height, value.width)
            held[step.output] = _compute(step, [held[i] for i in step.inputs], codes, size, counts, winners)
    raise AssertionError("the network exports nothing")


def _compute(
    step: Step,
    inputs: list[Held],
    codes: Codes | None,
    size: tuple[int, int],
    counts: dict[str, int],
    winners: dict[str, Tensor],
) -> Held:
    x = inputs[0]
    if isinstance(step, Pack):
        if codes is None or x.codes is not None:
            assert codes is None
            return Held(_to_float(x), x.active, None)
        return Held(_codes(x.numbers * (_f(1) / _f(codes.scale)), codes, Function()), x.active, codes)
    if isinstance(step, Conv):
        assert codes is not None
        return _conv(step, x, codes, counts, winners)
    if isinstance(step, AdaptivePool):
        assert x.codes is not None
        area = x.numbers.shape[1] * x.numbers.shape[2]
        mean = x.numbers.sum((1, 2)).to(F32) * _f(x.codes.scale) / _f(area)
        return Held(mean[:, None, None], x.active, None)
    if isinstance(step, Linear):
        assert x.codes is None
        flat, rows = x.numbers.reshape(-1), torch.from_numpy(np.ascontiguousarray(step.weights.T))
        assert flat.numel() == x.active.numel()
        value = _combine(flat, x.active, rows) + torch.from_numpy(step.bias)
        value = _function(step.function, value)
        return Held(value[:, None, None], torch.ones(len(value), dtype=torch.bool), None)
    if isinstance(step, Pool):
        assert codes is not None
        return Held(_pool(step, x.numbers, codes, size), x.active, codes)
    if isinstance(step, Affine) and x.codes is None:  # a vector
        scale = torch.ones(len(x.active)) if step.scale is None else torch.from_numpy(step.scale)
        assert step.shift is None
        return Held(_function(step.function, x.numbers * scale[:, None, None]), x.active, None)
    assert codes is not None
    return _pointwise(step, inputs, codes)


def _pointwise(step: Step, inputs: list[Held], codes: Codes) -> Held:
    curved = getattr(step, "function", Function()).name in ("silu", "gelu", "hardswish")
    inverse = _f(1) if curved else _f(1) / _f(codes.scale)
    function = getattr(step, "function", Function())
    x = inputs[0]

    def term(of: Held, factor: Tensor | None = None) -> Tensor:
        assert of.codes is not None
        scale = _f(of.codes.scale)
        k = scale * inverse if factor is None else (scale * factor * inverse)[:, None, None]
        return of.numbers.to(F32) * k

    if isinstance(step, Add):
        active = x.active | inputs[1].active
        y = term(x) + term(inputs[1])
    elif isinstance(step, Concat):
        active = torch.cat([part.active for part in inputs])
        y = torch.cat([term(part) for part in inputs])
    elif isinstance(step, Scale):
        active = x.active & inputs[1].active
        y = term(x, inputs[1].numbers.reshape(-1))
    else:
        assert isinstance(step, Affine)
        active = x.active if step.shift is None else torch.ones_like(x.active)
        y = term(x, None if step.scale is None else torch.from_numpy(step.scale))
        if step.shift is not None:
            y = y + (torch.from_numpy(step.shift) * inverse)[:, None, None]
    return _masked(_codes(y, codes, function), active, codes)


def _conv(step: Conv, x: Held, codes: Codes, counts: dict[str, int], winners: dict[str, Tensor]) -> Held:
    assert step.quantised is not None
    assert x.codes is not None
    outputs = len(step.weights)
    active, k = torch.ones(outputs, dtype=torch.bool), torch.from_numpy(step.quantised.scales)
    bias = torch.zeros(outputs) if step.bias is None else torch.from_numpy(step.bias)
    if step.gates is not None:
        gates, count = step.gates, counts[step.name]
        level = 0 if gates.levels is None else sum(count > edge for edge in gates.levels.edges)
        rho = torch.from_numpy(gates.rho)
        summary = _summaries(x, gates.summary)
        g = _combine(summary, x.active, torch.from_numpy(gates.phi)) + (
            rho if gates.levels is None else rho[level]
        )
        g = torch.where(g > 0, g, _f(0))
        order = sorted(range(outputs), key=lambda o: (-float(g[o]), o))[:count]
        active = torch.zeros(outputs, dtype=torch.bool)
        active[[o for o in order if g[o] > (gates.threshold or 0.0)]] = True
        winners[step.name] = active
        if gates.levels is not None:
            g = g * torch.from_numpy(gates.levels.gain[level])
            bias = torch.from_numpy(gates.levels.bias[level])
        k, bias = k * g, bias * g
    sums = F.conv2d(
        x.numbers[None].double(),
        torch.from_numpy(step.quantised.codes).double(),
        None,
        step.stride,
        step.padding,
        step.dilation,
        step.groups,
    )[0]
    assert float(sums.abs().max()) < 2**31
    a = sums.to(torch.int64).to(F32)
    if step.function.name not in ("silu", "gelu", "hardswish"):
        k, bias = k * (_f(1) / _f(codes.scale)), bias * (_f(1) / _f(codes.scale))
    return _masked(_codes(a * k[:, None, None] + bias[:, None, None], codes, step.function), active, codes)


def _masked(numbers: Tensor, active: Tensor, codes: Codes) -> Held:
    return Held(numbers * active[:, None, None], active, codes)


def _to_float(x: Held) -> Tensor:
    return x.numbers if x.codes is None else x.numbers.to(F32) * _f(x.codes.scale)


def _combine(x: Tensor, active: Tensor, rows: Tensor) -> Tensor:
    """Σ over active inputs in their order, one rounding after the other."""
    total = torch.zeros(rows.shape[1])
    for c in torch.nonzero(active).reshape(-1).tolist():
        total = total + x[c] * rows[c]
    return total


def _summaries(x: Held, kind: str) -> Tensor:
    assert x.codes is not None
    v, pixels = x.numbers, x.numbers.shape[1] * x.numbers.shape[2]
    unit = _f(x.codes.scale) / _f(pixels)
    if kind == "l1":
        return v.abs().sum((1, 2)).to(F32) * unit
    if kind == "l2":
        return (v * v).sum((1, 2)).double().sqrt().to(F32) * unit
    if kind == "linf":
        return v.abs().amax((1, 2)).to(F32) * unit
    total, squares = v.sum((1, 2)).double(), (v * v).sum((1, 2)).double()
    scale = _f(x.codes.scale).double()
    return ((squares - total * total / pixels) * (scale * scale) / (pixels * float(pixels))).to(F32)


def _pool(step: Pool, v: Tensor, codes: Codes, size: tuple[int, int]) -> Tensor:
    """Windows one by one: the largest code, or the rounded mean."""
    _, height, width = v.shape
    out_h, out_w = size
    made = torch.zeros(len(v), out_h, out_w, dtype=torch.int64)
    for y in range(out_h):
        for x in range(out_w):
            top, left = y * step.stride[0] - step.padding[0], x * step.stride[1] - step.padding[1]
            rows = [r for i in range(step.kernel[0]) if 0 <= (r := top + i * step.dilation[0]) < height]
            columns = [c for j in range(step.kernel[1]) if 0 <= (c := left + j * step.dilation[1]) < width]
            window = v[:, rows][:, :, columns].reshape(len(v), -1)
            if step.kind == "max":
                if window.shape[1]:
                    made[:, y, x] = window.amax(1)
                continue
            count = window.shape[1]
            if step.count_padding:
                bottom = min(top + step.kernel[0], height + step.padding[0])
                count = (bottom - top) * (min(left + step.kernel[1], width + step.padding[1]) - left)
            count = step.divisor or max(1, count)
            mean = window.sum(1).to(F32) * (_f(1) / _f(count))
            made[:, y, x] = _codes(mean, codes, Function())
    return made


def _codes(y: Tensor, codes: Codes, function: Function) -> Tensor:
    """q − zero, from y in units of the scale (functions that are more than a clamp: from real numbers)."""
    inverse = _f(1) / _f(codes.scale)
    low, high = _f(-codes.zero), _f(255 - codes.zero)
    if function.name == "leaky_relu":
        y = torch.where(y < 0, y * _f(function.slope), y)
    elif function.name in ("silu", "gelu", "hardswish"):
        y = _function(function, y) * inverse
    elif function.name in ("relu", "relu6"):
        low = _f(0)
        if function.name == "relu6":
            high = torch.minimum(high, _f(6) * inverse)
    return torch.round(torch.clamp(y, float(low), float(high))).to(torch.int64)


def _function(function: Function, v: Tensor) -> Tensor:
    """Activations as kernels/machine/curves.inl, ops/functions.inl and int8/finish.inl compute them."""
    if function.name == "none":
        return v
    if function.name == "relu":
        return torch.where(v < 0, _f(0), v)
    if function.name == "relu6":
        return torch.clamp(v, 0.0, 6.0)
    if function.name == "leaky_relu":
        return torch.where(v < 0, v * _f(function.slope), v)
    if function.name == "silu":
        return v * (_f(1) / (_f(1) + _exp(-v)))
    if function.name == "sigmoid":
        return _f(1) / (_f(1) + _exp(-v))
    if function.name == "hardsigmoid":
        return torch.clamp(v + _f(3), 0.0, 6.0) * (_f(1) / _f(6))
    if function.name == "hardswish":
        return v * torch.clamp(v + _f(3), 0.0, 6.0) * (_f(1) / _f(6))
    assert function.name == "gelu"
    return _f(0.5) * v * (_f(1) + _erf(v * _f(0.70710678)))


def _exp(x: Tensor) -> Tensor:
    x = torch.clamp(x, -87.0, 88.8)
    n = torch.round(x * _f(1.44269504))
    r = (x - n * _f(0.693359375)) - n * _f(-2.12194440e-4)
    p = _f(1.9875691500e-4)
    for term in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + _f(term)
    p = p * r * r + r + _f(1)
    return p * torch.exp2(n.double()).to(F32)


def _erf(x: Tensor) -> Tensor:
    a = x.abs()
    t, q = _f(1) / (_f(1) + _f(0.3275911) * a), a * a
    p = _f(1.061405429)
    for term in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        p = p * t + _f(term)
    far = _f(1) - p * t * _exp(-(a * a))
    near = a * (_f(1.128379167) + q * (_f(-0.376126389) + q * (_f(0.112837917) + q * _f(-0.0268661706))))
    result = torch.where(a < 0.25, near, far)
    return torch.where(x < 0, -result, result)
