"""From a finished run to a published checkpoint, with a small network and the embedded images."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import penstock as ps
from penstock.cli.sources import Source, remember, remembered
from penstock.errors import CheckpointError, DataError
from penstock.exporting.container import read_description
from penstock.reporting.comparison import Accuracy

published = importlib.import_module("penstock.zoo.pretrained")  # the package has a function of this name
NAME = "resnet18-imagenette-any"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "results" / "ship.py"
    spec = importlib.util.spec_from_file_location("ship", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    network = ps.zoo.pretrained("m_cifarnet-cifar10-d50")
    ps.save(network, folder / "model.safetensors")
    remember(Source("sample", 32, 0), folder)
    return folder


def test_what_is_shipped_is_half_as_large_equal_in_accuracy_and_says_its_terms(
    script: ModuleType, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "data"))
    to = tmp_path / "data" / "checkpoints"
    (row,) = script.ship(run, NAME, [0.5], to)
    file = to / f"{NAME}.safetensors"
    assert abs(row["top1"] - row["top1_half"]) <= 0.05
    assert file.stat().st_size < 0.55 * (run / "model.safetensors").stat().st_size
    notes = read_description(file)["notes"]
    assert "trained on sample" in notes["terms"]
    # From here on it is known by its name, with the data that it was trained on.
    assert NAME in published.available()
    assert remembered(NAME) == Source("sample", 32, 0)
    again = ps.zoo.pretrained(NAME)
    assert next(again.parameters()).dtype is torch.float32
    assert "ImageNet" in script.TERMS["imagenette"]


def test_half_precision_that_costs_accuracy_is_not_shipped(
    script: ModuleType, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([[Accuracy(90.0, 99.0)], [Accuracy(89.9, 99.0)]])
    monkeypatch.setattr(script, "score", lambda *_: next(scores))
    with pytest.raises(CheckpointError, match=r"90\.00% in float32 and 89\.90% in half precision"):
        script.ship(run, NAME, [], tmp_path)
    assert not (tmp_path / f"{NAME}.safetensors").exists()


def test_a_run_that_does_not_say_its_data_is_refused(script: ModuleType, run: Path, tmp_path: Path) -> None:
    (run / "data.json").unlink()
    with pytest.raises(DataError, match=r"no data\.json"):
        script.ship(run, NAME, [], tmp_path)


def test_a_large_checkpoint_that_is_not_there_says_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    monkeypatch.setattr(published, "_BESIDE", tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"results/checkpoints of the repository and put it into"):
        ps.zoo.pretrained(NAME)
