"""penstock prune: the stages that options ask for, and the files that it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import tyro

from penstock.accounting import account
from penstock.cli import prune
from penstock.cli.main import main
from penstock.cli.prune_report import show_report
from penstock.datasets import sample
from penstock.errors import PruningError
from penstock.exporting import load
from penstock.gating import gated_layers
from penstock.reporting.runs import read_run

_MODEL = """
from torch import nn

def make():
    convolutions, channels = [], 3
    for width in (8, 8, 16):
        convolutions += [nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
"""


def options(*words: str) -> prune.Options:
    return tyro.cli(prune.Options, args=["m_cifarnet", "--out", "runs/x", *words])


def test_the_options_make_the_plan() -> None:
    words = (
        "--saving 1.19 --density 0.6 --recipe.epochs 7 --sparsity-epochs 3 --sparsity-learning-rate 0.05 "
        "--gate-epochs 9 --recipe.density-schedule anneal --recipe.cutout 8"
    )
    plan = prune.make_plan(options(*words.split()))
    assert plan.budget.saving == 1.19
    assert plan.sparse is not None
    assert plan.finetune is not None
    assert plan.gated is not None
    assert (plan.sparse.epochs, plan.finetune.epochs, plan.gated.epochs) == (3, 7, 9)
    assert (plan.sparse.learning_rate, plan.finetune.learning_rate) == (0.05, 0.1)
    assert (plan.sparse.density, plan.sparse.gates.density_schedule) == (1.0, "fixed")
    assert (plan.gated.density, plan.gated.gates.density_schedule) == (0.6, "anneal")
    assert {stage.augmentation.cutout for stage in (plan.sparse, plan.finetune, plan.gated)} == {8}


def test_no_epochs_means_no_stage_and_no_density_means_no_gates() -> None:
    plan = prune.make_plan(options("--ratio", "0.4", "--sparsity-epochs", "0", "--finetune-epochs", "0"))
    assert plan.sparse is None
    assert plan.finetune is None
    assert plan.gated is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "one of the two"),
        (("--ratio", "0.4", "--saving", "2"), "one of the two"),
        (("--ratio", "0.4", "--finetune-epochs", "-1"), "0 or more"),
        (("--ratio", "0.4", "--density", "0.5", "--gate-epochs", "0"), "untrained"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(PruningError, match=message):
        prune.make_plan(options(*words))


def test_a_network_is_pruned_gated_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small_models.py").write_text(_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "ns"
    command = [
        *("prune", "small_models:make", "--out", str(out), "--data", "sample", "--saving", "1.5", "--json"),
        *("--density", "0.5", "--recipe.epochs", "1", "--sparsity-epochs", "2", "--recipe.threads", "1"),
    ]
    assert main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    found = json.loads(printed[-1])
    assert found == json.loads((out / "pruning.json").read_text())
    assert 1.5 <= found["saving"] < 1.8
    assert found["gated_saving"] > found["saving"]
    names = ["round1/sparse", "round1/cut", "round1/finetune", "gated"]
    assert [stage["stage"] for stage in found["stages"]] == names
    assert set(found["milliseconds"]) == {"original", "smaller", "gated"}
    images = torch.randn(2, 3, 32, 32)
    small = load(out / "model.safetensors", trust_import=True)
    assert account(small, images, "paper").macs == found["macs"]
    gated = load(out / "gated" / "model.safetensors", trust_import=True)
    assert all(layer.density == 0.5 for _, layer in gated_layers(gated))
    assert small.preprocess(sample().images[:1]).shape == (1, 3, 32, 32)

    plain, boosted = read_run(out, tmp_path).sweep, read_run(out / "gated", tmp_path).sweep
    assert plain is not None
    assert boosted is not None
    assert (plain.method, boosted.method) == ("NS", "NS+FBS")
    assert plain.points[0].macs_paper == found["macs"]
    assert boosted.points[0].density == 0.5
    assert boosted.points[0].macs_executed == found["gated_macs_executed"] <= found["macs"]

    # Done already: the same command trains nothing and finds the same.
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    for key in ("macs", "gated_macs", "cuts"):
        assert again[key] == found[key]
    assert [stage["top1"] for stage in again["stages"]] == [stage["top1"] for stage in found["stages"]]

    assert main([*command[:-1], "2", "--ratio", "0.3"]) == 2
    assert "one of the two" in capsys.readouterr().err
    assert main([word if word != "1.5" else "1.7" for word in command]) == 2
    assert "another plan" in capsys.readouterr().err


def test_the_table_names_every_layer(capsys: pytest.CaptureFixture[str]) -> None:
    layer = {"layer": "conv7", "channels_before": 192, "kept": [0, 1], "macs_before": 2000, "macs_after": 20}
    found = {
        "model": "m_cifarnet",
        "method": "network-slimming",
        "cuts": [{"layers": [layer]}],
        "stages": [{"stage": "round1/cut", "top1": 50.0}, {"stage": "gated", "top1": 61.5}],
        "macs_before": 2000.0,
        "macs": 20.0,
        "milliseconds": {"original": 2.5, "smaller": 1.25},
        "saving": 100.0,
        "density": 0.6,
        "gated_macs": 12.0,
        "gated_macs_executed": 11.0,
        "gated_saving": 166.7,
    }
    show_report(found)
    said = capsys.readouterr().out
    for words in (
        "conv7",
        "192",
        "100.00× fewer",
        "50.00%",
        "166.70× fewer",
        "61.50%",
        "0.6",
        "2,000 MACs, 2.500 ms",
        "1.250 ms",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("method", "words", "kind"),
    [
        ("thinet", ("--images", "128"), "smaller"),
        ("manidp", (), "gated"),
        ("lccl", (), "pixels"),
    ],
)
def test_every_kind_of_outcome_is_reported_and_resumed(
    method: str,
    words: tuple[str, ...],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "other_models.py").write_text(_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "run"
    command = [
        *("prune", "other_models:make", "--method", method, "--out", str(out), "--data", "sample", "--json"),
        *("--saving", "1.3", "--recipe.epochs", "1", "--recipe.threads", "1", "--norm-images", "64", *words),
    ]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    settled = [] if kind == "smaller" else ["round1/settled"]
    assert [stage["stage"] for stage in found["stages"]] == ["round1/cut", "round1/finetune", *settled]
    assert found["macs"] > 0
    assert found["macs_executed"] > 0
    assert found["milliseconds"]["smaller"] > 0
    assert (out / "model.penstock").exists() == (kind == "pixels")
    assert (out / "model.safetensors").exists() == (kind != "pixels")
    assert (out / "weights.safetensors").exists() == (kind != "smaller")
    if kind == "smaller":
        assert found["saving"] >= 1.3
        assert "5" not in found["cuts"][0]["left_alone"]
        assert found["cuts"][0]["left_alone"]["11"] == "its channels are the network's output"
    else:
        assert found["kind"] == kind
        assert bool(found["left_alone"]) == (kind == "pixels")  # every convolution here can be gated
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["macs"] == found["macs"]
    assert [stage["top1"] for stage in again["stages"]] == [stage["top1"] for stage in found["stages"]]


def test_methods_and_their_settings_are_named_when_they_are_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["prune", "m_cifarnet", "--out", str(tmp_path / "x"), "--data", "sample", "--saving", "2"]
    assert main([*common, "--method", "help"]) == 0
    said = capsys.readouterr().out
    for name in ("thinet", "rnp", "channel-gating", "from-scratch"):
        assert name in said
    for words, message in (
        (("--method", "magic"), "no method 'magic'"),
        (("--method", "thinet", "--settings", "rows=3"), "no setting 'rows'"),
        (("--method", "thinet", "--settings", "seed"), "expected name=value"),
        (("--method", "from-scratch", "--widths-of", str(tmp_path)), "not the report of a static method"),
        (("--method", "filter-pruning", "--images", "5"), "no setting 'images'"),
    ):
        assert main([*common, *words]) == 2
        assert message in capsys.readouterr().err
