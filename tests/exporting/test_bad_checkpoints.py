"""Checkpoints that are cut off, altered, foreign or impossible: each is refused, and says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporting.kept import Mine, shaken
from torch import Tensor, nn

import penstock as ps
from penstock.errors import CheckpointError
from penstock.exporting import read_notes
from penstock.exporting.container import VERSION, write_container

# What can be wrong with a file.


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("good") / "good.safetensors"
    torch.manual_seed(0)
    gated = ps.add_gates(shaken(Mine(4)), torch.randn(1, 3, 16, 16), 0.5)
    ps.save(gated, file, notes={"a": 1})
    return file


def rewritten(good: Path, target: Path, change: Any) -> Path:
    """The same file with its description or tensors changed and its checksum made anew."""
    with safetensors.safe_open(good, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        description = json.loads(file.metadata()["penstock"])["network"]
    change(description, tensors)
    write_container(target, tensors, description)
    return target


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere\.safetensors: there is no such file"):
        ps.load(tmp_path / "nowhere.safetensors")


@settings(max_examples=25)
@given(st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused_wherever_it_was_cut(good: Path, share: float) -> None:
    whole = good.read_bytes()
    cut = good.with_name("cut.safetensors")
    cut.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError, match=r"cut\.safetensors: .*(again|path)"):
        ps.load(cut, Mine(4))


@settings(max_examples=40)
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_one_altered_byte_anywhere_is_noticed(good: Path, share: float, flip: int) -> None:
    content = bytearray(good.read_bytes())
    content[int(share * len(content))] ^= flip
    altered = good.with_name("altered.safetensors")
    altered.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"altered\.safetensors"):
        ps.load(altered, Mine(4))


def test_foreign_files_are_told_apart(tmp_path: Path) -> None:
    picture, pickle = tmp_path / "picture.png", tmp_path / "weights.pt"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    torch.save({"weight": torch.zeros(1)}, pickle)
    for file in (picture, pickle):
        with pytest.raises(CheckpointError, match="not a whole safetensors file"):
            ps.load(file, Mine())
    plain, state = tmp_path / "plain.safetensors", tmp_path / "state.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(1)}, plain)
    with pytest.raises(CheckpointError, match=r"not one that penstock\.save wrote.*load_state_dict"):
        ps.load(plain, Mine())
    safetensors.torch.save_file({"weight": torch.zeros(1)}, state, {"penstock-run": "1"})
    with pytest.raises(CheckpointError, match="state of a training run"):
        ps.load(state)
    with pytest.raises(CheckpointError, match="no such file"):
        ps.load(tmp_path)


@pytest.mark.parametrize(
    ("version", "said"), [(VERSION + 1, "newer Penstock.*pip install"), (0, "'?0'?"), ("x", "'x'")]
)
def test_other_format_versions(tmp_path: Path, version: object, said: str) -> None:
    file = tmp_path / "file.safetensors"
    content = json.dumps({"format": version, "network": {}, "sha256": ""})
    safetensors.torch.save_file({"weight": torch.zeros(1)}, file, {"penstock": content})
    with pytest.raises(CheckpointError, match=said):
        ps.load(file, Mine())
    with pytest.raises(CheckpointError, match=said):
        read_notes(file)


def test_another_model_is_refused_with_the_tensor_that_does_not_fit(good: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"does not fit the model given: 'block.*\(4, 4, 3, 3\).*\(8, 8, 3, 3\)"
    ):
        ps.load(good, Mine(8))
    with pytest.raises(CheckpointError, match=r"'block'.*there is no such layer"):
        ps.load(good, nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)))
    with pytest.raises(CheckpointError, match=r"expected a torch\.nn\.Module as model, got str"):
        ps.load(good, "Mine")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"expected a torch\.nn\.Module, got dict"):
        ps.save({}, good.with_name("never.safetensors"))  # type: ignore[arg-type]


def _drop(description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    del tensors["head.bias"]


def _add(description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["surprise"] = torch.zeros(1)


def _widen(description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["head.bias"] = torch.zeros(6)


def _forget_shape(description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    description["input_shape"] = None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_drop, "'head.bias' missing"),
        (_add, "'surprise' unexpected"),
        (_widen, r"'head\.bias' has shape \(6,\)"),
        (_forget_shape, "does not record the input's shape"),
    ],
)
def test_tensors_that_do_not_fit_are_named(good: Path, tmp_path: Path, change: Any, said: str) -> None:
    file = rewritten(good, tmp_path / "file.safetensors", change)
    with pytest.raises(CheckpointError, match=rf"file\.safetensors: does not fit the model given: .*{said}"):
        ps.load(file, Mine(4))


@pytest.mark.parametrize(
    "wrong",
    [
        {"gates": {"stem": {"density": 2.0, "summary": "l1"}}},
        {"gates": {"stem": {"density": 0.5, "summary": "median"}}},
        {"gates": {"stem": 0.5}},
        {"gates": 3},
        {"input_shape": [3, -1, 16]},
        {"input_shape": "3x16x16"},
        {"preprocess": {"mean": [0.5]}},
        {"definition": {"import": "os; system:x"}},
        {"definition": {"zoo": "m_cifarnet", "arguments": {"classes": [10]}}},
        {"definition": 3},
        {"removal": {"layers": 1}},
        {"reshapes": {"view": ["x"]}},
        {"notes": 3},
    ],
)
def test_a_description_that_cannot_be_right_is_refused(
    good: Path, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    file = rewritten(
        good, tmp_path / "file.safetensors", lambda description, tensors: description.update(wrong)
    )
    with pytest.raises(
        CheckpointError, match=r"file\.safetensors: its description has a part that cannot be right"
    ):
        ps.load(file, Mine(4))


def test_a_zoo_name_or_argument_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    file, out = tmp_path / "zoo.safetensors", tmp_path / "out.safetensors"
    ps.save(ps.zoo.m_cifarnet(), file)

    def set_definition(name: str, arguments: dict[str, Any]) -> Any:
        return lambda description, tensors: description.update(
            definition={"zoo": name, "arguments": arguments}
        )

    with pytest.raises(CheckpointError, match=r"no network 'alexnet'.*m_cifarnet"):
        ps.load(rewritten(file, out, set_definition("alexnet", {})))
    with pytest.raises(CheckpointError, match="cannot make m_cifarnet"):
        ps.load(rewritten(file, out, set_definition("m_cifarnet", {"colours": 3})))
    # A file cannot make the reader take memory that its own tensors do not account for.
    with pytest.raises(CheckpointError, match=r"'fc\.weight' has shape \(10, 192\)"):
        ps.load(rewritten(file, out, set_definition("m_cifarnet", {"classes": 10**9})))


def test_nothing_in_the_room_can_unpickle() -> None:
    folder = Path(ps.__file__).parent
    for source in folder.rglob("*.py"):
        text = source.read_text()
        assert "import pickle" not in text, source
        assert "torch.load(" not in text, source
        assert "torch.save(" not in text.replace("safetensors.torch.save(", ""), source
        assert "allow_pickle=True" not in text, source
