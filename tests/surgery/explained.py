"""A network with gates, checked to answer as before, and the reason that is given for one convolution."""

from __future__ import annotations

import torch
from tests.surgery.networks import randomise
from torch import Tensor, nn

from penstock.surgery import Explanation, add_gates, explain

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5))


def convert(model: nn.Module, images: Tensor = IMAGES) -> Explanation:
    """Gate a network, insist on equal outputs at density 1, and return the explanation."""
    randomise(model).eval()
    gated = add_gates(model, images)
    with torch.no_grad():
        expected, actual = model(images), gated(images)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    return explain(gated)


def reason(model: nn.Module, name: str = "0") -> str:
    told = convert(model)
    assert not told[name].gated, str(told)
    return told[name].reason


def head(channels: int) -> nn.Sequential:
    """What makes a little network whole: its last convolution is never gated."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))
