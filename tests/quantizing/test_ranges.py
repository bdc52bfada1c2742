"""Ranges: what calibration keeps, at which densities, and how they travel with a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from tests.engine.networks import randomise_levels
from torch import nn

from penstock import zoo
from penstock.engine import compile as compile_engine
from penstock.errors import InputError
from penstock.exporting import load, save
from penstock.gating import set_density
from penstock.quantizing import Ranges, calibrate
from penstock.surgery import add_gates

IMAGES = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_the_largest_magnitude_of_every_step_is_kept() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU()).eval()
    found = calibrate(network, IMAGES)
    with torch.no_grad():
        wanted = network(IMAGES).max()
    assert found.images == 6
    assert max(found.largest.values()) >= float(wanted)
    assert float(wanted) in found.largest.values()
    assert float(IMAGES.abs().max()) in found.largest.values()


def test_every_level_is_run() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 1)]
    dense = nn.Sequential(*layers).eval()
    gated = add_gates(dense, IMAGES)
    randomise_levels(gated, (0.5, 1.0))
    both = calibrate(gated, IMAGES).largest
    alone = []
    for density in (0.5, 1.0):
        set_density(gated, density)
        with torch.no_grad():
            alone.append(float(gated(IMAGES).abs().max()))
    assert max(alone) in both.values()


def test_ranges_travel_with_the_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 3, 32, 32)
    network = add_gates(zoo.m_cifarnet(), images[:2], density=0.5).eval()
    ranges = calibrate(network, images)
    network.ranges = Ranges(ranges.largest, ranges.images, ("conv3",))
    save(network, tmp_path / "network.safetensors")
    back = load(tmp_path / "network.safetensors")
    assert back.ranges == network.ranges
    engine = compile_engine(back, images[:1], precision="int8")
    assert engine.float_steps["conv3"] == "keep_float asks for it"
    torch.testing.assert_close(
        engine(images), compile_engine(network, images[:1], precision="int8")(images), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {"images": "four", "largest": {}},
        {"images": 4, "largest": {"conv": -1.0}},
        {"images": 4, "largest": {"conv": float("nan")}},
        {"images": 4, "largest": {"conv": "1"}},
        {"images": 4, "largest": {}, "keep_float": [3]},
    ],
)
def test_ranges_that_cannot_be_right_are_refused(stored: object) -> None:
    with pytest.raises(InputError, match="ranges"):
        Ranges.from_json(stored)


def test_ranges_survive_json() -> None:
    ranges = Ranges({"conv": 1.5}, 4, ("conv",))
    assert Ranges.from_json(asdict(ranges)) == ranges
