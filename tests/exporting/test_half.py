"""Checkpoints whose weights are held in half precision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

import penstock as ps
from penstock.errors import CheckpointError
from penstock.files import canonical, digest


@pytest.fixture
def gated() -> torch.nn.Module:
    torch.manual_seed(3)
    return ps.add_gates(ps.zoo.m_cifarnet(), torch.zeros(1, 3, 32, 32), density=0.5).eval()


def test_the_file_is_half_as_large_and_the_network_the_same_to_eleven_bits(
    gated: torch.nn.Module, tmp_path: Path
) -> None:
    whole, half = tmp_path / "whole.safetensors", tmp_path / "half.safetensors"
    ps.save(gated, whole)
    ps.save(gated, half, half=True)
    assert half.stat().st_size < 0.52 * whole.stat().st_size
    again = ps.load(half)
    for (name, value), other in zip(gated.state_dict().items(), again.state_dict().values(), strict=True):
        assert other.dtype == value.dtype, name
        expected = value.half().float() if value.ndim >= 2 else value
        assert torch.equal(other, expected), name


def test_saved_again_without_half_it_is_an_ordinary_file(gated: torch.nn.Module, tmp_path: Path) -> None:
    ps.save(gated, tmp_path / "half.safetensors", half=True)
    ps.save(ps.load(tmp_path / "half.safetensors"), tmp_path / "whole.safetensors")
    with safetensors.safe_open(tmp_path / "whole.safetensors", framework="pt") as file:
        content = json.loads(file.metadata()["penstock"])
        assert content["format"] == 1
        assert file.get_tensor("conv1.conv.weight").dtype == torch.float32


@pytest.mark.parametrize("value", [1e6, float("inf"), float("nan")])
def test_a_weight_that_float16_cannot_hold_is_named(
    gated: torch.nn.Module, tmp_path: Path, value: float
) -> None:
    with torch.no_grad():
        gated.get_parameter("fc.weight")[0, 0] = value
    path = tmp_path / "net.safetensors"
    with pytest.raises(CheckpointError, match=r"'fc\.weight'.*without half"):
        ps.save(gated, path, half=True)
    assert not path.exists()


@pytest.mark.parametrize("names", [["nothing.weight"], ["fc.bias"], [["fc.weight"]], 5])
def test_a_file_that_names_other_tensors_is_refused(
    gated: torch.nn.Module, tmp_path: Path, names: object
) -> None:
    path = tmp_path / "net.safetensors"
    ps.save(gated, path, half=True)
    with safetensors.safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()["penstock"])
    tensors = safetensors.torch.load_file(path)
    content["network"]["half"] = names
    content["sha256"] = digest(tensors, canonical(content["network"]))
    safetensors.torch.save_file(tensors, path, {"penstock": canonical(content)})
    with pytest.raises(CheckpointError, match=r"net\.safetensors"):
        ps.load(path)
