"""Random small CNNs for hypothesis: residuals, concatenations, squeeze-excite, depthwise, grouped, padded."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_": torch.relu_,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "clamp": lambda x: x.clamp(0, 6),
    "swish by hand": lambda x: x * x.sigmoid(),
    "sigmoid": torch.sigmoid,
    "none": lambda x: x,
}


class Unit(nn.Module):
    """conv → norm (perhaps) → activation."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, groups: int, norm: bool, activation: str
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=not norm)
        self.norm = nn.BatchNorm2d(outputs) if norm else nn.Identity()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](self.norm(self.conv(x)))


class Residual(nn.Module):
    """body(x) + x, the sum in place or not, an activation after it."""

    def __init__(self, body: nn.Module, inplace: bool, activation: str) -> None:
        super().__init__()
        self.body, self.inplace, self.activation = body, inplace, activation

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.inplace:
            y += x
        else:
            y = torch.add(x, y)
        return ACTIVATIONS[self.activation](y)


class Branches(nn.Module):
    """Two bodies side by side."""

    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.one(x), x, self.two(x)), dim=1)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, 2, 1)
        self.expand = nn.Conv2d(2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True)))).sigmoid()


class PadChannels(nn.Module):
    """The parameter-free shortcut of CIFAR ResNets: more channels, fewer pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2))


class Net(nn.Module):
    def __init__(self, body: nn.Sequential, head: str, features: int) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(features, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        if self.head == "mean":
            x = x.mean((2, 3))
        elif self.head == "view":
            x = x.view(x.size(0), -1)
        else:
            x = torch.flatten(F.adaptive_avg_pool2d(x, 2), 1)
        return self.fc(self.dropout(x))


@st.composite
def units(draw: st.DrawFn, inputs: int, outputs: int | None = None) -> tuple[nn.Module, int]:
    width = draw(st.integers(2, 9)) if outputs is None else outputs
    groups = draw(st.sampled_from([g for g in (1, 1, 2, 3) if inputs % g == 0 and width % g == 0]))
    if outputs in (None, inputs) and draw(st.integers(0, 5)) == 0:
        width, groups = inputs, inputs  # depthwise
    kernel = draw(st.sampled_from([1, 3]))
    activation = draw(st.sampled_from([*ACTIVATIONS, "relu", "relu", "none"]))
    return Unit(inputs, width, kernel, groups, draw(st.booleans()), activation), width


@st.composite
def networks(draw: st.DrawFn) -> Net:
    """A network for images of (3, 8, 8), from two to six parts."""
    parts: list[nn.Module] = []
    channels, size = 3, 8
    for _ in range(draw(st.integers(2, 6))):
        kind = draw(
            st.sampled_from(["unit", "unit", "residual", "branches", "pool", "se", "pad", "norm", "dropout"])
        )
        if kind == "unit":
            part, channels = draw(units(channels))
        elif kind == "residual":
            first, width = draw(units(channels))
            second, _ = draw(units(width, channels))
            activation = draw(st.sampled_from(["relu", "relu_", "none"]))
            part = Residual(nn.Sequential(first, second), draw(st.booleans()), activation)
        elif kind == "branches":
            one, left = draw(units(channels))
            two, right = draw(units(channels))
            part, channels = Branches(one, two), left + channels + right
        elif kind == "se":
            part = SqueezeExcite(channels)
        elif kind == "norm":
            part = nn.BatchNorm2d(channels)
        elif kind == "dropout":
            part = nn.Dropout2d(0.3)
        elif size < 4:
            continue
        elif kind == "pool":
            part, size = draw(st.sampled_from([nn.MaxPool2d(2), nn.AvgPool2d(2)])), size // 2
        else:
            part, channels, size = PadChannels(), channels + 3, size // 2
        parts.append(part)
    head = draw(st.sampled_from(["mean", "view", "flatten"]))
    features = channels * {"mean": 1, "view": size * size, "flatten": 4}[head]
    return Net(nn.Sequential(Unit(3, 3, 3, 1, True, "relu"), *parts), head, features)
