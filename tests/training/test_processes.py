"""Several processes on gloo: the same losses as one process that accumulates, one state, one score."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.training import tiny

from penstock.training import Recipe, train
from penstock.training.state import STATE_FILE

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.training.tiny"])
RECIPE = tiny.RECIPE.replace(epochs=3, density=0.6, density_schedule="any", average=0.7, penalty=1e-4)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_two(folder: Path, recipe: Recipe, stop_after: int = 0) -> list[int]:
    """Two processes as torchrun would start them; their exit codes."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    folder.mkdir(exist_ok=True)
    processes = []
    for rank in ("0", "1"):
        environment = common | {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
        arguments = (str(folder), recipe, environment, stop_after)
        processes.append(FORKS.Process(target=tiny.share_in_process, args=arguments))
        processes[-1].start()
    processes[0].join()
    processes[1].join(20 if processes[0].exitcode else None)
    processes[1].kill()
    processes[1].join()
    return [process.exitcode or 0 for process in processes]


def alone(recipe: Recipe) -> tuple[tiny.Tiny, list[dict[str, Any]]]:
    made = tiny.Tiny(dropout=0.0)
    made.load_state_dict(tiny.network().state_dict())
    return made, train(made, tiny.data(), tiny.data(30, 1), recipe).history


def history(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return json.loads((folder / f"rank{rank}.json").read_text())


def test_two_processes_have_the_losses_of_one_that_accumulates_two_halves(tmp_path: Path) -> None:
    assert run_two(tmp_path, RECIPE) == [0, 0]
    made, expected = alone(RECIPE.replace(accumulate=2))
    found = history(tmp_path)
    for line, wanted in zip(found, expected, strict=True):
        assert line["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert line["train_top1"] == pytest.approx(wanted["train_top1"])
    trained = safetensors.torch.load_file(tmp_path / "rank0.safetensors")
    for name, parameter in made.named_parameters():
        torch.testing.assert_close(trained[name], parameter.detach(), rtol=1e-4, atol=1e-5)
    # Both processes end with the same network and know the same score, which the main one measured.
    other = safetensors.torch.load_file(tmp_path / "rank1.safetensors")
    assert tiny.same_bits(trained, other)
    assert [line["test_loss"] for line in history(tmp_path, 1)] == [line["test_loss"] for line in found]


def test_two_processes_that_are_killed_go_on_bit_for_bit(tmp_path: Path) -> None:
    assert run_two(tmp_path / "whole", RECIPE) == [0, 0]
    assert run_two(tmp_path / "killed", RECIPE, stop_after=2)[0] != 0
    assert run_two(tmp_path / "killed", RECIPE) == [0, 0]
    whole, killed = (
        safetensors.torch.load_file(tmp_path / name / "rank0.safetensors") for name in ("whole", "killed")
    )
    assert tiny.same_bits(whole, killed)
    assert len(history(tmp_path / "killed", 1)) == 3
    states = [(tmp_path / name / STATE_FILE).exists() for name in ("whole", "killed")]
    assert states == [True, True]


@pytest.mark.soak
def test_torchrun_starts_it_as_well(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom pathlib import Path\nfrom tests.training import test_processes, tiny\n"
        f"tiny.share_in_process({str(tmp_path)!r}, test_processes.RECIPE, dict(os.environ))\n"
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    _, expected = alone(RECIPE.replace(accumulate=2))
    assert [line["loss"] for line in history(tmp_path)] == pytest.approx(
        [w["loss"] for w in expected], rel=1e-5
    )
