"""Steps between a convolution and what reads it: those that keep zeros, and those that do not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.surgery.explained import convert, head, reason
from torch import Tensor, nn

ACTIVATIONS = [
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.ReLU6(),
    nn.SiLU(),
    nn.GELU(),
    nn.Hardswish(),
    nn.LeakyReLU(0.1),
    nn.ELU(),
    nn.Mish(),
    nn.PReLU(),
    nn.PReLU(6),
    nn.Tanh(),
    nn.Hardtanh(),
    nn.Identity(),
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
def test_activations_with_f0_equal_0_are_fine(activation: nn.Module) -> None:
    told = convert(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), activation, head(6)))
    assert told["0"].gated


@pytest.mark.parametrize(
    "activation",
    [
        nn.Sigmoid(),
        nn.Softplus(),
        nn.Hardsigmoid(),
        nn.LogSigmoid(),
        nn.Softmax(dim=1),
        nn.Hardtanh(0.5, 1.0),
    ],
    ids=lambda a: type(a).__name__,
)
def test_activations_with_f0_other_than_0_are_refused_by_name(activation: nn.Module) -> None:
    told = reason(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), activation, head(6)))
    assert type(activation).__name__ in told
    assert "zero" in told


class Functional(nn.Module):
    """conv → norm → a functional step → linear."""

    def __init__(self, step) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.step = step
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.step(self.norm(self.conv(x))).mean((2, 3)))


@pytest.mark.parametrize(
    "step",
    [
        F.relu,
        torch.relu,
        torch.relu_,
        lambda x: x.relu_(),
        lambda x: x.clamp(min=0),
        lambda x: torch.clamp(x, 0, 6),
        lambda x: F.leaky_relu(x, 0.2, True),
        lambda x: F.hardswish(x),
        lambda x: x * torch.sigmoid(x),
        lambda x: x * F.relu6(x + 3.0) / 6.0,
        lambda x: F.dropout(F.max_pool2d(F.silu(x), 2), 0.5, False),
        lambda x: F.avg_pool2d(x, 3, 2, padding=1).tanh(),
        lambda x: 2 * x,
        lambda x: F.interpolate(F.gelu(x), scale_factor=2),
    ],
)
def test_functional_steps_that_keep_zeros_are_fine(step) -> None:
    assert convert(Functional(step))["conv"].gated


@pytest.mark.parametrize(
    ("step", "word"),
    [
        (torch.sigmoid, "sigmoid"),
        (lambda x: x + 1.0, "add"),
        (lambda x: x.exp(), "exp"),
        (lambda x: x.clamp(min=0.1), "clamp"),
        (lambda x: torch.cos(x), "cos"),
        (lambda x: F.pad(x, (1, 1), value=1.0).softmax(1), "softmax"),
    ],
)
def test_functional_steps_that_lose_zeros_are_refused_by_name(step, word: str) -> None:
    assert word in reason(Functional(step), "conv")
