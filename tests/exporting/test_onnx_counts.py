"""k = ⌈d·C⌉ worked out in the graph, in float32, must be what PyTorch's side computes in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penstock.exporting.onnx.gates import Densities
from penstock.exporting.onnx.graph import GraphWriter
from penstock.gating import GatedConv2d, winner_count

onnx = pytest.importorskip("onnx", reason="pip install 'penstock[onnx]'")
runtime = pytest.importorskip("onnxruntime", reason="pip install 'penstock[onnx]'")

WIDTHS = (1, 2, 3, 7, 10, 16, 20, 24, 40, 64, 96, 100, 128, 192, 200, 320, 512, 768, 1000, 1280, 2048)


@pytest.fixture(scope="module")
def counter() -> object:
    """A session: density in, k of every width out."""
    writer = GraphWriter(17)
    densities = Densities(writer, "density")
    with torch.device("meta"):
        layers = [GatedConv2d(nn.Conv2d(1, width, 1, bias=False)) for width in WIDTHS]
    names = [densities.count(layer) for layer in layers]
    helper, proto = onnx.helper, onnx.TensorProto
    model = writer.model(
        [helper.make_tensor_value_info("density", proto.FLOAT, [])],
        [helper.make_tensor_value_info(name, proto.INT64, [1]) for name in names],
        "counts",
    )
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def _check(counter: object, density: float) -> None:
    found = counter.run(None, {"density": np.array(density, np.float32)})  # type: ignore[attr-defined]
    assert [int(k[0]) for k in found] == [winner_count(density, width) for width in WIDTHS], density


def test_every_density_with_three_digits_gives_the_same_count(counter: object) -> None:
    for thousandths in range(1, 1001):
        _check(counter, thousandths / 1000)


@given(top=st.integers(1, 2048), bottom=st.sampled_from(WIDTHS))
def test_every_density_that_is_a_number_of_channels_gives_just_that_many(
    counter: object, top: int, bottom: int
) -> None:
    _check(counter, min(top, bottom) / bottom)
