"""penstock quantize: what int8 loses, and the scales in a checkpoint that then needs no images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
import penstock_runtime as pr
from penstock.cli.main import main

MODEL = "m_cifarnet-cifar10-d50"
FEW = ["--data", "sample", "--images", "40", "--calibration", "16"]


def test_scales_are_written_and_losses_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "int8.safetensors"
    assert main(["quantize", MODEL, *FEW, "--tolerance", "100", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    network = ps.load(out)
    sample = ps.datasets.sample()
    images = network.preprocess(sample.images[:4])
    engine = ps.compile(network, images[:1], precision="int8")
    assert engine(images).shape == (4, 10)
    assert [one["layer"] for one in found["layers"]] == [name for name in engine.layers if name != "fc"]
    assert found["ranges"]["keep_float"] == []
    assert abs(found["float32"] - found["int8"]) <= 10


def test_a_quantised_checkpoint_compiles_to_a_file_that_runs_without_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, file = tmp_path / "int8.safetensors", tmp_path / "net.penstock"
    assert main(["quantize", MODEL, *FEW, "--tolerance", "100", "--out", str(checkpoint)]) == 0
    words = ["compile", str(checkpoint), "--precision", "int8", "--seconds", "0", "--input", "3x32x32"]
    assert main([*words, "--out", str(file)]) == 0
    loaded = pr.load(file)
    assert loaded.info.precision == "int8"
    network = ps.load(checkpoint)
    images = network.preprocess(ps.datasets.sample().images[:4])
    engine = ps.compile(network, images[:1], precision="int8")
    np.testing.assert_array_equal(loaded(images.numpy()), engine(images).numpy())
    assert main(["compile", MODEL, "--precision", "int8", "--out", str(file)]) == 2
    assert "penstock quantize" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "message"),
    [(["--calibration", "0"], "--calibration 0"), (["--tolerance", "-1"], "--tolerance -1")],
)
def test_numbers_that_make_no_sense_are_refused(
    extra: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", MODEL, "--data", "sample", *extra]) == 2
    assert message in capsys.readouterr().err
