"""The engine on networks people use: every zoo model, and models of timm and torchvision."""

from __future__ import annotations

import pytest
import torch
from tests.engine.agreement import assert_agreement
from tests.engine.networks import enliven, randomise
from tests.surgery.networks import MODELS, OUTSIDE
from torch import nn

import penstock.engine as engines
from penstock import zoo
from penstock.gating import is_gated, set_density
from penstock.surgery import add_gates

_PEAK_SHARE = 1.5


def _gated(network: nn.Module, images: torch.Tensor, density: float) -> nn.Module:
    gated = add_gates(randomise(network), images).eval()
    if is_gated(gated):
        enliven(gated, images)
        set_density(gated, density)
    return gated


def _peak_floats(network: nn.Module, image: torch.Tensor) -> int:
    """The accounted peak of activations: the most that input and output of one convolution take together."""
    sizes: list[int] = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda m, i, o: sizes.append(i[0].numel() + o.numel()))
    with torch.no_grad():
        network.eval()(image)
    return max(sizes)


@pytest.mark.parametrize(
    ("name", "size", "density"),
    [
        ("m_cifarnet", 32, 0.5),
        ("resnet18", 64, 0.5),
        ("resnet34", 33, 0.3),
        ("resnet50", 32, 0.7),
        ("vgg16_bn", 32, 0.4),
    ],
)
def test_zoo_models_equal_the_masked_network(name: str, size: int, density: float) -> None:
    images = torch.randn(2, 3, size, size)
    network = getattr(zoo, name)(classes=10)
    if name == "vgg16_bn":  # its dense layers, most of its weights, are tested elsewhere
        network.classifier = nn.Linear(512 * 7 * 7, 10)
    gated = _gated(network, images, density)
    engine = engines.compile(gated, images)
    agreement = assert_agreement(gated, engine, images, name)
    assert agreement.excused == 0


@pytest.mark.parametrize(
    ("name", "size"),
    [("mobilenetv3_large_100", 64), ("efficientnet_b0", 64), ("convnext_atto", 64), ("regnetx_002", 64)],
)
def test_timm_models_equal_the_masked_network(name: str, size: int) -> None:
    timm = pytest.importorskip("timm")
    images = torch.randn(1, 3, size, size)
    gated = _gated(timm.create_model(name, num_classes=10), images, 0.6)
    assert_agreement(gated, engines.compile(gated, images), images, name)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", OUTSIDE)
def test_every_model_of_the_conversion_list_equals_the_masked_network(name: str) -> None:
    pytest.importorskip("timm")
    images = torch.randn(2, 3, 128, 128)
    network = MODELS[name][0]()
    gated = _gated(network, images, 0.6)
    engine = engines.compile(gated, images)
    if name == "timm vgg16_bn":
        # Accounting cannot look into timm's head and counts it dense; the engine skips in it.
        with torch.no_grad():
            wanted = gated(images)
        assert torch.allclose(engine(images), wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))
        return
    assert_agreement(gated, engine, images, name)


@pytest.mark.parametrize("isa", engines.available_isas())
@pytest.mark.parametrize(("name", "size"), [("m_cifarnet", 32), ("resnet18", 224), ("resnet50", 224)])
def test_the_arena_is_at_most_half_again_the_accounted_peak(
    name: str, size: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISA", isa)
    image = torch.randn(1, 3, size, size)
    network = getattr(zoo, name)()
    engine = engines.compile(network, image)
    assert engine.arena_bytes / 4 <= _PEAK_SHARE * _peak_floats(network, image)


def test_a_plain_network_without_gates_runs_dense() -> None:
    network = randomise(zoo.m_cifarnet())
    images = torch.randn(2, 3, 32, 32)
    engine = engines.compile(network, images)
    assert engine.gated == ()
    with torch.no_grad():
        wanted = network(images)
    assert torch.allclose(engine(images), wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)
    assert engine.macs(images).tolist() == [174_301_824] * 2
