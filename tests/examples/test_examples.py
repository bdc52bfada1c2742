"""The examples run as they stand, on the embedded sample, and give what they promise."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_timm_network_is_gated_and_fine_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    top1 = example("finetune_timm").main(["--images", "60"])
    printed = capsys.readouterr().out
    assert "of 20 convolutions gated" in printed
    saving = re.search(r"([\d.]+)× fewer MACs at density 0.5", printed)
    assert saving is not None
    assert float(saving[1]) > 2
    assert 0 <= top1 <= 100


def test_an_own_loop_trains_the_gates(capsys: pytest.CaptureFixture[str]) -> None:
    losses = example("own_loop").main(steps=2)
    assert len(losses) == 2
    assert max(losses) < 2.3  # below guessing: the network is trained already
    assert "right through the engine" in capsys.readouterr().out


def test_a_budget_becomes_densities_that_meet_it(capsys: pytest.CaptureFixture[str]) -> None:
    budget = example("latency_budget").main(["--saving", "3", "--images", "20"])
    assert len(budget.densities) == 8
    assert budget.saving >= 2.9
    assert "conv7" in capsys.readouterr().out


def test_the_file_for_the_browser_answers_at_every_density(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = example("browser").main(["--out", str(tmp_path / "network.onnx")])
    assert out.stat().st_size > 1_000_000
    right = [int(found) for found in re.findall(r": (\d) of 8 images right", capsys.readouterr().out)]
    assert len(right) == 3
    assert min(right) >= 5


def test_every_cell_of_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # outputs belong to the reader's machine
            exec("".join(cell["source"]), names)
    printed = capsys.readouterr().out
    assert "8 of 8 convolutions gated" in printed
    assert "conv4 computes [64, 64] of 128 channels" in printed
    assert len(re.findall(r"\d+% right, [\d.]+ ms an image", printed)) == 4


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".ipynb"):
            assert f"({path.name})" in listed
