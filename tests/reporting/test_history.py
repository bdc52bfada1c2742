"""The recorder keeps what skip_maps saw, epoch by epoch, and a damaged file is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock.errors import CheckpointError
from penstock.reporting import SkipRecorder, read_history, skip_maps
from penstock.training import Recipe, train

from .networks import TwoLayers, coloured


def test_what_was_recorded_is_read_back_in_the_order_of_epochs(tmp_path: Path) -> None:
    network, data = TwoLayers(), coloured()
    record = SkipRecorder(data, tmp_path)
    record({"epoch": 10}, network)
    seen = skip_maps(network, data)
    with torch.no_grad():
        network.second.gate.bias[2] = 9.0  # now channel 2 always wins
    record({"epoch": 2}, network)
    early, late = read_history(tmp_path)
    assert (early.epoch, late.epoch) == (2, 10)
    assert late.classes == ("red", "green", "blue")
    assert late.density == 0.75
    for kept, one in zip(late.maps, seen, strict=True):
        assert kept.layer == one.layer
        assert np.array_equal(kept.skipped, one.skipped)
        assert np.array_equal(kept.images, one.images)
    assert early.maps[1].probability[:, 2].tolist() == [0.0, 0.0, 0.0]


def test_it_is_a_callback_of_training_and_calls_the_next_one(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(metrics: dict[str, Any], network: nn.Module) -> None:
        seen.append(metrics["epoch"])

    data = coloured()
    recipe = Recipe(epochs=2, batch_size=6, density=0.5, learning_rate=1e-6).replace(crop_padding=0)
    train(TwoLayers(), data, data, recipe, on_epoch=SkipRecorder(data, tmp_path, then=note))
    assert seen == [1, 2]
    assert [skips.epoch for skips in read_history(tmp_path)] == [1, 2]


def test_it_looks_at_no_more_images_than_asked_equally_many_of_each_class(tmp_path: Path) -> None:
    SkipRecorder(coloured(20), tmp_path, limit=6)({"epoch": 1}, TwoLayers())
    (skips,) = read_history(tmp_path)
    assert skips.maps[0].images.tolist() == [2, 2, 2]


def test_a_network_without_gates_leaves_no_file(tmp_path: Path) -> None:
    SkipRecorder(coloured(), tmp_path)({"epoch": 1}, nn.Conv2d(3, 3, 1))
    assert read_history(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_cut_off_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    SkipRecorder(coloured(), tmp_path)({"epoch": 1}, TwoLayers())
    path = tmp_path / "skipping" / "epoch-0001.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=r"epoch-0001\.safetensors"):
        read_history(tmp_path)


def test_a_foreign_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    import safetensors.torch

    (tmp_path / "skipping").mkdir()
    safetensors.torch.save_file({"images": torch.ones(3)}, tmp_path / "skipping" / "epoch-0003.safetensors")
    with pytest.raises(CheckpointError, match=r"epoch-0003\.safetensors: not an epoch of skipping maps"):
        read_history(tmp_path)
