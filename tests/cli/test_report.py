"""penstock report on real folders: whole runs, broken ones, foreign ones, and none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from penstock.cli.main import main
from penstock.cli.sources import Source, remember, start_of
from penstock.datasets import sample
from penstock.exporting import save
from penstock.gating import gated_layers
from penstock.reporting import SkipRecorder
from penstock.surgery import add_gates
from penstock.zoo import m_cifarnet

BASELINE = {"top1": 91.4, "top5": 99.7, "macs": 174301824}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gated run with history and curve, a plain one, a broken checkpoint, one that does not fit."""
    root = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    plain = m_cifarnet()
    gated = add_gates(plain, torch.zeros(1, 3, 32, 32), density=0.5)
    for _, layer in gated_layers(gated):
        torch.nn.init.normal_(layer.gate.weight, std=0.5)
    for name in ("fbs", "dense", "broken", "other"):
        (root / name).mkdir()
        line = {"epoch": 1, "loss": 2.0, "train_top1": 10.0, "test_top1": 11.0, "density": 0.5}
        (root / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    save(gated, root / "fbs" / "model.safetensors")
    save(plain, root / "dense" / "model.safetensors")
    save(m_cifarnet(classes=7), root / "other" / "model.safetensors")
    (root / "broken" / "model.safetensors").write_bytes(b"not a checkpoint")
    points = [{"density": 0.5, "top1": 90.0, "top5": 99.0, "macs_paper": 44e6, "macs_executed": 43e6}]
    (root / "fbs" / "curve.json").write_text(
        json.dumps({"method": "FBS", "baseline": BASELINE, "points": points})
    )
    data = sample().take(torch.arange(20))
    for epoch in (1, 2):
        SkipRecorder(data, root / "fbs")({"epoch": epoch}, gated)
    (root / "todo.txt").write_text("not a run")
    return root


def test_the_page_holds_what_the_runs_and_their_networks_say(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "report.html"
    options = ["--images", "20", "--seconds", "0.1", "--layer", "conv4", "--channels", "3", "--json"]
    assert main(["report", str(runs), "--out", str(out), *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["runs"] == ["broken", "dense", "fbs", "other"]
    assert said["networks"] == ["fbs"]
    notes = "\n".join(said["notes"])
    assert "broken: " in notes
    assert "other: the network gives (7,) for an image, but cifar10/sample has 10 classes" in notes
    text = out.read_text()
    for expected in (
        "Heat map of layer conv0",
        "Heat map of layer conv7",
        "Heat maps of layer conv4 after epochs 1, 2",
        "Images by their maximum in channel 3 of layer conv4",
        "Distribution of the maxima of the first 20 channels of layer conv4",
        "Accuracy against MACs. FBS: 90.00% at 43M. Baseline: 91.40% at 174.3M.",
        ">174.3M<",
    ):
        assert expected in text, expected
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_without_a_sweep_accuracy_against_macs_is_what_the_page_measured(runs: Path, tmp_path: Path) -> None:
    plain = tmp_path / "runs" / "fbs"
    shutil.copytree(runs / "fbs", plain, ignore=shutil.ignore_patterns("curve.json"))
    out = tmp_path / "report.html"
    options = ["--images", "20", "--seconds", "0.05", "--against", ""]
    assert main(["report", str(tmp_path / "runs"), "--out", str(out), *options]) == 0
    text = out.read_text()
    assert re.search(r"Accuracy against MACs\. fbs: [\d.]+% at 174\.\dM, [\d.]+% at 44\.\dM", text)
    assert re.search(r"Accuracy against milliseconds\. fbs, float32: ", text)


def test_the_network_that_a_run_began_with_is_the_dense_line_and_stopped_runs_are_not_looked_into(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    for name, planned in (("fine", 1), ("stopped", 3)):
        shutil.copytree(runs / "fbs", folder / name, ignore=shutil.ignore_patterns("curve.json"))
        (folder / name / "run.toml").write_text(f"[recipe]\nepochs = {planned}\n")
    options = ["--images", "20", "--seconds", "0.05", "--against", "onnxruntime,int8", "--json"]
    words = ["report", str(folder), "--out", str(tmp_path / "report.html"), *options]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["networks"] == ["fine"]
    assert any("--dense MODEL names one" in note for note in said["notes"])
    remember(Source("sample", start=start_of(str(runs / "dense"))), folder / "fine")
    assert main(words) == 0
    assert not any("--dense" in note for note in json.loads(capsys.readouterr().out)["notes"])
    text = (tmp_path / "report.html").read_text()
    assert re.search(r"Accuracy against milliseconds\..*dense float32 \(onnxruntime\).*", text)
    assert "dense int8 (" in text
    assert main([*words, "--dense", str(folder / "stopped")]) == 2
    assert "this network has gates" in capsys.readouterr().err


def test_records_alone_need_no_images(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert main(["report", str(runs), "--out", str(out), "--networks", "0", "--title", "Mine & yours"]) == 0
    text = out.read_text()
    assert "Mine &amp; yours" in text
    assert "Heat map" not in text


def test_an_empty_folder_gives_a_page_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(out.resolve())
    assert "no run here yet" in captured.err
    assert "There is no run here yet." in out.read_text()


def test_a_missing_folder_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere"), "--out", str(tmp_path / "report.html")]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_layer_is_a_note_that_lists_the_layers(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "report",
        str(runs / "fbs"),
        "--out",
        str(tmp_path / "r.html"),
        "--images",
        "10",
        "--layer",
        "conv99",
    ]
    assert main([*arguments, "--no-engine", "--json"]) == 0
    assert "no gated layer is named 'conv99'; there are: conv0, conv1" in capsys.readouterr().out


def test_a_network_with_thresholds_shows_how_images_differ_in_cost(tmp_path: Path) -> None:
    torch.manual_seed(0)
    gated = add_gates(m_cifarnet(), torch.zeros(1, 3, 32, 32), density=0.75)
    for _, layer in gated_layers(gated):
        torch.nn.init.normal_(layer.gate.weight, std=0.5)
        layer.set_threshold(1.0)
    (tmp_path / "run").mkdir()
    line = {"epoch": 1, "loss": 2.0, "train_top1": 10.0, "test_top1": 11.0, "density": 0.5}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    save(gated, tmp_path / "run" / "model.safetensors")
    options = ["--images", "10", "--seconds", "0.1", "--against", "", "--out", str(tmp_path / "r.html")]
    assert main(["report", str(tmp_path), *options]) == 0
    text = (tmp_path / "r.html").read_text()
    assert "How images differ in cost" in text
    assert "Channels above thresholds, at most 0.75 of them" in text
    for kind in ("million MACs", "milliseconds"):
        assert f"Histogram of {kind} an image; 10 images: mean " in text
    assert ", p50 " in text
    assert ", p95 " in text
