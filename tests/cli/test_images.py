"""Which images commands read, and how networks take them: nothing is assumed in silence."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import penstock as ps
import penstock_runtime as pr
from penstock.cli.images import ReadOptions, find_test_data, in_memory
from penstock.cli.main import main
from penstock.cli.sources import Source, choose, remember, remembered
from penstock.cli.trainable import find_scored
from penstock.datasets import Preprocess, sample
from penstock.errors import DataError, InputError

HALF = "0.5,0.5,0.5"
QUICK = ["--seconds", "0.05", "--no-engine", "--json"]
BRIGHT = """
    import torch
    from torch import nn

    class Bright(nn.Module):
        \"\"\"Class 1 if the mean of an input in [0, 1] is above 0.5.\"\"\"

        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)
            self.head = nn.Linear(1, 2)
            with torch.no_grad():
                self.head.weight.copy_(torch.tensor([[-1.0], [1.0]]))
                self.head.bias.copy_(torch.tensor([0.5, -0.5]))

        def forward(self, x):
            return self.head(x.mean((1, 2, 3))[:, None]) + 0 * self.conv(x).mean()

    def knows():
        from penstock.datasets import Preprocess
        made = Bright()
        made.preprocess = Preprocess((0.0,) * 3, (1.0,) * 3)
        return made
