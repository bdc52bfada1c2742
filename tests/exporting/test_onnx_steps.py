"""Every step a network may take, one small network each, in both forms; and random networks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import penstock as ps
from penstock.exporting import onnx_session
from penstock.gating import GatedConv2d, is_gated

pytest.importorskip("onnx", reason="pip install 'penstock[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'penstock[onnx]'")


class _Around(nn.Module):
    """A gated convolution, the step under test, and one more convolution that reads what came out."""

    def __init__(self, step: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.step = step
        self.second = nn.Conv2d(channels, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.step(torch.relu(self.first(x)))).mean((2, 3))


def _compare(network: nn.Module, images: Tensor, tolerance: float = 1e-4) -> None:
    """Skipping image by image, and masked in one batch, at three densities."""
    gated = is_gated(network)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("skipping.onnx", "masked.onnx")]
        ps.export_onnx(network, paths[0], images[:1])
        ps.export_onnx(network, paths[1], images[:1], skipping=False)
        skipping, masked = (onnx_session(path) for path in paths)
    for density in (0.3, 0.5, 1.0) if gated else (None,):
        given = {} if density is None else {"density": np.array(density, np.float32)}
        if density is not None:
            ps.set_density(network, density)
        with torch.no_grad():
            want = network(images).numpy()
        one_by_one = [skipping.run(None, {"images": image[None].numpy(), **given})[0] for image in images]
        np.testing.assert_allclose(np.concatenate(one_by_one), want, atol=tolerance, rtol=1e-4)
        together = masked.run(None, {"images": images.numpy(), **given})[0]
        np.testing.assert_allclose(together, want, atol=tolerance, rtol=1e-4)


def _overwritten(x: Tensor) -> Tensor:
    y = x.contiguous()
    y.add_(1.0)
    return x + y  # both are the new value


STEPS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), 8),
    "max pool that rounds up": (nn.MaxPool2d(3, 2, ceil_mode=True), 8),
    "average pool with padding": (nn.AvgPool2d(3, 1, 1, count_include_pad=False), 8),
    "average pool counting padding": (lambda x: F.avg_pool2d(x, 3, stride=2, padding=1), 8),
    "adaptive pool to a divisor": (nn.AdaptiveAvgPool2d(3), 8),
    "adaptive pool to any size": (nn.AdaptiveAvgPool2d((5, 4)), 8),
    "adaptive pool to a larger size": (nn.AdaptiveAvgPool2d(14), 8),
    "adaptive max pool": (nn.AdaptiveMaxPool2d(4), 8),
    "padding": (lambda x: F.pad(x, (1, 2, 0, 1)), 8),
    "reflected padding": (nn.ReflectionPad2d(2), 8),
    "padding of channels": (lambda x: F.pad(x, (0, 0, 0, 0, 2, 1)), 11),
    "padding with a value": (lambda x: F.pad(x, (1, 1), value=0.5), 8),
    "cropping": (lambda x: x[:, :, 1:-2, ::2], 8),
    "some channels": (lambda x: x[:, 2:5], 3),
    "concatenation": (lambda x: torch.cat([x, F.max_pool2d(x, 3, 1, 1), torch.sigmoid(x)], 1), 24),
    "concatenation of gated parts": (lambda x: torch.cat((x, F.avg_pool2d(x, 3, 1, 1)), dim=1), 16),
    "a sum with itself": (lambda x: x + x, 8),
    "a sum with a number": (lambda x: x + 0.25, 8),
    "a difference": (lambda x: x - F.max_pool2d(x, 3, 1, 1), 8),
    "the larger of two": (lambda x: torch.maximum(x, 0.5 * x), 8),
    "a product with a spatial map": (lambda x: x * torch.sigmoid(x.mean(1, keepdim=True)), 8),
    "a product with channel weights": (lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)), 8),
    "a quotient": (lambda x: x / 3, 8),
    "a power": (lambda x: (x + 1) ** 2, 8),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False), 8),
    "a change in place": (_overwritten, 8),
    "channel shuffle": (lambda x: x.view(x.size(0), 2, 4, 12, 12).transpose(1, 2).reshape(x.shape), 8),
    "chunks": (lambda x: torch.cat([x.chunk(2, 1)[1], x.chunk(2, 1)[0]], dim=1), 8),
    "splits": (lambda x: x.split([3, 5], dim=1)[1], 5),
    "permutation": (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2), 8),
    "nearest enlargement": (lambda x: F.interpolate(x, scale_factor=2), 8),
    "bilinear enlargement": (
        lambda x: F.interpolate(x, size=(18, 20), mode="bilinear", align_corners=False),
        8,
    ),
    "clamping": (lambda x: x.clamp(0.1, 1.0), 8),
    "clamping from above": (lambda x: x.clamp(max=0.5), 8),
}
ACTIVATIONS: tuple[nn.Module, ...] = (
    nn.ReLU6(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Hardswish(), nn.Hardsigmoid(), nn.LeakyReLU(0.2),
    nn.ELU(), nn.CELU(0.5), nn.SELU(), nn.Mish(), nn.PReLU(), nn.Sigmoid(), nn.Tanh(), nn.Softplus(),
    nn.Softsign(), nn.Hardtanh(-0.5, 0.5), nn.Softmax(dim=1), nn.BatchNorm2d(8), nn.GroupNorm(2, 8),
    nn.Upsample(scale_factor=2),
)  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_step_between_two_convolutions_gives_pytorchs_answer(
    name: str, awaken: Callable[..., nn.Module]
) -> None:
    step, channels = STEPS[name]
    images = torch.randn(3, 3, 12, 12)
    _compare(awaken(ps.add_gates(_Around(step, channels), images), images), images)


@pytest.mark.parametrize("module", ACTIVATIONS, ids=str)
def test_an_activation_or_norm_gives_pytorchs_answer(
    module: nn.Module, awaken: Callable[..., nn.Module]
) -> None:
    images = torch.randn(3, 3, 12, 12)
    after = nn.Sequential(nn.Conv2d(8, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), module, after)
    _compare(awaken(ps.add_gates(network, images), images), images)


@pytest.mark.parametrize("summary", ["l1", "l2", "linf", "variance"])
@pytest.mark.parametrize("activation", [None, nn.ReLU(), nn.SiLU(), nn.LeakyReLU(0.1)], ids=str)
def test_a_gated_layer_used_by_hand_keeps_its_summary_and_activation(
    summary: str, activation: nn.Module | None
) -> None:
    images = torch.randn(3, 3, 9, 9)
    layers = [
        GatedConv2d(
            nn.Conv2d(3, 10, 3, bias=False), nn.BatchNorm2d(10, affine=False), activation, summary=summary
        ),
        GatedConv2d(nn.Conv2d(10, 7, 3, bias=False), None, activation, summary=summary),
    ]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, 4)).eval()
    for layer in layers:
        nn.init.normal_(layer.shift)
    _compare(network, images)


@st.composite
def _networks(draw: st.DrawFn) -> tuple[nn.Module, int]:
    """A chain of blocks, each a convolution of random shape, some with a residual sum or a concatenation."""
    blocks: list[nn.Module] = []
    channels = draw(st.integers(3, 9))
    blocks.append(nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["plain", "residual", "dense", "grouped"]))
        kernel, dilation = draw(st.sampled_from([1, 3, 5])), draw(st.integers(1, 2))
        padding = dilation * (kernel // 2)
        groups = 2 if kind == "grouped" and channels % 2 == 0 else 1
        width = channels if kind == "residual" else draw(st.integers(1, 6)) * groups
        stride = draw(st.integers(1, 2)) if kind in ("plain", "grouped") else 1
        conv = nn.Conv2d(
            channels, width, kernel, stride, padding, dilation, groups,
            bias=draw(st.booleans()), padding_mode=draw(st.sampled_from(["zeros", "zeros", "replicate"])),
        )  # fmt: skip
        norm = nn.BatchNorm2d(width) if draw(st.booleans()) else nn.Identity()
        blocks.append(_Block(nn.Sequential(conv, norm), kind, draw(st.booleans())))
        channels = channels + width if kind == "dense" else width
    head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 5))
    return nn.Sequential(*blocks, head), draw(st.integers(0, 2**31))


class _Block(nn.Module):
    def __init__(self, body: nn.Module, kind: str, inplace: bool) -> None:
        super().__init__()
        self.body, self.kind, self.act = body, kind, nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "residual":
            return self.act(self.body(x) + x)
        return torch.cat([x, self.act(self.body(x))], 1) if self.kind == "dense" else self.act(self.body(x))


@settings(max_examples=12)
@given(drawn=_networks())
def test_random_networks_give_pytorchs_answers(
    awaken: Callable[..., nn.Module], drawn: tuple[nn.Module, int]
) -> None:
    network, seed = drawn
    torch.manual_seed(seed)
    images = torch.randn(3, 3, 11, 13)
    _compare(awaken(ps.add_gates(network, images), images), images)
