"""MODEL in all its forms: libraries, the user's own modules, and checkpoints that name them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.cli.main import main
from penstock.cli.models import ModelOptions, find_model
from penstock.datasets import Preprocess
from penstock.errors import CheckpointError, LayerError
from penstock.exporting.container import write_container
from penstock.exporting.libraries import make, mend_torchvision

MINE = """
    from torch import nn

    class Mine(nn.Sequential):
        pass

    def build():
        body = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]
        return Mine(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))

    def broken():
        return 1 / 0

    def text():
        return "no network"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's own module, as the current one; imports do not look there by themselves."""
    (tmp_path / "my_networks.py").write_text(textwrap.dedent(MINE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)
    return tmp_path


def test_an_own_network_is_trained_and_then_used_by_every_command(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train",
        "my_networks:build",
        "--out",
        "run",
        "--data",
        "sample",
        "--density",
        "0.5",
        "--epochs",
        "1",
    ]
    assert main([*words, "--recipe.batch-size", "400", "--holdout", "200", "--json"]) == 0
    assert "finished: 1 epoch" in capsys.readouterr().err
    assert main(["evaluate", "run", "--data", "sample", "--images", "20", "--no-engine"]) == 2
    said = capsys.readouterr().err
    assert "--trust-import" in said
    assert "my_networks:build" in said
    commands = {
        "evaluate": ["run", "--data", "sample", "--images", "20", "--no-engine"],
        "inspect": ["run", "--no-time", "--input", "3x32x32"],
        "bench": ["run", "--against", "torch", "--density", "0.5", "--seconds", "0.1", "--size", "32"],
        "export": ["run", "--no-check", "--out", "run.onnx"],
        "sweep": ["run", "--data", "sample", "--epochs", "0", "--densities", "0.5"],
        "report": [".", "--images", "20", "--no-engine"],
    }
    for command, arguments in commands.items():
        assert main([command, *arguments, "--trust-import", "--json"]) == 0, command
        said = capsys.readouterr().out
        assert "trust" not in said, command
        json.loads(said)
    assert json.loads(said)["networks"] == ["run"]  # the report looked into it


def test_a_module_is_found_in_the_current_folder_by_the_installed_command_too(here: Path) -> None:
    """A script elsewhere, as pip installs one: its folder, not the current one, is on the path."""
    script = here / "bin" / "penstock"
    script.parent.mkdir()
    script.write_text("import sys; from penstock.cli.main import main; sys.exit(main())")
    words = ["inspect", "my_networks:build", "--input", "3x8x8", "--no-time", "--json"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(Path(one).resolve()) for one in sys.path if one)
    }
    done = subprocess.run([sys.executable, script, *words], cwd=here, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gated"] == 2


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("my_networks:broken", r"ZeroDivisionError.*my_networks\.py, line 12"),
        ("my_networks:text", "expected a torch.nn.Module, got str"),
        ("my_networks:nothing", "nothing"),
        ("no_such_module:build", "no_such_module"),
        ("timm:no_such_network", "timm has no such network"),
        ("timm:hf_hub:someone/thing", "timm has no such network"),
        ("torchvision:no_such_network", "torchvision has no such network"),
        ("nonsense", "timm:NAME, torchvision:NAME or module:callable"),
    ],
)
def test_a_model_that_cannot_be_is_one_line(
    here: Path, spec: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LayerError, match=said):
        find_model(spec)
    assert main(["inspect", spec]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("spec", ["timm:resnet18", "torchvision:mobilenet_v3_small"])
def test_networks_of_libraries_are_made_saved_and_loaded_without_trust(spec: str, tmp_path: Path) -> None:
    network = find_model(spec, 7).eval()
    assert network.preprocess == Preprocess((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    gated = ps.add_gates(network, torch.zeros(1, 3, 64, 64), 0.5)
    ps.save(gated, tmp_path / "file.safetensors")
    loaded = ps.load(tmp_path / "file.safetensors")
    x = torch.randn(2, 3, 64, 64)
    assert loaded(x).shape == (2, 7)
    assert torch.equal(loaded(x), gated.eval()(x))
    assert loaded.preprocess == network.preprocess


def test_values_that_no_state_dict_holds_come_from_the_library(tmp_path: Path) -> None:
    network = find_model("timm:resnetblur18", 3).eval()
    ps.save(network, tmp_path / "file.safetensors")
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(ps.load(tmp_path / "file.safetensors")(x), network(x))


def test_a_small_file_cannot_ask_for_a_large_network_of_a_library(tmp_path: Path) -> None:
    definition = {"library": "timm", "name": "vgg19", "arguments": {}}
    write_container(tmp_path / "file.safetensors", {"x": torch.zeros(1)}, {"definition": definition})
    with pytest.raises(CheckpointError, match="do not account for the memory of timm:vgg19"):
        ps.load(tmp_path / "file.safetensors")


def test_library_networks_are_made_whatever_the_state_of_torchvisions_operators() -> None:
    """In a process where nothing was declared before, and in one where the operators exist already."""
    code = """
        import torch
        if {there}:
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from penstock.exporting.libraries import make, mend_torchvision
        first = mend_torchvision()
        assert not ({there} and first), first
        assert mend_torchvision() == []
        print(type(make("torchvision", "squeezenet1_1", 5)).__name__)
        """
    for there in (True, False):
        text = textwrap.dedent(code.format(there=there))
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert done.stdout.strip() == "SqueezeNet", done.stderr


def test_a_trusted_file_is_followed_and_another_is_not(here: Path) -> None:
    ps.save(find_model("my_networks:build"), here / "mine.safetensors")
    del sys.modules["my_networks"]
    sys.path.remove(str(here))
    with pytest.raises(CheckpointError, match="--trust-import"):
        find_model("mine.safetensors")
    assert "my_networks" not in sys.modules
    assert isinstance(find_model("mine.safetensors", trust=ModelOptions(trust_import=True)), nn.Sequential)


def test_making_by_name_needs_no_download() -> None:
    assert isinstance(make("torchvision", "googlenet", 4), nn.Module)
    assert mend_torchvision() == []