"""


@pytest.fixture
def lights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dark and bright pictures, but none darker than 0.45 or brighter than 0.55; and a network for them."""
    for part in ("train", "val"):
        for name, level in (("dark", 118), ("light", 137)):
            folder = tmp_path / "lights" / part / name
            folder.mkdir(parents=True)
            for index in range(4):
                Image.new("RGB", (20, 20), (level + index % 2,) * 3).save(folder / f"{index}.png")
    (tmp_path / "bright_network.py").write_text(textwrap.dedent(BRIGHT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "bright_network", raising=False)
    return tmp_path / "lights"


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    assert main(["evaluate", *words, *QUICK]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_the_normalisation_is_the_users_else_the_networks_else_said_aloud(
    lights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(lights), "--size", "8"]
    said, err = evaluated(capsys, "bright_network:Bright", *data)
    assert said["rows"][0]["top1"] == 50  # ImageNet's mean moves every picture to one side
    assert said["preprocess"]["assumed"] is True
    assert "does not say how it takes images: assumed mean 0.485,0.456,0.406" in err
    words = ["--mean", "0,0,0", "--std", "1,1,1"]
    said, err = evaluated(capsys, "bright_network:Bright", *data, *words)
    assert (said["rows"][0]["top1"], said["preprocess"]["assumed"], err) == (100, False, "")
    assert said["preprocess"]["mean"] == [0, 0, 0]
    said, err = evaluated(capsys, "bright_network:knows", *data)
    assert (said["rows"][0]["top1"], err) == (100, "")


PLAIN = """
    from torch import nn

    def plain():
        \"\"\"Says nothing about how it takes images.\"\"\"
        layers = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))

    def linear():
        return nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.Flatten(), nn.Linear(3 * 14 * 14, 2))

    def own():
        made = plain()
        made.preprocess = lambda images: images.float() / 255
        return made
"""
COMPILE = ["compile", "--out", "net.penstock", "--seconds", "0"]


@pytest.fixture
def plain(images: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images, and beside it a network that says nothing about them."""
    (images.parent / "plain_network.py").write_text(textwrap.dedent(PLAIN))
    monkeypatch.chdir(images.parent)
    monkeypatch.delitem(sys.modules, "plain_network", raising=False)
    return images


@pytest.mark.parametrize(
    ("words", "assumed"),
    [
        (
            [*COMPILE, "--input", "3x16x16"],
            "mean 0.4914,0.4822,0.4465 and std 0.247,0.2435,0.2616 (CIFAR-10's)",
        ),
        ([*COMPILE, "--input", "3x64x64"], "mean 0.485,0.456,0.406 and std 0.229,0.224,0.225 (ImageNet's)"),
        (
            [*COMPILE, "--input", "3x64x64", "--data", "images"],
            "mean 0.485,0.456,0.406 and std 0.229,0.224,0.225",
        ),
        (["bench", "--against", "torch", "--size", "16", "--seconds", "0.05"], "mean 0.4914,0.4822,0.4465"),
        (["inspect", "--input", "3x16x16", "--no-time"], "mean 0.4914,0.4822,0.4465"),
        (["quantize", "--data", "images", "--size", "16", "--tolerance", "100"], "mean 0.485,0.456,0.406"),
    ],
    ids=["compile", "compile-large", "compile-data", "bench", "inspect", "quantize"],
)
def test_every_command_says_the_normalisation_that_it_assumed(
    plain: Path, capsys: pytest.CaptureFixture[str], words: list[str], assumed: str
) -> None:
    command, *rest = words
    assert main([command, "plain_network:plain", *rest, "--json"]) == 0
    said = capsys.readouterr()
    assert f"plain_network:plain does not say how it takes images: assumed {assumed}" in said.err
    assert "--mean and --std say otherwise" in said.err
    if command == "compile":
        assert json.loads(said.out)["preprocess"]["assumed"] is True
        assert (
            f"mean {','.join(f'{one:g}' for one in pr.load('net.penstock').info.preprocess.mean)}" in assumed
        )
    assert main([command, "plain_network:plain", *rest, "--mean", HALF, "--std", HALF, "--json"]) == 0
    assert "assumed" not in capsys.readouterr().err
    if command == "compile":
        assert pr.load("net.penstock").info.preprocess.mean == (0.5, 0.5, 0.5)


def test_a_network_with_nothing_to_gate_is_timed_whole(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "plain_network:linear", "--against", "torch", "--size", "16", "--seconds", "0.05"]
    assert main(words) == 0
    assert "the network has nothing to gate" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert {one["density"] for one in entries} == {None, 1.0}


def test_a_preprocessing_that_is_code_is_no_obstacle_to_a_score(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, err = evaluated(capsys, "plain_network:own", "--data", str(plain), "--size", "16")
    assert said["preprocess"] == {"mean": None, "std": None, "assumed": False}
    assert err == ""


def test_a_teacher_that_does_not_say_how_it_takes_images_is_told(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "m_cifarnet", "--data", str(plain), "--size", "16", "--out", "run", "--epochs", "1"]
    words += ["--mean", HALF, "--std", HALF, "--recipe.distill", "0.5", "--json"]
    assert main([*words, "--teacher", "plain_network:plain"]) == 0
    said = "--teacher plain_network:plain does not say how it takes images: assumed mean 0.5,0.5,0.5"
    assert said in capsys.readouterr().err


def test_an_exported_file_says_how_its_network_takes_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "m_cifarnet-cifar10-any", "--out", str(tmp_path / "net.onnx"), "--no-check"]
    assert main(words) == 0
    assert "give it images by mean 0.4914,0.4822,0.4465 and std" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preprocess"]["mean"] == [0.4914, 0.4822, 0.4465]


def test_the_normalisation_given_to_training_is_kept_in_the_checkpoint(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["train", "m_cifarnet", "--data", str(images), "--size", "12", "--out", str(run), "--epochs", "1"]
    assert main([*words, "--mean", HALF, "--std", "0.2,0.2,0.2", "--json"]) == 0
    capsys.readouterr()
    assert ps.load(run / "model.safetensors").preprocess == Preprocess((0.5,) * 3, (0.2,) * 3)
    said, err = evaluated(capsys, str(run))
    assert said["preprocess"] == {"mean": [0.5] * 3, "std": [0.2] * 3, "assumed": False}
    assert err == ""
    # The run's own images at their own size, not CIFAR-10.
    assert (said["data"], said["images"]) == (str(images / "val"), 4)
    assert remembered(run) == Source(str(images), 12, 0)
    # Going on with other images, or other numbers, is refused and leaves what the run says as it is.
    before = [(run / name).read_bytes() for name in ("model.safetensors", "data.json")]
    given = ["--mean", HALF, "--std", "0.2,0.2,0.2"]
    for other, said_ in (
        (
            [*given[:3], "0.3,0.3,0.3"],
            "takes images by mean 0.5,0.5,0.5 and std 0.2,0.2,0.2 and is now given",
        ),
        ([*given, "--size", "16"], "started with --data .* --size 12 --holdout 0 and is now"),
        ([*given, "--data", "sample"], "and is now --data sample"),
        ([*given, "--epochs", "2"], "another recipe"),
    ):
        assert main([*words, *other]) == 2
        assert re.search(said_, capsys.readouterr().err)
    assert [(run / name).read_bytes() for name in ("model.safetensors", "data.json")] == before
    assert main(["report", str(run), "--out", str(tmp_path / "r.html"), "--no-engine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["networks"] == []  # no gates, so nothing to look into


def test_a_report_counts_at_the_runs_own_size(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "d50"
    words = ["train", "m_cifarnet", "--data", str(images), "--size", "16", "--out", str(run), "--epochs", "1"]
    assert main([*words, "--density", "0.5", "--json"]) == 0
    assert main(["sweep", str(run), "--epochs", "0", "--densities", "0.5", "--json"]) == 0
    curve = json.loads((run / "sweep" / "curve.json").read_text())
    expected = ps.account(ps.load(run / "model.safetensors"), torch.zeros(1, 3, 16, 16), "paper").macs
    assert curve["points"][0]["macs_paper"] == expected
    capsys.readouterr()
    out = tmp_path / "report.html"
    assert main(["report", str(run.parent), "--out", str(out), "--no-engine", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert "d50" in said["networks"], said
    assert not any("d50:" in note for note in said["notes"]), said["notes"]


def test_pruning_and_timing_take_a_folder(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(images), "--size", "12"]
    words = ["prune", "m_cifarnet", *data, "--out", str(tmp_path / "ns"), "--ratio", "0.2", "--json"]
    assert main([*words, "--sparsity-epochs", "0", "--finetune-epochs", "1", "--recipe.batch-size", "4"]) == 0
    assert remembered(tmp_path / "ns") == Source(str(images), 12, 0)
    capsys.readouterr()
    words = ["bench", str(tmp_path / "ns"), "--against", "torch", "--density", "0.5", "--seconds", "0.1"]
    assert main([*words, "--calibration", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calibration"] == f"3 images of {images / 'val'}"


def test_what_a_run_is_scored_on_by_default(images: Path, tmp_path: Path) -> None:
    """The test part where there is one, else what was held out from the training; never its own images."""
    remember(Source("sample", holdout=50), tmp_path)
    assert len(find_scored(str(tmp_path), "", 0, 0, 0)) == 50
    remember(Source(str(images / "train"), 12, 2), tmp_path)
    held = find_scored(str(tmp_path / "model.safetensors"), "", 0, 0, 0)
    assert len(held) == 2
    assert next(iter(held.test_batches(2))).images.shape == (2, 3, 12, 12)
    remember(Source(str(images), 12, 2), tmp_path)
    assert len(find_scored(str(tmp_path), "", 0, 0, 0)) == 4
    assert len(find_scored(str(tmp_path), "sample", 0, 0, 30)) == 30  # what the user names comes first
    assert choose(str(tmp_path), "", 0) == Source(str(images), 12, 0)
    assert choose(str(tmp_path), "cifar10", 0) == Source("cifar10", 224, 0)
    assert choose("m_cifarnet", "", 0) == Source()


@pytest.mark.parametrize("text", ["", "[]", '{"data":"x"}', '{"data":"x","size":"1","holdout":0}', "[" * 999])
def test_a_damaged_note_of_the_data_is_a_data_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(DataError, match=r"data\.json"):
        remembered(tmp_path)


@pytest.mark.parametrize(
    ("mean", "std"),
    [("0.5", ""), ("", "0.5"), ("a,b,c", HALF), (HALF, "0,1,1"), (HALF, "1,1"), ("nan,0,0", HALF)],
)
def test_a_normalisation_that_cannot_be_is_refused(mean: str, std: str) -> None:
    with pytest.raises(InputError, match=r"--mean|preprocess"):
        ReadOptions(mean=mean, std=std).preprocess()


def test_a_network_for_other_classes_is_one_line(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "m_cifarnet", "--data", str(images), "--size", "12", *QUICK]) == 2
    assert "has 2 classes; choose other images with --data" in capsys.readouterr().err


def test_a_folder_in_memory_has_the_same_pixels(images: Path) -> None:
    data = find_test_data(str(images), size=12)
    assert np.array_equal(in_memory(data).images, torch.cat([one.images for one in data.test_batches(3)]))
    assert in_memory(sample()).images.shape == (1000, 3, 32, 32)
