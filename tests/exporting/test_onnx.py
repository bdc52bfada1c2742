"""Whole networks through ONNX Runtime: the same logits as PyTorch at every density, in every form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.exporting.onnx_answers import Pair, feeds_of, logits_of, wanted_of
from tests.surgery.networks import MODELS, OUTSIDE
from torch import Tensor, nn

import penstock as ps
from penstock.exporting import onnx_session
from penstock.gating import gated_layers, is_gated, set_levels
from penstock.measuring.int8 import openvino_core

onnx = pytest.importorskip("onnx", reason="pip install 'penstock[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'penstock[onnx]'")


DENSITIES = (0.3, 0.5, 1.0)


def _short_vgg() -> nn.Module:
    """VGG-16-BN with one small linear layer instead of its 120 million weights."""
    network = ps.zoo.vgg16_bn()
    network.classifier = nn.Linear(512 * 7 * 7, 10)
    return network


class _OddsAndEnds(nn.Module):
    """Steps whose operators changed between opsets: reductions and GELU; and a gated residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.GELU())
        self.one = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.GELU("tanh"))
        self.two = nn.Sequential(nn.Conv2d(12, 12, 1, bias=False), nn.BatchNorm2d(12))
        self.squeeze = nn.Sequential(
            nn.Conv2d(12, 4, 1), nn.Hardswish(), nn.Conv2d(4, 12, 1), nn.Hardsigmoid()
        )
        self.last = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.two(self.one(x))
        x = torch.relu(x + y * self.squeeze(y.mean((2, 3), keepdim=True)))
        return self.last(torch.cat([x.amax((2, 3)), x.sum((2, 3)) / 100], dim=1))


def _timm(name: str) -> nn.Module:
    return pytest.importorskip("timm").create_model(name, pretrained=False, num_classes=10)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "M-CifarNet": (ps.zoo.m_cifarnet, 32),
    "ResNet-18": (ps.zoo.resnet18, 64),
    "VGG-16-BN": (_short_vgg, 32),
    "timm resnet18": (lambda: _timm("resnet18"), 64),
    "timm regnetx_002": (lambda: _timm("regnetx_002"), 64),
    "timm mobilenetv3_small_100": (lambda: _timm("mobilenetv3_small_100"), 64),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_equal_pytorchs_at_every_density_with_one_file(
    name: str, gated_pair: Pair, tmp_path: Path
) -> None:
    make, size = NETWORKS[name]
    network, images = gated_pair(make(), size)
    ps.export_onnx(network, tmp_path / "net.onnx", images[:1])
    session = onnx_session(tmp_path / "net.onnx")
    for density in DENSITIES:
        want = wanted_of(network, images[:2], density)
        np.testing.assert_allclose(logits_of(session, images[:2], density), want, atol=1e-4, rtol=0)
        chosen = [(layer.gains[:2] != 0) for _, layer in gated_layers(network) if layer.gains is not None]
        assert density == 1.0 or any(not torch.equal(gains[0], gains[1]) for gains in chosen)


@pytest.mark.soak
@pytest.mark.timeout(1800)  # VGG-16 is half a gigabyte
@pytest.mark.parametrize("name", OUTSIDE)
def test_every_network_of_the_conversion_list_is_exported(
    name: str, gated_pair: Pair, tmp_path: Path
) -> None:
    pytest.importorskip("timm")
    network, images = gated_pair(MODELS[name][0](), 128 if "inception" in name else 64)
    gated = is_gated(network)
    for skipping in (True, False):
        ps.export_onnx(network, tmp_path / "net.onnx", images[:1], skipping=skipping)
        session = onnx_session(tmp_path / "net.onnx")
        for density in DENSITIES if gated else (None,):
            want = wanted_of(network, images[:2], density)
            error = np.abs(logits_of(session, images[:2], density) - want).max()
            # Random weights can make the network itself amplify rounding; float32 noise is relative.
            assert error <= 1e-4 * max(1.0, 10 * np.abs(want).max()), (skipping, density)


def test_the_density_input_has_the_networks_own_density_as_default(gated_pair: Pair, tmp_path: Path) -> None:
    network, images = gated_pair(ps.zoo.m_cifarnet(), 32)
    ps.set_density(network, 0.4)
    ps.export_onnx(network, tmp_path / "net.onnx", images[:1])
    session = onnx_session(tmp_path / "net.onnx")
    want = wanted_of(network, images)
    for asked in (None, 0.0, float("nan"), -1.0):
        np.testing.assert_allclose(logits_of(session, images, asked), want, atol=1e-5)
    full = wanted_of(network, images, 1.0)
    for asked in (1.0, 1.5, float("inf")):
        np.testing.assert_allclose(logits_of(session, images, asked), full, atol=1e-5)


def test_layers_with_densities_of_their_own_keep_them(gated_pair: Pair, tmp_path: Path) -> None:
    network, images = gated_pair(ps.zoo.m_cifarnet(), 32)
    ps.set_density(network, {"conv1": 0.2, "conv4": 0.7})
    want = wanted_of(network, images)
    for density in (None, "own"):
        ps.export_onnx(network, tmp_path / "net.onnx", images[:1], density=density)
        np.testing.assert_allclose(
            logits_of(onnx_session(tmp_path / "net.onnx"), images, None), want, atol=1e-5
        )


