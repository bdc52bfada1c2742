"""`penstock train` and `penstock sweep`, on a small folder of images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.cli.main import main
from penstock.cli.models import find_model
from penstock.cli.train import Options, full_recipe
from penstock.gating import gated_layers
from penstock.training import Recipe, paper_recipe


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twelve pictures in two classes."""
    chance = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 4)):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for index in range(count // 2):
                pixels = chance.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "images"


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


def test_a_preset_is_where_the_given_options_start_from() -> None:
    options = Options("m_cifarnet", Path("x"), preset="paper", density=0.5, recipe=Recipe(epochs=30))
    recipe = full_recipe(options)
    assert (recipe.epochs, recipe.density) == (30, 0.5)
    assert recipe.learning_rate == paper_recipe().learning_rate


def test_data_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "m_cifarnet", "--out", str(tmp_path), "--data", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
