"""Random networks for the engine: every layer it has, in shapes nobody would choose, with lively gates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from penstock.gating import LevelNorm2d, gated_layers, set_density, set_levels, summarise
from penstock.surgery import add_gates

ACTIVATIONS = ("relu", "relu6", "silu", "gelu", "hardswish", "leaky_relu", "none")


class Residual(nn.Module):
    """x + body(x), or shortcut(x) + body(x); an activation after it or none."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut, activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.body(x) + self.shortcut(x))


class Branches(nn.Module):
    """Branches side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Excite(nn.Module):
    """Squeeze and excitation: each channel times a number made from all of them."""

    def __init__(self, channels: int, gate: nn.Module) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, max(1, channels // 2), 1)
        self.expand = nn.Conv2d(max(1, channels // 2), channels, 1)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        s = torch.relu(self.reduce(x.mean((2, 3), keepdim=True)))
        return x * self.gate(self.expand(s))


def activation(name: str) -> nn.Module:
    return {
        "relu": nn.ReLU(inplace=True),
        "relu6": nn.ReLU6(),
        "silu": nn.SiLU(),
        "gelu": nn.GELU(),
        "hardswish": nn.Hardswish(),
        "leaky_relu": nn.LeakyReLU(0.2),
        "none": nn.Identity(),
    }[name]


def randomise(network: nn.Module) -> nn.Module:
    """Statistics and scales as after training: fresh ones (γ = 1, μ = 0) hide mistakes."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                module.weight.data.uniform_(-1.5, 1.5)
                module.bias.data.normal_(0, 0.3)
    return network.eval()