def test_a_fixed_density_leaves_no_density_input(gated_pair: Pair, tmp_path: Path) -> None:
    network, images = gated_pair(ps.zoo.m_cifarnet(), 32)
    written = ps.export_onnx(network, tmp_path / "net.onnx", images[:1], density=0.3)
    assert written.inputs == ("images",)
    assert written.density == 0.3
    found = logits_of(onnx_session(written.path), images, None)
    np.testing.assert_allclose(found, wanted_of(network, images, 0.3), atol=1e-5)


def test_the_masked_form_takes_any_batch(gated_pair: Pair, tmp_path: Path) -> None:
    network, images = gated_pair(ps.zoo.resnet18(), 32)
    ps.export_onnx(network, tmp_path / "net.onnx", images[:1], skipping=False)
    session = onnx_session(tmp_path / "net.onnx")
    for density in DENSITIES:
        want = wanted_of(network, images, density)
        for batch in (1, 3, 4):
            found = session.run(None, feeds_of(session, images[:batch], density))[0]
            np.testing.assert_allclose(found, want[:batch], atol=1e-4)


@pytest.mark.parametrize("skipping", [True, False])
@pytest.mark.parametrize("fixed", [None, 0.3])
def test_levels_follow_the_density(
    skipping: bool, fixed: float | None, gated_pair: Pair, tmp_path: Path
) -> None:
    network, images = gated_pair(ps.zoo.resnet18(), 32)
    set_levels(network, (0.3, 0.5, 1.0))
    for _, layer in gated_layers(network):
        for table in (layer.shift.data, layer.gate.bias.data, layer.norm.running_mean):
            table.add_(0.2 * torch.randn_like(table))
        layer.norm.running_var.mul_(torch.empty_like(layer.norm.running_var).uniform_(0.5, 2))
    ps.export_onnx(network, tmp_path / "net.onnx", images[:1], skipping=skipping, density=fixed)
    session = onnx_session(tmp_path / "net.onnx")
    for density in (0.1, 0.4, 0.45, 1.0) if fixed is None else (fixed,):
        want = wanted_of(network, images[:2], density)
        found = logits_of(session, images[:2], density if fixed is None else None)
        np.testing.assert_allclose(found, want, atol=1e-4 * np.abs(want).max())


def test_a_network_without_gates_is_written_as_it_is_for_any_batch(awaken: Any, tmp_path: Path) -> None:
    images = torch.randn(3, 3, 64, 64)
    network = awaken(ps.zoo.resnet18(), images)
    written = ps.export_onnx(network, tmp_path / "net.onnx", images)
    assert (written.inputs, written.gated_layers) == (("images",), 0)
    kinds = {node.op_type for node in onnx.load(written.path).graph.node}
    assert not kinds & {"BatchNormalization", "TopK", "Gather"}
    found = onnx_session(written.path).run(None, {"images": images.numpy()})[0]
    np.testing.assert_allclose(found, wanted_of(network, images), atol=1e-4)


@pytest.mark.parametrize("opset", [17, 18, 20, 21])
def test_every_opset_gives_the_same_answer(opset: int, gated_pair: Pair, tmp_path: Path) -> None:
    network, images = gated_pair(_OddsAndEnds(), 16)
    written = ps.export_onnx(network, tmp_path / "net.onnx", images[:1], opset=opset)
    model = onnx.load(written.path)
    assert [entry.version for entry in model.opset_import] == [opset]
    assert {node.domain for node in model.graph.node} == {""}
    np.testing.assert_allclose(
        logits_of(onnx_session(written.path), images[:1], 0.5), wanted_of(network, images[:1], 0.5), atol=1e-4
    )


def test_openvino_runs_the_static_form(gated_pair: Pair, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="pip install 'penstock[compare]'")
    network, images = gated_pair(ps.zoo.resnet18(), 32)
    written = ps.export_onnx(network, tmp_path / "net.onnx", images[:1], density=0.5, static=True)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(written.path), strict_mode=True, data_prop=True)
    unions = [node for node in inferred.graph.node if node.op_type == "NonZero"]
    assert unions == []
    compiled = openvino_core().compile_model(written.path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    want = wanted_of(network, images[:2], 0.5)
    found = np.concatenate([compiled([image[None].numpy()])[0] for image in images[:2]])
    np.testing.assert_allclose(found, want, atol=1e-4)


def test_openvino_runs_the_masked_form_at_any_density(gated_pair: Pair, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="pip install 'penstock[compare]'")
    network, images = gated_pair(ps.zoo.m_cifarnet(), 32)
    ps.export_onnx(network, tmp_path / "net.onnx", images[:1], skipping=False, density="input")
    compiled = openvino_core().compile_model(
        tmp_path / "net.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    for density in DENSITIES:
        found = compiled({"images": images.numpy(), "density": np.array(density, np.float32)})[0]
        np.testing.assert_allclose(found, wanted_of(network, images, density), atol=1e-4)
