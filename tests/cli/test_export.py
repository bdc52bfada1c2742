"""penstock export: the file, where it goes, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import penstock as ps
from penstock.cli.main import main
from penstock.cli.models import default_place
from penstock.exporting import OnnxNetwork

pytest.importorskip("onnx", reason="pip install 'penstock[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'penstock[onnx]'")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with a gated checkpoint at density 0.5."""
    folder = tmp_path_factory.mktemp("run")
    gated = ps.add_gates(ps.zoo.m_cifarnet(), torch.randn(2, 3, 32, 32), density=0.5, init="paper")
    ps.save(gated, folder / "model.safetensors")
    return folder


def test_a_run_is_exported_beside_its_checkpoint_and_checked(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run_folder), "--to", "onnx", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["path"] == str(run_folder / "model.onnx")
    assert (said["inputs"], said["density"], said["gated_layers"]) == (["images", "density"], 0.5, 8)
    assert [check["density"] for check in said["checks"]] == [0.3, 0.5, 1.0]
    assert all(check["ms"] > 0 for check in said["checks"])
    images = torch.randn(2, 3, 32, 32)
    network = ps.load(run_folder / "model.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(OnnxNetwork(said["path"])(images), network(images), rtol=1e-4, atol=1e-4)


def test_the_masked_form_at_a_fixed_density_goes_where_it_is_told(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "masked.onnx"
    words = ["export", str(run_folder), "--out", str(place), "--density", "0.3", "--no-skipping"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "any batch" in out
    assert "d = 0.3" in out
    exported = OnnxNetwork(place)
    assert exported(torch.randn(3, 3, 32, 32)).shape == (3, 10)
    with pytest.raises(ps.PenstockError, match="fixed when this network was exported"):
        exported(torch.randn(1, 3, 32, 32), density=0.5)


def test_a_wrong_density_or_place_is_one_line_and_exit_code_2(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run_folder), "--density", "half"]) == 2
    assert "--density: expected a number in ]0, 1], 'input' or 'own', got 'half'" in capsys.readouterr().err
    assert main(["export", str(run_folder), "--out", str(tmp_path / "absent" / "x.onnx")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_default_place_follows_the_model() -> None:
    assert default_place("runs/x.safetensors", ".onnx") == Path("runs/x.onnx")
    assert default_place("torchvision.models:resnet18", ".onnx") == Path("resnet18.onnx")
