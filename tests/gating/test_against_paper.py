"""The gated layer against the paper's section 3, written a second time, in numpy and from the text alone.

Nothing of Penstock is used on the reference's side: conv is a sum over taps, norm uses the population's mean
and variance, ss carries 1/HW in front of every reduction, g = (ss·φ + ρ)₊, wta keeps the ⌈d·C⌉ largest sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from penstock.gating import GatedConv2d

CONFIGURATIONS = 1000
EPSILON = 1e-5  # torch's default, and the paper's "small ε"


def conv(
    x: np.ndarray, theta: np.ndarray, stride: int, padding: int, dilation: int, groups: int
) -> np.ndarray:
    """The weighted sum over the k² taps and the input channels of each output channel's group."""
    n, _, h, w = x.shape
    c_out, group_in, kh, kw = theta.shape
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height = (h + 2 * padding - dilation * (kh - 1) - 1) // stride + 1
    width = (w + 2 * padding - dilation * (kw - 1) - 1) // stride + 1
    out = np.zeros((n, c_out, height, width))
    for o in range(c_out):
        first = (o // (c_out // groups)) * group_in
        for i in range(group_in):
            for a in range(kh):
                for b in range(kw):
                    top, left = a * dilation, b * dilation
                    taps = padded[
                        :,
                        first + i,
                        top : top + stride * height : stride,
                        left : left + stride * width : stride,
                    ]
                    out[:, o] += theta[o, i, a, b] * taps
    return out


def norm(z: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return (z - mean[:, None, None]) / np.sqrt(variance[:, None, None] + EPSILON)


def ss(x: np.ndarray, kind: str) -> np.ndarray:
    n, c, h, w = x.shape
    flat = x.reshape(n, c, h * w)
    reductions = {
        "l1": lambda v: np.abs(v).sum(-1),
        "l2": lambda v: np.sqrt((v * v).sum(-1)),
        "linf": lambda v: np.abs(v).max(-1),
        "variance": lambda v: ((v - v.mean(-1, keepdims=True)) ** 2).mean(-1),
    }
    return reductions[kind](flat) / (h * w)


def wta(z: np.ndarray, k: int) -> np.ndarray:
    """An entry stays when fewer than k are larger in size; an equal one before it counts as larger."""
    kept = np.zeros_like(z)
    for row in range(z.shape[0]):
        sizes = np.abs(z[row])
        for c in range(z.shape[1]):
            rivals = int((sizes > sizes[c]).sum()) + int((sizes[:c] == sizes[c]).sum())
            if rivals < k:
                kept[row, c] = z[row, c]
    return kept


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


ACTIVATIONS = {
    "relu": (lambda: nn.ReLU(), lambda v: np.maximum(v, 0)),
    "relu6": (lambda: nn.ReLU6(), lambda v: np.clip(v, 0, 6)),
    "silu": (lambda: nn.SiLU(), lambda v: v * sigmoid(v)),
    "gelu": (
        lambda: nn.GELU(),
        lambda v: v * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(v / math.sqrt(2))),
    ),
    "hardswish": (lambda: nn.Hardswish(), lambda v: v * np.clip(v + 3, 0, 6) / 6),
    "leaky": (lambda: nn.LeakyReLU(0.1), lambda v: np.where(v > 0, v, 0.1 * v)),
    "none": (lambda: None, lambda v: v),
}


@dataclass(frozen=True)
class Configuration:
    batch: int
    groups: int
    c_in: int
    c_out: int
    size: tuple[int, int]
    kernel: int
    stride: int
    padding: int
    dilation: int
    twentieths: int  # the density, exactly
    summary: str
    activation: str
    normed: bool
    training: bool
    ties: bool


def draw(rng: np.random.Generator) -> Configuration:
    groups = int(rng.choice([1, 1, 2, 3]))
    kernel, dilation = int(rng.choice([1, 2, 3])), int(rng.choice([1, 1, 2]))
    least = dilation * (kernel - 1) + 1
    return Configuration(
        batch=int(rng.integers(2, 4)),
        groups=groups,
        c_in=groups * int(rng.integers(1, 4)),
        c_out=groups * int(rng.integers(1, 5)),
        size=(int(rng.integers(least + 1, 8)), int(rng.integers(least + 1, 8))),
        kernel=kernel,
        stride=int(rng.choice([1, 1, 2])),
        padding=int(rng.integers(0, kernel)),
        dilation=dilation,
        twentieths=int(rng.integers(1, 21)),
        summary=str(rng.choice(["l1", "l2", "linf", "variance"])),
        activation=str(rng.choice(list(ACTIVATIONS), p=[0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])),
        normed=bool(rng.random() < 0.8),
        training=bool(rng.random() < 0.5),
        ties=bool(rng.random() < 0.2),
    )


def check(case: Configuration, rng: np.random.Generator) -> None:
    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    x = random(case.batch, case.c_in, *case.size)
    theta = random(case.c_out, case.c_in // case.groups, case.kernel, case.kernel)
    phi, rho, beta = random(case.c_in, case.c_out), random(case.c_out), random(case.c_out)
    if case.ties:  # saliencies then come from a handful of exact values, many of them equal
        phi[:] = 0
        rho = rng.choice([-1.0, 0.0, 0.5, 1.0], case.c_out).astype(np.float32)
    mean, variance = random(case.c_out), rng.uniform(0.1, 2, case.c_out).astype(np.float32)

    plain = nn.Conv2d(
        case.c_in, case.c_out, case.kernel, case.stride, case.padding, case.dilation, case.groups, bias=False
    )
    norm_module = nn.BatchNorm2d(case.c_out, affine=False) if case.normed else None
    layer = GatedConv2d(
        plain,
        norm_module,
        ACTIVATIONS[case.activation][0](),
        summary=case.summary,
        density=case.twentieths / 20,
    ).train(case.training)
    with torch.no_grad():
        plain.weight.copy_(torch.from_numpy(theta))
        layer.gate.weight.copy_(torch.from_numpy(phi))
        layer.gate.bias.copy_(torch.from_numpy(rho))
        layer.shift.copy_(torch.from_numpy(beta))
        if norm_module is not None:
            norm_module.running_mean.copy_(torch.from_numpy(mean))  # type: ignore[union-attr]
            norm_module.running_var.copy_(torch.from_numpy(variance))  # type: ignore[union-attr]
    # Training with gradients may take another path through memory than evaluation.
    with torch.set_grad_enabled(case.training):
        out = layer(torch.from_numpy(x)).detach().double().numpy()

    wide = [array.astype(np.float64) for array in (x, theta, phi, rho, beta, mean, variance)]
    x, theta, phi, rho, beta, mean, variance = wide
    g = np.maximum(ss(x, case.summary) @ phi + rho, 0)
    k = -(-case.twentieths * case.c_out // 20)
    pi = wta(g, k)
    z = conv(x, theta, case.stride, case.padding, case.dilation, case.groups)
    if case.normed:
        if case.training:
            mean, variance = z.mean((0, 2, 3)), z.var((0, 2, 3))
        z = norm(z, mean, variance)
    expected = ACTIVATIONS[case.activation][1](pi[:, :, None, None] * (z + beta[:, None, None]))

    assert layer.gains is not None
    np.testing.assert_allclose(layer.gains.detach().numpy(), pi, rtol=1e-5, atol=1e-5, err_msg=str(case))
    tolerance = 1e-5 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance, err_msg=str(case))
    suppressed = np.broadcast_to((pi == 0)[:, :, None, None], out.shape)
    assert (out[suppressed] == 0).all(), case


@pytest.mark.parametrize("part", range(4))
def test_the_layer_equals_the_papers_equations_on_a_thousand_random_configurations(part: int) -> None:
    share = CONFIGURATIONS // 4
    for seed in range(part * share, (part + 1) * share):
        rng = np.random.default_rng(seed)
        check(draw(rng), rng)
