"""fit_budget on the shipped any-density network: the budget holds, and bad questions are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import penstock as ps
from penstock.cli.main import main
from penstock.datasets import ImageArrays
from penstock.errors import DensityError, LayerError, TrainingError
from penstock.gating import gated_layers


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    return ps.zoo.pretrained("m_cifarnet-cifar10-any")


@pytest.fixture(scope="module")
def data() -> ImageArrays:
    whole = ps.datasets.sample()
    return whole.take(torch.arange(0, len(whole), 10))


def test_a_saving_is_met_and_the_network_is_left_alone(network: torch.nn.Module, data: ImageArrays) -> None:
    before = {name: layer.density for name, layer in gated_layers(network)}
    budget = ps.fit_budget(network, data, saving=3.0, rounds=1)
    assert {name: layer.density for name, layer in gated_layers(network)} == before
    assert budget.saving >= 3.0
    assert budget.saving == pytest.approx(3.0, rel=0.1)
    assert budget.chosen_on + budget.reported_on == len(data)
    assert budget.losses[-1] <= budget.losses[0]
    account = ps.account(network, data.preprocess(data.images[:2]))
    budget.apply(network)
    assert ps.account(network, data.preprocess(data.images[:2])).macs < account.macs
    ps.set_density(network, 1.0)


def test_a_log_resumes_and_belongs_to_one_network(
    network: torch.nn.Module, data: ImageArrays, tmp_path: Path
) -> None:
    log = tmp_path / "evaluations.jsonl"
    first = ps.fit_budget(network, data, macs=60e6, rounds=1, log=log)
    lines = log.read_text().count("\n")
    with open(log, "a") as stream:
        stream.write('{"densities": {"conv0"')  # cut off in the middle
    again = ps.fit_budget(network, data, macs=60e6, rounds=1, log=log)
    assert again.densities == first.densities
    assert log.read_text().count("\n") == lines
    with pytest.raises(TrainingError, match="another network"):
        ps.fit_budget(network, data.take(torch.arange(50)), macs=60e6, log=log)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({}, "exactly one of"),
        ({"macs": 1e6, "saving": 2.0}, "exactly one of"),
        ({"saving": 0.5}, "1 or more"),
        ({"milliseconds": -1.0}, "positive"),
        ({"macs": 1e3}, "cannot be met"),
        ({"saving": 2.0, "low": 1.5}, "low"),
    ],
)
def test_bad_questions_are_refused(
    network: torch.nn.Module, data: ImageArrays, question: dict[str, float], words: str
) -> None:
    with pytest.raises(DensityError, match=words):
        ps.fit_budget(network, data, **question)


def test_a_network_without_gates_is_refused(data: ImageArrays) -> None:
    with pytest.raises(LayerError, match="no gated layer"):
        ps.fit_budget(ps.zoo.m_cifarnet(), data, saving=2.0)


def test_the_command_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "m_cifarnet-cifar10-any", "--saving", "2", "--data", "sample", "--holdout", "60"]
    assert main([*words, "--rounds", "1", "--out", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["saving"] >= 2
    assert json.loads((tmp_path / "budget.json").read_text())["densities"] == said["densities"]
    assert (tmp_path / "search.png").stat().st_size > 1000
    kept = dict(gated_layers(ps.load(tmp_path / "model.safetensors")))
    assert {name: layer.density for name, layer in kept.items()} == said["densities"]


def test_the_command_trains_on_at_the_densities_it_found(tmp_path: Path) -> None:
    words = ["search", "m_cifarnet-cifar10-any", "--saving", "3", "--data", "sample", "--holdout", "968"]
    words += ["--rounds", "0", "--images", "20", "--finetune", "1", "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    said = json.loads((tmp_path / "budget.json").read_text())
    assert 50 < said["finetuned_top1"] <= 100
    before = ps.zoo.pretrained("m_cifarnet-cifar10-any").conv3.conv.weight
    kept = ps.load(tmp_path / "model.safetensors")
    assert {name: layer.density for name, layer in gated_layers(kept)} == said["densities"]
    assert not torch.equal(kept.conv3.conv.weight, before)


def test_the_command_fits_thresholds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "m_cifarnet-cifar10-d50", "--saving", "4", "--thresholds", "--cap", "0.7"]
    words += ["--data", "sample", "--holdout", "500", "--images", "64", "--out", str(tmp_path)]
    assert main(words) == 0
    assert "p95" in capsys.readouterr().out
    said = json.loads((tmp_path / "thresholds.json").read_text())
    assert said["saving"] == pytest.approx(4, rel=0.005)
    assert said["held_out"]["macs"] == pytest.approx(said["macs"], rel=0.06)  # of 64 images
    kept = dict(gated_layers(ps.load(tmp_path / "model.safetensors")))
    assert {name: float(layer.threshold) for name, layer in kept.items()} == pytest.approx(said["thresholds"])


def test_what_does_not_go_together_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "m_cifarnet-cifar10-any", "--thresholds", "--milliseconds", "1"]) != 0
    assert "--thresholds meets --saving or --macs" in capsys.readouterr().err
    assert main(["search", "m_cifarnet-cifar10-any", "--saving", "2", "--finetune", "1"]) != 0
    assert "--out FOLDER" in capsys.readouterr().err
