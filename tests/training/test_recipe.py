"""Recipes: parts, names, records of earlier versions, and what is said about a name that does not exist."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training import tiny

from penstock.errors import CheckpointError, TrainingError
from penstock.files import canonical, digest
from penstock.training import Gates, Loss, Optimiser, Recipe, finetune_recipe, paper_recipe
from penstock.training.record import RECORD_FILE, to_toml
from penstock.training.state import STATE_FILE, load_state

RUNS = sorted((Path(__file__).parents[2] / "results").rglob(RECORD_FILE))
OTHER = {
    "epochs": 3, "density": 0.4, "warmup": 0.3, "momentum": 0.5, "label_smoothing": 0.2, "distill": 0.9,
    "density_schedule": "anneal", "anneal_to": 0.7, "cutout": 3, "mixup": 0.2, "image_sizes": "0:8,0.5:9",
    "winograd": False,
}  # fmt: skip


def test_every_choice_has_one_name_over_all_parts() -> None:
    values = {one.name: getattr(Recipe(), one.name) for one in fields(Recipe)}
    parts = {name: value for name, value in values.items() if is_dataclass(value)}
    inside = [one.name for part in parts.values() for one in fields(part)]
    assert len(inside) == len(set(inside) - set(values))
    assert set(Recipe().flat()) == (set(values) - set(parts)) | set(inside)


@given(st.sets(st.sampled_from(sorted(OTHER))))
def test_a_record_with_parts_and_one_without_are_the_same_recipe(chosen: set[str]) -> None:
    recipe = Recipe().replace(**{name: OTHER[name] for name in chosen})
    assert set(Recipe().differences(recipe)) == chosen
    assert Recipe.from_record(recipe.flat()) == recipe
    assert Recipe.from_record(asdict(recipe)) == recipe
    assert Recipe.from_record(tomllib.loads(to_toml(asdict(recipe)))) == recipe
    assert Recipe.from_record(json.loads(json.dumps(asdict(recipe)))) == recipe


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.parent.name))
def test_the_records_of_published_runs_are_understood(path: Path) -> None:
    record = tomllib.loads(path.read_text())["recipe"]
    recipe = Recipe.from_record(record).flat()
    choices: dict[str, Any] = {}  # earlier runs recorded them without parts
    for name, value in record.items():
        choices |= value if isinstance(value, dict) else {name: value}
    assert {name: recipe[name] for name in choices} == choices


@pytest.mark.parametrize("threads", [-1, 100_000, 1.5])
def test_threads_that_torch_cannot_start_are_refused(threads: Any) -> None:
    with pytest.raises(TrainingError, match=f"threads: expected 0 .* to 1024, got {threads}"):
        Recipe(threads=threads)


def test_the_presets_are_what_they_were_without_parts() -> None:
    assert Recipe().differences(finetune_recipe()).keys() == {
        "epochs", "learning_rate", "label_smoothing", "density", "density_schedule", "anneal_from",
        "anneal_to", "distill", "statistics", "schedule", "average", "choice_noise",
    }  # fmt: skip
    assert Recipe().differences(paper_recipe()).keys() == {
        "epochs", "batch_size", "learning_rate", "schedule", "warmup", "label_smoothing", "crop_padding",
        "colour",
    }  # fmt: skip


def test_a_run_of_an_earlier_version_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Its state has the recipe without parts, and lacks what was not yet a choice."""

    def stop(step: Any) -> None:
        if (step.epoch, step.step) == (2, 0):
            raise KeyboardInterrupt

    whole, expected = tiny.run(tiny.RICH)
    with pytest.raises(KeyboardInterrupt):
        tiny.run(tiny.RICH, tmp_path, on_step=stop)
    state = load_state(tmp_path / STATE_FILE)
    flat = {
        name: value for name, value in tiny.RICH.flat().items() if name not in ("statistics", "any_levels")
    }
    said = canonical({"epoch": 2, "part": asdict(state.part), "recipe": flat, "history": state.history})
    metadata = {"penstock-run": "2", "state": said, "sha256": digest(state.tensors, said)}
    safetensors.torch.save_file(state.tensors, tmp_path / STATE_FILE, metadata)
    made, result = tiny.run(tiny.RICH, tmp_path)
    found = made.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in whole.state_dict().items())
    assert [line["loss"] for line in result.history] == [line["loss"] for line in expected.history]


def test_a_state_whose_recipe_has_a_choice_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    recipe = tiny.RECIPE.replace(epochs=1)
    tiny.run(recipe, tmp_path)
    state = load_state(tmp_path / STATE_FILE)
    state.recipe["optimiser"]["warmpu"] = 0.2
    said = canonical(
        {"epoch": 1, "part": asdict(state.part), "recipe": state.recipe, "history": state.history}
    )
    metadata = {"penstock-run": "2", "state": said, "sha256": digest(state.tensors, said)}
    safetensors.torch.save_file(state.tensors, tmp_path / STATE_FILE, metadata)
    with pytest.raises(CheckpointError, match=r"state\.safetensors.*warmpu.*did you mean warmup"):
        tiny.run(recipe, tmp_path)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Recipe(epoch=5), "epoch=….*did you mean epochs"),  # type: ignore[call-arg]
        (lambda: Recipe(warmup=0.2), r"Recipe\(optimiser=Optimiser\(warmup=…\)\)"),  # type: ignore[call-arg]
        (lambda: Recipe(loss=Loss(distil=0.5)), r"Loss\(distil=….*did you mean distill"),  # type: ignore[call-arg]
        (lambda: Gates(zzz=1), "there are density_schedule, anneal_from"),  # type: ignore[call-arg]
        (lambda: Recipe().replace(momentun=0.5), "did you mean momentum"),
        (lambda: Recipe(optimiser={"warmup": 0.2}), r"recipe.optimiser: expected Optimiser\(…\), got {"),  # type: ignore[arg-type]
        (lambda: Optimiser(warmup="a"), "recipe.optimiser.warmup: expected a number from 0 to 1, got 'a'"),  # type: ignore[arg-type]
        (lambda: Recipe.from_record({"optimizer": {}}), "did you mean optimiser"),
        (lambda: Recipe.from_record({"loss": {"warmup": 0.2}}), r"Loss\(warmup=…\)"),
        (lambda: Recipe.from_record({"loss": 5}), "recipe.loss: expected the choices of this part, got 5"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_the_one_that_does(made: Any, said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        made()
