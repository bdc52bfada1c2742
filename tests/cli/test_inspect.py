"""penstock inspect says of every layer whether it is gated, or why not, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock as ps
from penstock.cli.inspect import parse_shape
from penstock.cli.main import main
from penstock.errors import InputError
from penstock.gating import gated_layers


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--no-time", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_m_cifarnet_by_both_conventions(capsys: pytest.CaptureFixture[str]) -> None:
    said = inspected(capsys, "m_cifarnet")
    assert said["macs_dense"] == 174_301_824
    assert said["paper"]["macs"] == 44_346_752
    assert said["density"] == 0.5
    assert said["input"] == [3, 32, 32]
    assert (said["gated"], said["convolutions"]) == (8, 8)
    assert [layer["layer"] for layer in said["layers"]] == [*(f"conv{i}" for i in range(8)), "fc"]
    assert sum(layer["macs_paper"] for layer in said["layers"]) == said["paper"]["macs"]
    assert sum(layer["macs_executed"] for layer in said["layers"]) == pytest.approx(said["executed"]["macs"])
    assert [layer["gated"] for layer in said["layers"]] == [True] * 8 + [False]
    assert "drawn at random" in said["masks"]


def test_the_density_and_the_input_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    said = inspected(capsys, "resnet18", "--input", "3x64x64", "--density", "0.6")
    assert said["density"] == 0.6
    assert said["input"] == [3, 64, 64]
    # Sums are unions of channels drawn apart, not of the equal choices that fresh gates would make.
    assert said["paper"]["saving"] < said["executed"]["saving"] < 1 / 0.6**2


def test_a_user_model_says_why_a_layer_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock_inspected.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    depthwise = nn.Conv2d(6, 6, 3, groups=6)\n"
        "    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), depthwise, nn.Conv2d(6, 4, 1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    layers = inspected(capsys, "penstock_inspected:build", "--input", "1x12x14")["layers"]
    assert layers[0]["gated"]
    assert layers[0]["why_not"] is None
    assert "depthwise" in layers[1]["why_not"]
    assert "network's output" in layers[2]["why_not"]
    assert main(["inspect", "penstock_inspected:build", "--input", "1x12x14", "--no-time"]) == 0
    shown = capsys.readouterr().out
    assert "none: depthwise" in shown
    assert "1 of 3 convolutions gated" in shown


def test_a_checkpoint_is_counted_with_its_own_gates_on_real_images(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gated = ps.add_gates(ps.zoo.m_cifarnet(), torch.zeros(1, 3, 32, 32), 0.5)
    for _, layer in gated_layers(gated):
        torch.nn.init.normal_(layer.gate.weight, std=0.5)
    ps.set_density(gated, {"conv2": 0.25})
    path = tmp_path / "model.safetensors"
    ps.save(gated, path)
    said = inspected(capsys, str(path))
    assert said["density"] is None
    assert {layer["layer"]: layer["density"] for layer in said["layers"]}["conv2"] == 0.25
    assert "embedded sample" in said["masks"]
    assert inspected(capsys, str(tmp_path), "--density", "1")["density"] == 1.0


def test_milliseconds_stand_beside_the_macs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "m_cifarnet"]) == 0
    shown = capsys.readouterr().out
    assert "174.3M" in shown
    assert "3.93×" in shown
    assert "measured through the engine" in shown
    assert " ms" in shown


@pytest.mark.parametrize("text", ["32x32", "3x32x32x1", "0x32x32", "3xAx3", "", "3,32,32"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="3x32x32"):
        parse_shape(text)


def test_wrong_arguments_are_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["alexnet"], "'alexnet' is neither a zoo name"),
        (["m_cifarnet", "--density", "0"], "]0, 1]"),
        (["m_cifarnet", "--input", "4x32x32"], "4 channels"),
        (["m_cifarnet", "--input", "big"], "3x32x32"),
    ):
        assert main(["inspect", *arguments, "--no-time"]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.strip().count("\n") == 0