def enliven(network: nn.Module, x: Tensor, spread: float = 0.3, centre: float = 1.0) -> nn.Module:
    """Random predictors whose saliencies lie around `centre` and differ from image to image."""
    hooks = []

    def calibrate(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        phi = torch.randn_like(layer.gate.weight)
        raw = summarise(inputs[0], layer.gate.summary) @ phi
        scale = spread / raw.std().clamp_min(1e-6) if raw.numel() > 1 else spread
        layer.gate.weight.data.copy_(phi * scale)
        layer.gate.bias.data.copy_(centre - (raw * scale).mean(0))

    for _, layer in gated_layers(network):
        hooks.append(layer.register_forward_pre_hook(calibrate))
    with torch.no_grad():
        network.eval()(x)
    for hook in hooks:
        hook.remove()
    return network


def randomise_levels(network: nn.Module, levels: tuple[float, ...]) -> None:
    """Levels whose values differ."""
    set_levels(network, levels)
    for _, layer in gated_layers(network):
        layer.shift.data.add_(0.3 * torch.randn_like(layer.shift))
        layer.gate.bias.data.add_(0.1 * torch.randn_like(layer.gate.bias))
        if isinstance(layer.norm, LevelNorm2d):
            layer.norm.running_mean.normal_(0, 0.2)
            layer.norm.running_var.uniform_(0.5, 2)


def draw_thresholds(draw: st.DrawFn, network: nn.Module) -> None:
    """Thresholds at some layers, about where an enlivened network's saliencies lie."""
    for _, layer in gated_layers(network):
        layer.set_threshold(draw(st.sampled_from((None, 0.0, 0.7, 1.0, 1.2))))


@dataclass(frozen=True)
class Case:
    network: nn.Module
    images: Tensor
    text: str


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A gated network with its densities set, and images for it."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    channels = draw(st.integers(1, 5))
    height, width = draw(st.integers(5, 19)), draw(st.integers(5, 19))
    images = torch.randn(draw(st.integers(1, 3)), channels, height, width)
    layers: list[nn.Module] = []
    size = (channels, height, width)
    blocks = draw(st.integers(1, 4))
    first = draw(st.integers(0, blocks - 1))  # at least one convolution
    for place in range(blocks):
        block, size = draw(_convs(size) if place == first else _blocks(size))
        layers.append(block)
    return gated_case(draw, nn.Sequential(*layers, *draw(heads(size))), images)


def gated_case(draw: st.DrawFn, network: nn.Module, images: Tensor) -> Case:
    """The network with gates, some convolutions without, and densities that differ."""
    randomise(network)
    summary = draw(st.sampled_from(("l1", "l1", "l2", "linf", "variance")))
    keep = [
        n for n, m in network.named_modules() if isinstance(m, nn.Conv2d) and draw(st.integers(0, 5)) == 0
    ]
    gated = add_gates(network, images, summary=summary, keep_dense=tuple(keep)).eval()
    names = [name for name, _ in gated_layers(gated)]
    if names:
        # Around -2 nothing is salient: whole layers switch off for an image.
        enliven(gated, images, centre=draw(st.sampled_from((1.0, 1.0, 1.0, 0.2, -2.0))))
        kind = draw(st.sampled_from(("plain", "levels", "thresholds")))
        if kind == "levels":
            randomise_levels(gated, draw(st.sampled_from(((0.3, 1.0), (0.1, 0.4, 0.6, 0.9)))))
        elif kind == "thresholds":
            draw_thresholds(draw, gated)
        set_density(gated, {name: draw(st.sampled_from((1.0, 0.7, 0.5, 0.3, 0.05))) for name in names})
    return Case(gated, images, repr(network))


Size = tuple[int, int, int]


@st.composite
def _blocks(draw: st.DrawFn, size: Size) -> tuple[nn.Module, Size]:
    kind = draw(
        st.sampled_from(
            ("conv", "conv", "conv", "residual", "residual", "concat", "pool", "norm", "excite", "dropout")
        )
    )
    if kind == "residual":
        return draw(_residuals(size))
    if kind == "concat":
        first, second = draw(st.integers(1, 9)), draw(st.integers(1, 9))
        branches = [draw(_same_size_convs(size, width)) for width in (first, second)]
        if draw(st.booleans()):
            return Branches(*branches, nn.Identity()), (first + second + size[0], *size[1:])
        return Branches(*branches), (first + second, *size[1:])
    if kind == "pool":
        return draw(pools(size))
    if kind == "norm":
        return nn.Sequential(nn.BatchNorm2d(size[0]), nn.ReLU()), size
    if kind == "excite":
        return Excite(size[0], draw(st.sampled_from((nn.Sigmoid(), nn.Hardsigmoid())))), size
    if kind == "dropout":
        return nn.Dropout(0.3), size
    return draw(_convs(size))


@st.composite
def _convs(draw: st.DrawFn, size: Size) -> tuple[nn.Module, Size]:
    channels, height, width = size
    kernel = (draw(st.sampled_from((1, 2, 3, 3, 3, 5))), draw(st.sampled_from((1, 3, 3, 3, 7))))
    dilation = draw(st.sampled_from((1, 1, 1, 2)))
    stride = draw(st.sampled_from((1, 1, 2, 3)))
    padding = tuple(draw(st.integers(0, k // 2 * dilation)) for k in kernel)
    groups = draw(st.sampled_from([g for g in (1, 1, 2, 3, channels) if channels % g == 0]))
    out = groups * draw(st.integers(1, max(1, 20 // groups)))
    after = [
        (s + 2 * p - dilation * (k - 1) - 1) // stride + 1
        for s, p, k in zip((height, width), padding, kernel, strict=True)
    ]
    if min(after) < 1 or any(
        s + 2 * p < dilation * (k - 1) + 1 for s, p, k in zip((height, width), padding, kernel, strict=True)
    ):
        kernel, padding, dilation, stride, after = (1, 1), (0, 0), 1, 1, [height, width]
    bias = draw(st.booleans())
    parts: list[nn.Module] = [nn.Conv2d(channels, out, kernel, stride, padding, dilation, groups, bias=bias)]
    if draw(st.integers(0, 3)):
        parts.append(nn.BatchNorm2d(out))
    parts.append(activation(draw(st.sampled_from(ACTIVATIONS))))
    return nn.Sequential(*parts), (out, after[0], after[1])


@st.composite
def _same_size_convs(draw: st.DrawFn, size: Size, out: int) -> nn.Module:
    kernel = draw(st.sampled_from((1, 3)))
    return nn.Sequential(
        nn.Conv2d(size[0], out, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(out),
        activation(draw(st.sampled_from(("relu", "none", "silu")))),
    )


@st.composite
def _residuals(draw: st.DrawFn, size: Size) -> tuple[nn.Module, Size]:
    widens = draw(st.booleans())
    out = draw(st.integers(1, 24)) if widens else size[0]
    middle = draw(st.integers(1, 16))
    body = nn.Sequential(
        draw(_same_size_convs(size, middle)), draw(_same_size_convs((middle, *size[1:]), out))
    )
    shortcut = draw(_same_size_convs(size, out)) if widens else nn.Identity()
    return Residual(body, shortcut, activation(draw(st.sampled_from(("relu", "none", "leaky_relu"))))), (
        out,
        *size[1:],
    )


@st.composite
def pools(draw: st.DrawFn, size: Size) -> tuple[nn.Module, Size]:
    kernel = draw(st.integers(1, min(4, *size[1:])))
    stride = draw(st.integers(1, 3))
    padding = draw(st.integers(0, kernel // 2))
    ceil = draw(st.booleans())
    pool: nn.Module
    if draw(st.booleans()):
        pool = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
    else:
        pool = nn.AvgPool2d(kernel, stride, padding, ceil_mode=ceil, count_include_pad=draw(st.booleans()))
    height, width = pool(torch.zeros(1, 1, *size[1:])).shape[2:]
    return pool, (size[0], height, width)


@st.composite
def heads(draw: st.DrawFn, size: Size) -> list[nn.Module]:
    kind = draw(st.sampled_from(("average", "average", "maximum", "adaptive", "flat", "map")))
    if kind == "map":
        return []
    if kind == "flat":
        return [nn.Flatten(), nn.Linear(size[0] * size[1] * size[2], draw(st.integers(1, 70)))]
    if kind == "adaptive":
        rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        return [nn.AdaptiveAvgPool2d((rows, columns)), nn.Flatten(), nn.Linear(size[0] * rows * columns, 5)]
    pool = nn.AdaptiveAvgPool2d(1) if kind == "average" else nn.AdaptiveMaxPool2d(1)
    return [pool, nn.Flatten(), nn.Linear(size[0], 7), nn.ReLU(), nn.Linear(7, 3)]
