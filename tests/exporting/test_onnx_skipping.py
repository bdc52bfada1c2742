"""Exported networks in ONNX Runtime: channels that lost are not computed, and the lists say which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.exporting.onnx_answers import Pair, feeds_of, logits_of, wanted_of
from torch import nn

import penstock as ps
from penstock.exporting import onnx_session
from penstock.gating import GatedConv2d, gated_layers, winner_count
from penstock.surgery import active_mask, trace, weight_layers

onnx = pytest.importorskip("onnx", reason="pip install 'penstock[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'penstock[onnx]'")


def test_channels_that_lost_are_not_computed(gated_pair: Pair, tmp_path: Path) -> None:
    network, images = gated_pair(ps.zoo.m_cifarnet(), 32)
    model = onnx.load(ps.export_onnx(network, tmp_path / "net.onnx", images[:1]).path)
    convs = [node for node in model.graph.node if node.op_type == "Conv"]
    for conv in convs:  # what each convolution is given and gives, as further outputs
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in (conv.input[1], conv.output[0]))
    onnx.save(model, tmp_path / "open.onnx")
    session = onnx_session(tmp_path / "open.onnx")
    read = 3
    for conv, (_, layer) in zip(convs, gated_layers(network), strict=True):
        made = winner_count(0.3, layer.conv.out_channels)
        weight, features = session.run([conv.input[1], conv.output[0]], feeds_of(session, images[:1], 0.3))
        assert weight.shape == (made, read, 3, 3)
        assert features.shape[:2] == (1, made)
        read = made


def test_a_residual_sum_holds_the_union_of_what_both_sides_computed(gated_pair: Pair, tmp_path: Path) -> None:
    network, images = gated_pair(ps.zoo.resnet18(), 32)
    model = onnx.load(ps.export_onnx(network, tmp_path / "net.onnx", images[:1]).path)
    weights = {
        node.name.removesuffix("/Conv"): node.input[1] for node in model.graph.node if node.op_type == "Conv"
    }
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in weights.values())
    onnx.save(model, tmp_path / "open.onnx")
    session = onnx_session(tmp_path / "open.onnx")
    traced = trace(network, images[:1])
    ps.set_density(traced, 0.3)
    with torch.no_grad():
        traced(images[:1])
    masks = {name: layer.gains != 0 for name, layer in gated_layers(traced)}
    sizes = dict(
        zip(weights, session.run(list(weights.values()), feeds_of(session, images[:1], 0.3)), strict=True)
    )
    assert any(type(layer.input).__name__ == "Union" for layer in weight_layers(traced))
    for layer in weight_layers(traced):
        if layer.gated and layer.output_shape[2] >= 4:
            assert sizes[layer.name].shape[1] == int(active_mask(layer.input, masks, 1).sum()), layer.name


def test_the_lists_say_which_channels_were_computed(gated_pair: Pair, tmp_path: Path) -> None:
    network, images = gated_pair(ps.zoo.m_cifarnet(), 32)
    written = ps.export_onnx(network, tmp_path / "net.onnx", images[:1], lists=True)
    session = onnx_session(written.path)
    assert written.outputs == ("logits", *(f"channels/conv{place}" for place in range(8)))
    _, *lists = session.run(None, feeds_of(session, images[1:2], 0.3))
    wanted_of(network, images[1:2], 0.3)
    for found, (_, layer) in zip(lists, gated_layers(network), strict=True):
        assert layer.gains is not None
        assert sorted(found) == layer.gains[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("lists", [False, True])
def test_equal_saliencies_go_to_the_lower_index_as_in_pytorch(lists: bool, tmp_path: Path) -> None:
    images = torch.randn(2, 3, 16, 16)
    layers = [
        GatedConv2d(nn.Conv2d(*width, 3, bias=False), activation=nn.ReLU()) for width in ((3, 50), (50, 40))
    ]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 5)).eval()
    for layer in layers:  # three saliencies for all the channels
        nn.init.zeros_(layer.gate.weight)
        layer.gate.bias.data = torch.randint(1, 4, layer.gate.bias.shape).float()
    ps.export_onnx(network, tmp_path / "net.onnx", images[:1], lists=lists)
    session = onnx_session(tmp_path / "net.onnx")
    for density in (0.1, 0.3, 0.5, 0.7):
        np.testing.assert_allclose(
            logits_of(session, images, density), wanted_of(network, images, density), atol=1e-5, rtol=1e-4
        )
