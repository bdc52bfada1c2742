"""Constants behind depthwise convolutions in ONNX: equal to the masked network, and really skipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.engine.networks import Case, Excite, enliven, randomise
from tests.engine.separable import separable_cases
from torch import Tensor, nn

import penstock as ps
from penstock.errors import ExportError
from penstock.exporting import onnx_session
from penstock.gating import gated_layers

onnx = pytest.importorskip("onnx", reason="pip install 'penstock[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'penstock[onnx]'")

_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@settings(max_examples=15, suppress_health_check=[*_RELAXED, HealthCheck.filter_too_much])
@given(separable_cases(), st.sampled_from((None, 0.5, 0.3)))
def test_on_random_networks_the_export_equals_the_masked_network(
    tmp_path_factory: pytest.TempPathFactory, case: Case, density: float | None
) -> None:
    exact = copy.deepcopy(case.network).double()
    assume(any(True for _ in gated_layers(exact)))
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    try:
        ps.export_onnx(case.network, path, case.images[:1], density=density)
    except ExportError as error:  # the networks are the engine's, which has a little more
        assume("ceil_mode" not in str(error))
        raise
    if density is not None:
        ps.set_density(exact, density)
    session = onnx_session(path)
    given_density = {"density": np.array(-1, np.float32)} if density is None else {}
    for image in case.images:
        with torch.no_grad():
            want = exact(image[None].double()).numpy()
        assume(not _near_tie(exact))
        found = session.run(None, {"images": image[None].numpy(), **given_density})[0]
        # Random predictors enlarge the rounding of single precision; a constant left out shows at 1e-2.
        scale = max(float(np.abs(want).max()), 1e-3)
        assert np.abs(found - want).max() <= 1e-3 * scale, case.text


class _Combined(nn.Module):
    """A gated convolution, a depthwise one, a step on its result, and a 1×1 convolution that reads that."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(3, 9, 1), nn.Conv2d(9, 9, 3, padding=1, groups=9)
        self.step, self.last = step, nn.Conv2d(9, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.step(self.deep(self.first(x).relu())))


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x,
        lambda x: x * x.sum((2, 3), keepdim=True),
        lambda x: x * x.amax((2, 3), keepdim=True).sigmoid(),
        lambda x: x.mean((2, 3)).unsqueeze(2).unsqueeze(3) * x,
        lambda x: -x.abs() * 3,
        lambda x: (x * x.sigmoid() + 1)[:, :, ::2, 1:],
        lambda x: torch.nn.functional.avg_pool2d(x.square(), 2),
        lambda x: x.relu_() + x,
    ],
)
def test_each_step_on_constants_gives_pytorchs_answer(
    step: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(5)
    images = torch.randn(2, 3, 8, 8)
    gated = enliven(ps.add_gates(_Combined(step).eval(), images, density=0.4), images)
    ps.export_onnx(gated, tmp_path / "net.onnx", images[:1], density="own")
    session = onnx_session(tmp_path / "net.onnx")
    for image in images:
        with torch.no_grad():
            want = gated(image[None]).numpy()
        found = session.run(None, {"images": image[None].numpy()})[0]
        np.testing.assert_allclose(found, want, atol=1e-4 * float(np.abs(want).max()))


def _near_tie(network: nn.Module) -> bool:
    """Whether single precision may choose other winners: a saliency near the cut, or near 0."""
    for _, layer in gated_layers(network):
        assert layer.saliency is not None
        saliency, k = layer.saliency[0].sort(descending=True).values, int(layer.winners)
        near = 1e-5 * float(saliency[0])
        cut = k < len(saliency) and float(saliency[k - 1] - saliency[k]) <= near
        if cut or bool(((saliency > 0) & (saliency <= near)).any()):
            return True
    return False


@pytest.mark.parametrize("fixed", [False, True])
def test_the_reader_of_a_depthwise_convolution_multiplies_winners_only(fixed: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    images = torch.randn(2, 3, 12, 12)
    network = nn.Sequential(
        nn.Conv2d(3, 20, 1, bias=False),
        nn.BatchNorm2d(20),
        nn.ReLU6(),
        nn.Conv2d(20, 20, 5, padding=2, groups=20, bias=False),
        nn.BatchNorm2d(20),
        nn.SiLU(),
        Excite(20, nn.Sigmoid()),
        nn.Conv2d(20, 8, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 4, 3),
    )
    gated = enliven(ps.add_gates(randomise(network), images), images)
    ps.set_density(gated, 0.3)
    path = ps.export_onnx(gated, tmp_path / "net.onnx", images[:1], density=0.3 if fixed else None).path
    model = onnx.load(path)
    convs = {node.name: node for node in model.graph.node if node.op_type == "Conv"}
    names = [convs[name].input[1] for name in ("3/Conv", "7/Conv")]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    onnx.save(model, tmp_path / "open.onnx")
    feeds = {"images": images[:1].numpy(), **({} if fixed else {"density": np.array(0.3, np.float32)})}
    found = onnx_session(tmp_path / "open.onnx").run(names, feeds)
    # Conv's groups are fixed, so a depthwise convolution skips where the density is.
    assert [weight.shape[:2] for weight in found] == [(6 if fixed else 20, 1), (3, 6)]
