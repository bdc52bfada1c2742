"""The zoo's networks: torchvision's names and functions, and the MACs of the paper."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from penstock import zoo


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "vgg16_bn"])
def test_state_dicts_are_torchvisions(name: str) -> None:
    import torchvision

    with torch.device("meta"):
        ours, theirs = getattr(zoo, name)(), getattr(torchvision.models, name)()
    expected = {key: value.shape for key, value in theirs.state_dict().items()}
    assert {key: value.shape for key, value in ours.state_dict().items()} == expected
    assert list(ours.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_outputs_are_torchvisions(name: str) -> None:
    import torchvision

    theirs = getattr(torchvision.models, name)(num_classes=7).eval()
    ours = getattr(zoo, name)(7).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images))


@pytest.mark.parametrize(
    ("name", "size", "macs"),
    [
        ("m_cifarnet", 32, 174_301_824),
        ("resnet18", 224, 1_814_073_344),
        ("resnet34", 224, 3_663_761_408),
        ("resnet50", 224, 4_089_184_256),
        ("vgg16_bn", 224, 15_470_264_320),
    ],
)
def test_macs_are_the_known_ones(name: str, size: int, macs: int) -> None:
    with torch.device("meta"):
        network = getattr(zoo, name)()
        counter = FlopCounterMode(display=False)
        with counter:
            network(torch.empty(1, 3, size, size))
    assert counter.get_total_flops() == 2 * macs


def test_m_cifarnet_has_the_papers_weights() -> None:
    network = zoo.m_cifarnet()
    weights = [p for name, p in network.named_parameters() if not name.startswith("norm")]
    assert sum(p.numel() for p in weights) == 1_293_898
