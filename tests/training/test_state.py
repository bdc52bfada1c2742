"""The state of a run on disk: what is damaged, forged or of the first version is told apart."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.training import tiny

from penstock.errors import CheckpointError
from penstock.training.state import STATE_FILE, Part, load_state, save_state


def test_one_flipped_bit_anywhere_in_the_state_is_noticed(tmp_path: Path) -> None:
    tiny.run(tiny.RECIPE.replace(epochs=1), tmp_path)
    path = tmp_path / STATE_FILE
    whole = path.read_bytes()
    chance = random.Random(0)
    for _ in range(300):
        altered = bytearray(whole)
        altered[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(altered)
        with pytest.raises(CheckpointError, match=STATE_FILE):
            load_state(path)


def test_every_field_of_a_state_is_checked(tmp_path: Path) -> None:
    tiny.run(tiny.RECIPE.replace(epochs=1), tmp_path)
    path = tmp_path / STATE_FILE
    good = load_state(path)
    wrong: list[dict[str, Any]] = [
        {"epoch": -5}, {"epoch": 2}, {"epoch": True}, {"epoch": "1"}, {"recipe": []}, {"recipe": {}},
        {"history": 5}, {"history": []}, {"history": [5]}, {"history": [{"epoch": 3}]},
        {"history": [{"epoch": 1, "loss": "1"}]}, {"history": [{"epoch": 1, "loss": None}]},
        {"part": Part(steps=-1)}, {"part": Part(loss=[])}, {"part": Part(seen=0.5)}, {"tensors": {}},
        {"part": Part(steps=3)}, {"part": Part(1, 0.5, 9, 8)}, {"part": Part(1, 0.5, 8, 8, 0, -1.0)},
    ]  # fmt: skip
    for change in wrong:
        save_state(replace(good, **change), path)  # with a checksum that fits
        with pytest.raises(CheckpointError, match=STATE_FILE):
            load_state(path)
    save_state(good, path)
    assert load_state(path).history == good.history


def test_a_state_of_the_first_version_still_goes_on(tmp_path: Path) -> None:
    tiny.run(tiny.RECIPE.replace(epochs=1), tmp_path)
    path = tmp_path / STATE_FILE
    state = load_state(path)
    old = {"penstock-run": "1", "epoch": "1", "recipe": json.dumps(state.recipe)}
    safetensors.torch.save_file(state.tensors, path, old | {"history": json.dumps(state.history)})
    assert load_state(path).epoch == 1
    safetensors.torch.save_file(state.tensors, path, old | {"history": "5"})
    with pytest.raises(CheckpointError, match="history"):
        load_state(path)


def test_a_damaged_state_is_an_error_that_names_it(tmp_path: Path) -> None:
    tiny.run(tiny.RECIPE.replace(epochs=1), tmp_path)
    path = tmp_path / STATE_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=STATE_FILE):
        tiny.run(tiny.RECIPE.replace(epochs=1), tmp_path)
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not the state of a Penstock run"):
        load_state(path)
