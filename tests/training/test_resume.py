"""A run that is stopped and started again ends bit for bit where an uninterrupted one does."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.training import tiny
from torch import Tensor

from penstock.errors import CheckpointError, TrainingError
from penstock.training import Recipe, train
from penstock.training.state import STATE_FILE, load_state

# A server that has imported torch once: a new process then costs little, and holds nothing of this one.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.training.tiny"])


class Stop(Exception):
    """Raised by the tests in the middle of a run."""


def stopping(at: int) -> Any:
    calls = iter(range(1, 10_000))

    def on_step(step: object) -> None:
        if next(calls) == at:
            raise Stop

    return on_step


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Tensor]:
    made, _ = tiny.run()
    return tiny.weights(made)


@pytest.mark.parametrize("at", [1, 5, 9, 16])
def test_a_run_that_stops_in_any_epoch_goes_on(
    at: int, tmp_path: Path, uninterrupted: dict[str, Tensor]
) -> None:
    with pytest.raises(Stop):
        tiny.run(out=tmp_path, on_step=stopping(at))
    made, result = tiny.run(out=tmp_path)
    assert tiny.same_bits(tiny.weights(made), uninterrupted)
    assert [line["epoch"] for line in result.history] == [1, 2, 3, 4]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == result.history


@pytest.mark.parametrize(
    "recipe",
    [
        tiny.RECIPE,
        replace(tiny.RECIPE, momentum=0.0, schedule="step", step_epochs=2, channels_last=False),
        replace(tiny.RECIPE, density=0.5, density_schedule="paper", average=0.9, schedule="linear"),
        replace(tiny.RECIPE, density=0.4, density_schedule="anneal", warmup=0.5, seed=7),
    ],
)
def test_every_kind_of_recipe_goes_on_bit_for_bit(recipe: Recipe, tmp_path: Path) -> None:
    whole, expected = tiny.run(recipe)
    with pytest.raises(Stop):
        tiny.run(recipe, tmp_path, on_step=stopping(7))
    made, result = tiny.run(recipe, tmp_path)
    assert tiny.same_bits(tiny.weights(made), tiny.weights(whole))
    drop = ("seconds", "images_per_second")
    assert [{k: v for k, v in line.items() if k not in drop} for line in result.history] == [
        {k: v for k, v in line.items() if k not in drop} for line in expected.history
    ]


def test_distillation_goes_on_bit_for_bit(tmp_path: Path) -> None:
    recipe = replace(tiny.RECIPE, distill=0.5)
    whole, _ = tiny.run(recipe, teacher=tiny.network(seed=3))
    with pytest.raises(Stop):
        tiny.run(recipe, tmp_path, teacher=tiny.network(seed=3), on_step=stopping(6))
    made, _ = tiny.run(recipe, tmp_path, teacher=tiny.network(seed=3))
    assert tiny.same_bits(tiny.weights(made), tiny.weights(whole))


def start(folder: Path, die_at_sync: int = 0) -> Any:
    process = FORKS.Process(target=tiny.run_in_process, args=(str(folder), die_at_sync))
    process.start()
    return process


def finish(folder: Path) -> None:
    process = start(folder)
    process.join()
    assert process.exitcode == 0


def kill_and_finish(folder: Path, kills: int, seed: int) -> None:
    """Start, kill -9 at a random moment of the run, start again, …; then let it finish."""
    finish(folder / "warm")  # the first process also waits for the server's imports
    begin = time.monotonic()
    finish(folder / "timed")
    length = time.monotonic() - begin
    chance = random.Random(seed)
    hit = 0
    while hit < kills:
        process = start(folder)
        process.join(chance.uniform(0.0, length))
        process.kill()
        process.join()
        hit += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0:  # it was faster: begin anew for the kills that are left
            for path in folder.glob("*.*"):
                path.unlink()
    finish(folder)


def assert_final(folder: Path, expected: dict[str, Tensor]) -> None:
    assert tiny.same_bits(safetensors.torch.load_file(folder / "final.safetensors"), expected)
    assert not list(folder.glob(".*.partial"))  # what killed writes leave is cleared away
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4


def test_three_kills_at_random_moments_change_no_bit(
    tmp_path: Path, uninterrupted: dict[str, Tensor]
) -> None:
    kill_and_finish(tmp_path, 3, seed=1)
    assert_final(tmp_path, uninterrupted)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_twenty_kills_at_random_moments_change_no_bit(
    seed: int, tmp_path: Path, uninterrupted: dict[str, Tensor]
) -> None:
    kill_and_finish(tmp_path, 20, seed)
    assert_final(tmp_path, uninterrupted)


def test_kills_in_the_middle_of_saving_change_no_bit(
    tmp_path: Path, uninterrupted: dict[str, Tensor]
) -> None:
    # The first syncs of a run are those of run.toml, the state and the metrics, in turn.
    for at in (1, 2, 3, 4):
        process = start(tmp_path, at)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert list(tmp_path.glob(".*.partial"))
    finish(tmp_path)
    assert_final(tmp_path, uninterrupted)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first, result = tiny.run(out=tmp_path)
    second, again = tiny.run(out=tmp_path, on_step=stopping(1))
    assert tiny.same_bits(tiny.weights(first), tiny.weights(second))
    assert again.history == result.history
    assert again.score is not None
    assert result.score is not None
    assert again.score.top1 == result.score.top1


def test_another_recipe_does_not_go_on_and_says_what_changed(tmp_path: Path) -> None:
    tiny.run(replace(tiny.RECIPE, epochs=1), tmp_path)
    with pytest.raises(TrainingError, match=r"learning_rate was 0.05 and is now 0.01"):
        tiny.run(replace(tiny.RECIPE, epochs=1, learning_rate=0.01), tmp_path)
    tiny.run(replace(tiny.RECIPE, epochs=1, threads=0), tmp_path)


def test_another_network_does_not_go_on(tmp_path: Path) -> None:
    tiny.run(replace(tiny.RECIPE, epochs=1), tmp_path)
    with pytest.raises(TrainingError, match="does not fit this network"):
        train(tiny.network(gated=False), tiny.data(), None, replace(tiny.RECIPE, epochs=1), out=tmp_path)


def test_a_damaged_state_is_an_error_that_names_it(tmp_path: Path) -> None:
    tiny.run(replace(tiny.RECIPE, epochs=1), tmp_path)
    path = tmp_path / STATE_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=STATE_FILE):
        tiny.run(replace(tiny.RECIPE, epochs=1), tmp_path)
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not the state of a Penstock run"):
        load_state(path)
