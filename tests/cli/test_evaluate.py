"""penstock evaluate says what the network scores and costs, through the engine and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from penstock.accounting import account
from penstock.cli.images import find_images
from penstock.cli.main import main
from penstock.cli.scoring import parse_densities
from penstock.datasets import Preprocess
from penstock.errors import DataError, DensityError
from penstock.exporting import load, save
from penstock.gating import gated_layers, set_density
from penstock.quantizing import calibrate
from penstock.surgery import add_gates
from penstock.training import evaluate
from penstock.zoo import m_cifarnet

SMALL = ["--data", "sample", "--images", "30", "--seconds", "0.1"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    gated = add_gates(m_cifarnet(), torch.zeros(1, 3, 32, 32), density=0.7)
    for _, layer in gated_layers(gated):
        torch.nn.init.normal_(layer.gate.weight, std=0.5)
    path = tmp_path_factory.mktemp("run") / "model.safetensors"
    save(gated, path)
    return path


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict, list[dict]]:  # type: ignore[type-arg]
    assert main(["evaluate", *arguments, *SMALL, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    return said, said["rows"]


def test_accuracy_and_macs_are_those_of_the_network(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, found = rows(capsys, str(checkpoint), "--density", "1,0.5")
    data, network = find_images("sample", 30), load(checkpoint)
    assert (said["images"], said["data"]) == (30, "cifar10/sample")
    for row, density in zip(found, (1.0, 0.5), strict=True):
        set_density(network, density)
        score = evaluate(network, data)
        assert row["density"] == density
        assert (row["top1"], row["top5"]) == (score.top1, score.top5)
        assert row["macs_executed"] == account(network, Preprocess()(data.images)).macs
        assert row["macs_paper"] == account(network, Preprocess()(data.images[:1]), "paper").macs
        if said["without_engine"] is None:
            assert row["milliseconds"] > 0
            assert row["agreement"]["same_class"] == row["agreement"]["images"] == 30


def test_float32_and_int8_stand_side_by_side(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said, found = rows(capsys, str(checkpoint), "--density", "1,0.5", "--precision", "int8")
    assert said["without_int8"] is None
    assert [(row["density"], row["precision"]) for row in found] == [
        (1.0, "float32"),
        (1.0, "int8"),
        (0.5, "float32"),
        (0.5, "int8"),
    ]
    assert all(row["milliseconds"] > 0 for row in found)
    assert all("agreement" in row for row in found if row["precision"] == "float32")


def test_a_checkpoint_with_scales_is_shown_in_int8_unasked(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = load(checkpoint)
    network.ranges = calibrate(network, Preprocess()(find_images("sample", 20).images))
    save(network, tmp_path / "scales.safetensors")
    _, found = rows(capsys, str(tmp_path / "scales.safetensors"))
    assert [row["precision"] for row in found] == ["float32", "int8"]
    _, plain = rows(capsys, str(tmp_path / "scales.safetensors"), "--precision", "float32")
    assert [row["precision"] for row in plain] == ["float32"]


def test_without_the_engine_the_accuracy_is_the_same_and_no_time_is_claimed(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, through = rows(capsys, str(checkpoint.parent))
    said, found = rows(capsys, str(checkpoint.parent), "--no-engine")
    assert found[0]["density"] == 0.7  # the checkpoint's own
    assert (found[0]["top1"], found[0]["top5"]) == (through[0]["top1"], through[0]["top5"])
    assert "milliseconds" not in found[0]
    assert said["without_engine"] == "it was not asked for"


def test_the_table_is_for_people(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(checkpoint), *SMALL, "--no-engine"]) == 0
    out = capsys.readouterr().out
    assert "on 30 images of cifar10/sample" in out
    assert "d = 0.7" in out
    assert max(len(line) for line in out.splitlines()[1:]) <= 80
    assert "No milliseconds: it was not asked for." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--density", "0.5,2"], "expected a number in ]0, 1], got 2.0"),
        (["--density", "half"], "expected numbers as in 0.5,0.7, got 'half'"),
        (["--data", "mnist"], "expected one of sample, cifar10"),
    ],
)
def test_a_wrong_option_is_one_clear_line(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["evaluate", str(checkpoint), *SMALL, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_model_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path / "gone.safetensors"), *SMALL]) == 2
    assert "gone.safetensors" in capsys.readouterr().err


def test_densities_are_read_with_or_without_spaces() -> None:
    assert parse_densities("1, 0.5,") == [1.0, 0.5]
    assert parse_densities("") == []
    with pytest.raises(DensityError):
        parse_densities("0")


def test_a_holdout_is_of_cifar10s_training_images() -> None:
    for name, holdout in (("sample", 10), ("cifar10", -1)):
        with pytest.raises(DataError, match="--holdout"):
            find_images(name, holdout=holdout)
