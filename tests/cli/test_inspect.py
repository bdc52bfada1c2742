"""penstock inspect says of every layer whether it is gated, or why not, and what it costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exporting.test_hostile_files import parts_of

import penstock as ps
from penstock.cli.inspect import Inspection, Options, inspect, summary, time_words
from penstock.cli.main import main
from penstock.cli.probe import parse_shape
from penstock.errors import InputError
from penstock.exporting.container import write_container
from penstock.gating import gated_layers
from penstock.measuring.densities import Measured, RivalTime
from penstock.measuring.timing import Timing


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--no-time", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["inspect", "export", "compile"])
def test_a_huge_image_that_only_a_file_names_is_not_run(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    description, tensors = parts_of(
        Path(ps.zoo.__file__).parent / "checkpoints" / "m_cifarnet-cifar10-d50.safetensors"
    )
    write_container(tmp_path / "huge.safetensors", tensors, description | {"input_shape": [3, 8000, 8000]})
    assert main([command, str(tmp_path / "huge.safetensors")]) == 2
    assert "images of 3x8000x8000; --input 3x8000x8000 runs it" in capsys.readouterr().err


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
    assert "measured, one thread, one image, float32: " in shown
    assert " ms gated at density 0.5; dense " in shown


def with_times(gated: Timing, dense: Timing) -> Inspection:
    """An inspection as if these times had been measured."""
    found = inspect(Options("m_cifarnet", time=False))
    row = replace(found.cost, time=gated)
    rivals = {"penstock": RivalTime(Timing(9.0, 9.0, 5)), "openvino": RivalTime(dense)}
    return replace(found, measured=Measured((row,), rivals))


def test_where_gates_do_not_pay_a_plain_sentence_says_so() -> None:
    found = with_times(Timing(6.9, 7.0, 5), Timing(7.2, 7.3, 5))
    first, verdict = time_words(found)
    assert first.endswith(
        "6.90 ms gated at density 0.5; dense 7.20 ms in openvino, 9.00 ms in penstock: 1.04×"
    )
    assert verdict.startswith("Gating does not pay here: the gated network at density 0.5 is 1.04× as fast")
    assert "100% of its MACs are behind gates" in verdict
    assert summary(found)["pays"] is False


def test_where_gates_pay_only_the_times_stand_there() -> None:
    found = with_times(Timing(2.0, 2.0, 5), Timing(7.0, 7.0, 5))
    (line,) = time_words(found)
    assert line.endswith(": 3.50×")
    assert summary(found)["pays"] is True
    assert summary(found)["milliseconds_dense"] == 7.0


def test_disturbed_times_predict_nothing() -> None:
    found = with_times(Timing(2.0, 2.0, 5), Timing(7.0, 7.0, 5, processor=3.0))
    lines = time_words(found)
    assert "×" not in lines[0]
    assert lines[1].startswith("Not compared: openvino.")
    assert summary(found)["pays"] is None


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
        own = [line for line in error.strip().split("\n") if "does not say how it takes images" not in line]
        assert len(own) == 1
