"""A run that is stopped and started again ends bit for bit where an uninterrupted one does."""

from __future__ import annotations

import json
import multiprocessing
import os
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
from penstock.training.state import STATE_FILE, Part, load_state, save_state

# This server has imported torch once, so that the processes it starts cost little; they share no state.
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
        tiny.RECIPE.replace(momentum=0.0, schedule="step", step_epochs=2, channels_last=False),
        tiny.RECIPE.replace(density=0.5, density_schedule="paper", average=0.9, schedule="linear"),
        tiny.RECIPE.replace(density=0.4, density_schedule="anneal", warmup=0.5, seed=7),
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


@pytest.mark.parametrize("at", [1, 2, 6, 11])
@pytest.mark.parametrize("recipe", [tiny.RICH, tiny.RECIPE.replace(density=0.4, density_schedule="anneal")])
def test_a_state_saved_inside_an_epoch_goes_on_bit_for_bit(recipe: Recipe, at: int, tmp_path: Path) -> None:
    whole, expected = tiny.run(recipe)
    with pytest.raises(Stop):
        tiny.run(recipe, tmp_path, on_step=stopping(at), state_every=0.0)
    state = load_state(tmp_path / STATE_FILE) if at > 1 else None
    assert state is None or (state.epoch, state.part.steps) == divmod(at - 1, 4)
    seen: list[Any] = []
    made, result = tiny.run(recipe, tmp_path, on_step=seen.append)
    assert len(seen) == 16 - (at - 1)  # nothing that was saved is computed again
    assert tiny.same_bits(tiny.weights(made), tiny.weights(whole))
    keep = ("epoch", "loss", "train_top1", "test_top1", "density")
    assert [[line[key] for key in keep] for line in result.history] == [
        [line[key] for key in keep] for line in expected.history
    ]


def test_a_run_with_a_time_limit_stops_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, _ = tiny.run()
    made, result = tiny.run(out=tmp_path, minutes=1e-9)
    assert not result.finished
    assert load_state(tmp_path / STATE_FILE).part.steps == 1
    for _ in range(20):
        made, result = tiny.run(out=tmp_path, minutes=1e-9)
        if result.finished:
            break
    assert result.finished
    assert tiny.same_bits(tiny.weights(made), tiny.weights(whole))
    with pytest.raises(TrainingError, match="minutes"):
        tiny.run(minutes=5)


def test_distillation_goes_on_bit_for_bit(tmp_path: Path) -> None:
    recipe = tiny.RECIPE.replace(distill=0.5)
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
    tiny.run(tiny.RECIPE.replace(epochs=1), tmp_path)
    with pytest.raises(TrainingError, match=r"learning_rate was 0.05 and is now 0.01"):
        tiny.run(tiny.RECIPE.replace(epochs=1, learning_rate=0.01), tmp_path)
    tiny.run(tiny.RECIPE.replace(epochs=1, threads=0), tmp_path)


def test_another_network_does_not_go_on(tmp_path: Path) -> None:
    tiny.run(tiny.RECIPE.replace(epochs=1), tmp_path)
    with pytest.raises(TrainingError, match="does not fit this network"):
        train(tiny.network(gated=False), tiny.data(), None, tiny.RECIPE.replace(epochs=1), out=tmp_path)


def test_a_forged_state_that_does_not_fit_its_run_is_refused(tmp_path: Path) -> None:
    """With a checksum that fits, numbers that could be, and tensors that `copy_` would stretch."""
    recipe = tiny.RECIPE.replace(epochs=1, average=0.9)
    tiny.run(recipe, tmp_path)
    path = tmp_path / STATE_FILE
    good = load_state(path)
    name = next(
        name for name in good.tensors if name.startswith("momentum.") and good.tensors[name].dim() > 1
    )
    twice = [good.history[0], good.history[0] | {"epoch": 2}]
    wrong: list[dict[str, Any]] = [
        {"tensors": good.tensors | {name: torch.zeros(1)}},
        {"tensors": good.tensors | {name.replace("momentum", "average", 1): torch.zeros(1)}},
        {"tensors": good.tensors | {"average_updates": torch.tensor(-1)}},
        {"tensors": good.tensors | {"average_updates": torch.tensor(float("nan"))}},
        {"tensors": good.tensors | {"average_updates": torch.zeros(2)}},
        {"epoch": 2, "history": twice},
        {"part": Part(1, 0.5, 1, 8)},
        {"epoch": 0, "history": [], "part": Part(10**9, 0.5, 1, 8)},
    ]
    for change in wrong:
        save_state(replace(good, **change), path)
        with pytest.raises((CheckpointError, TrainingError), match=STATE_FILE):
            tiny.run(recipe, tmp_path)


def test_a_second_training_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """While one is at work, in this process and in another; a killed one leaves no lock behind."""

    def second(_: Any) -> None:
        with pytest.raises(TrainingError, match=f"process {os.getpid()}.*at work"):
            tiny.run(out=tmp_path)
        process = start(tmp_path)
        process.join()
        assert process.exitcode == 1
        raise Stop

    with pytest.raises(Stop):
        tiny.run(out=tmp_path, on_step=second)
    process = start(tmp_path, die_at_sync=2)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    tiny.run(tiny.RICH.replace(threads=1), tmp_path)
