"""`penstock train` and `penstock sweep`, on a small folder of images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import tyro

from penstock.cli.main import main
from penstock.cli.models import find_model
from penstock.cli.train import Options, defaults, full_recipe
from penstock.gating import gated_layers
from penstock.training import Recipe, finetune_recipe, paper_recipe
from penstock.training.threads import idle_cores


def train(images: Path, model: str, out: Path, *more: str) -> int:
    words = ["train", model, "--out", str(out), "--data", str(images), "--size", "12", "--json"]
    return main([*words, "--recipe.epochs", "1", "--recipe.batch-size", "4", *more])


def test_a_network_is_trained_gated_and_swept(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dense, gated = tmp_path / "runs" / "dense", tmp_path / "runs" / "d50"
    assert train(images, "m_cifarnet", dense) == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 1
    assert not list(gated_layers(find_model(str(dense))))
    more = ["--density", "0.5", "--teacher", str(dense), "--recipe.distill", "0.5"]
    assert train(images, str(dense), gated, *more) == 0
    layers = list(gated_layers(find_model(str(gated))))
    assert {layer.density for _, layer in layers} == {0.5}
    assert {"model.safetensors", "state.safetensors", "metrics.jsonl", "run.toml"} <= {
        p.name for p in gated.iterdir()
    }
    capsys.readouterr()
    assert train(images, str(dense), gated, *more) == 0  # finished: nothing more to do
    assert capsys.readouterr().out == ""
    words = [
        "sweep",
        str(gated),
        "--data",
        str(images),
        "--size",
        "12",
        "--densities",
        "1.0,0.5",
        "--epochs",
        "0",
    ]
    assert main([*words, "--json"]) == 0
    curve = json.loads(capsys.readouterr().out)
    assert [point["density"] for point in curve["points"]] == [1.0, 0.5]
    assert curve["points"][1]["macs_paper"] < curve["points"][0]["macs_paper"]
    assert json.loads((gated / "sweep" / "curve.json").read_text()) == curve


def parsed(*words: str) -> Recipe:
    given = ["m_cifarnet", "--out", "x", *words]
    return full_recipe(tyro.cli(Options, args=given, default=defaults(given)))


def test_a_preset_is_where_the_given_options_start_from() -> None:
    assert parsed() == Recipe()
    assert parsed("--preset", "paper") == paper_recipe()
    assert parsed("--preset=finetune", "--density", "0.3") == finetune_recipe(density=0.3)
    # A value is taken as given also where it is what another preset would have had.
    recipe = parsed(
        "--preset", "paper", "--recipe.learning-rate", "0.1", "--epochs", "15", "--recipe.warmup", "0.1"
    )
    expected = paper_recipe().replace(learning_rate=0.1, epochs=15, warmup=0.1)
    assert recipe == expected
    assert parsed("--recipe.epochs", "30", "--recipe.density", "0.5", "--recipe.threads", "2") == Recipe(
        epochs=30, density=0.5, threads=2
    )


def test_finetuning_gates_a_trained_network_and_learns_from_it(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(images, "m_cifarnet", tmp_path / "dense") == 0
    assert train(images, str(tmp_path / "dense"), tmp_path / "gated", "--preset", "finetune") == 0
    assert "finished: 1 epoch, test" in capsys.readouterr().err
    layers = list(gated_layers(find_model(str(tmp_path / "gated"))))
    assert {layer.density for _, layer in layers} == {0.5}
    record = tomllib.loads((tmp_path / "gated" / "run.toml").read_text())
    assert (record["recipe"]["loss"]["distill"], record["recipe"]["loss"]["label_smoothing"]) == (0.7, 0.0)


def test_a_run_out_of_time_says_how_it_goes_on_and_a_finished_one_says_so(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert train(images, "m_cifarnet", out, "--minutes", "1e-6") == 0
    said = capsys.readouterr()
    assert "stopped after 0 of 1 epochs; the same command goes on" in said.err
    assert not (out / "model.safetensors").exists()
    for _ in range(2):
        assert train(images, "m_cifarnet", out) == 0
        assert "finished: 1 epoch, test" in capsys.readouterr().err
    assert train(images, "m_cifarnet", out, "--minutes", "-1") == 2


def test_idle_cores_are_at_least_one_and_at_most_all() -> None:
    assert 1 <= idle_cores(0.05) <= (os.cpu_count() or 1)
    # With every core busy, one thread is left.
    workers = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        time.sleep(0.3)
        assert idle_cores(0.3) == 1
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def test_data_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "m_cifarnet", "--out", str(tmp_path), "--data", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
