"""int8 engines refuse images far beyond their calibration: codes saturate, so results would mean nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import penstock as ps
import penstock.engine as engines
import penstock_runtime as pr
from penstock.errors import InputError

_CALIBRATED = 2.5  # the largest magnitude of the calibration images


def calibration(side: int) -> Tensor:
    images = torch.empty(4, 3, side, side).uniform_(-2, 2, generator=torch.Generator().manual_seed(0))
    images[0, 0, 0, 0] = -_CALIBRATED
    return images


def small_network() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)).eval()


def test_pixels_of_0_to_255_are_refused_by_every_way_to_run_a_network(tmp_path: Path) -> None:
    data = ps.datasets.sample()
    images = data.preprocess(data.images[:24])
    network = ps.zoo.pretrained("m_cifarnet-cifar10-any")
    engine = ps.compile(network, images[:1], precision="int8", calibration=images)
    engine.save(tmp_path / "net.penstock")
    loaded = pr.load(tmp_path / "net.penstock", threads=2)
    raw = data.images[:24].float()
    for run in (engine, engine.record, lambda x: loaded(x.numpy()), lambda x: loaded.profile(x.numpy())):
        for index in range(len(raw)):
            with pytest.raises(InputError, match=r"image 0 of the batch.*between .* looks unpreprocessed"):
                run(raw[index : index + 1])
    mixed = torch.cat([images[:5], raw[5:6], images[6:8]])
    with pytest.raises(
        InputError, match=r"image 5 of the batch: values lie more than 8 times beyond the range"
    ):
        engine(mixed)
    # Preprocessed images pass, whatever their brightness, and so do borders of any colour.
    for level in (0, 255):
        flat = data.preprocess(torch.full_like(data.images[:1], level))
        assert torch.isfinite(engine(torch.cat([images, flat]))).all()


# 16 pixels at a time, and rows that are not whole vectors.
@pytest.mark.parametrize("side", [16, 13])
@pytest.mark.parametrize("isa", engines.available_isas())
def test_one_value_in_64_may_be_clipped_and_no_more(
    isa: str, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISA", isa)
    images = calibration(side)
    engine = engines.compile(small_network(), images, precision="int8", calibration=images)
    image = images[1:2].clone()
    few = image.numel() // 64
    places = torch.randperm(image.numel(), generator=torch.Generator().manual_seed(1))
    image.view(-1)[places[:few]] = 1000.0
    image.view(-1)[places[few]] = 7.9 * _CALIBRATED
    clipped = image.clamp(-2 * _CALIBRATED, 2 * _CALIBRATED)
    assert torch.equal(engine(image), engine(clipped))
    image.view(-1)[places[few]] = -8.2 * _CALIBRATED
    with pytest.raises(InputError, match="looks unpreprocessed"):
        engine(image)
    for value in (float("nan"), float("inf")):
        broken = image.clone()
        broken.view(-1)[places[few]] = value
        with pytest.raises(InputError, match="image 0 of the batch holds NaN or infinity"):
            engine(broken)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_float32_layers_hand_to_int8_is_looked_at_too(threads: int) -> None:
    images = calibration(16)
    engine = engines.compile(
        small_network(), images, threads, precision="int8", calibration=images, keep_float=["0"]
    )
    assert np.isfinite(engine(images.numpy())).all()
    with pytest.raises(
        InputError, match=r"image 2 of the batch: values of layer '2 \(to int8\)' lie more than 8"
    ):
        engine(torch.cat([images[:2], 300 * images[2:]]))
    overflow = images.clone()
    overflow[1] *= 1e38
    with pytest.raises(InputError, match=r"image 1 of the batch: .* yields NaN or infinity"):
        engine(overflow)


def test_another_kind_of_images_is_told_how_to_go_on() -> None:
    images = calibration(16)
    engine = engines.compile(small_network(), images, precision="int8", calibration=images / 100)
    with pytest.raises(InputError, match="calibrate the int8 engine with images of this kind"):
        engine(images)
    engine = engines.compile(small_network(), images, precision="int8", calibration=100 * images)
    assert torch.isfinite(engine(100 * images)).all()
