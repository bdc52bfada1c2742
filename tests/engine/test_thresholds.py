"""Gates with thresholds in the engine, the compiled file and ONNX: the same winners as PyTorch's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.agreement import assert_agreement
from torch import Tensor, nn

import penstock as ps
import penstock_runtime as pr
from penstock.gating import gated_layers, winner_count


@pytest.fixture(scope="module")
def fitted() -> tuple[nn.Module, Tensor]:
    network = ps.zoo.pretrained("m_cifarnet-cifar10-d50")
    data = ps.datasets.sample()
    ps.fit_thresholds(network, data, density=0.5, cap=0.7, images=48).apply(network)
    return network, network.preprocess(data.images[:8])


def test_the_engine_computes_what_the_masked_network_does(fitted: tuple[nn.Module, Tensor]) -> None:
    network, images = fitted
    engine = ps.compile(network, images, threads=2)
    agreement = assert_agreement(network, engine, images)
    assert agreement.excused <= 2
    record = engine.record(images)
    counts = np.stack([record.winners[name].sum(1) for name in engine.gated], 1)
    assert len(set(counts.sum(1).tolist())) > 4  # images differ in what they cost
    caps = [winner_count(0.7, layer.conv.out_channels) for _, layer in gated_layers(network)]
    assert (counts <= caps).all()


def test_a_density_given_at_run_time_is_the_cap(fitted: tuple[nn.Module, Tensor]) -> None:
    network, images = fitted
    engine = ps.compile(network, images)
    own, lower = engine.record(images), engine.record(images, density=0.4)
    for name, layer in gated_layers(network):
        assert (lower.winners[name].sum(1) <= winner_count(0.4, layer.conv.out_channels)).all()
    first = engine.gated[0]
    both = own.winners[first] & lower.winners[first]
    np.testing.assert_array_equal(both, lower.winners[first])  # the most salient of the same channels
    assert lower.macs.sum() < own.macs.sum()


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_compiled_file_has_the_thresholds(
    precision: str, fitted: tuple[nn.Module, Tensor], tmp_path: Path
) -> None:
    network, images = fitted
    calibration = {"calibration": images} if precision == "int8" else {}
    engine = ps.compile(network, images, precision=precision, **calibration)
    engine.save(tmp_path / "net.penstock")
    loaded = pr.load(tmp_path / "net.penstock")
    np.testing.assert_array_equal(loaded(images.numpy()), engine(images).numpy())
    own = engine.record(images)
    for name, layer in gated_layers(network):
        assert layer.threshold is not None
        chosen = own.winners[name]
        assert (own.saliencies[name][chosen] > float(layer.threshold)).all()
        room = chosen.sum(1) < winner_count(layer.density, layer.conv.out_channels)
        above = (own.saliencies[name] > float(layer.threshold)).sum(1)
        np.testing.assert_array_equal(chosen.sum(1)[room], above[room])


@pytest.mark.parametrize("form", ["skipping", "static", "masked"])
def test_onnx_computes_what_the_masked_network_does(
    form: str, fitted: tuple[nn.Module, Tensor], tmp_path: Path
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    network, images = fitted
    settings = {
        "skipping": {"lists": True},
        "static": {"static": True, "density": "own"},
        "masked": {"skipping": False},
    }[form]
    ps.export_onnx(network, tmp_path / "net.onnx", images[:1], **settings)
    session = runtime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    # Nothing is above the thresholds of a black image's layers: lists of one channel with a gain of 0.
    some = torch.cat([images[:3], torch.zeros_like(images[:1])])
    with torch.no_grad():
        wanted = network(some).numpy()
    won = {name: (layer.gains != 0).sum(1).tolist() for name, layer in gated_layers(network)}
    parts = [some.numpy()] if form == "masked" else np.split(some.numpy(), len(some))
    found = [session.run(None, {"images": part}) for part in parts]
    np.testing.assert_allclose(np.concatenate([one[0] for one in found]), wanted, atol=1e-4, rtol=0)
    if form == "skipping":
        names = [output.name for output in session.get_outputs()]
        for image, one in enumerate(found):
            for name, counts in won.items():
                assert len(one[names.index(f"channels/{name}")]) == max(1, counts[image])
