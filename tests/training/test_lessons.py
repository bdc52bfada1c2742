"""A teacher's answers that are kept: used again for the same images, never for others, and without effect."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training import tiny
from torch import Tensor, nn

from penstock.errors import TrainingError
from penstock.training import Recipe
from penstock.training.lessons import Lessons

RECIPE = tiny.RECIPE.replace(epochs=2, distill=0.5)


class CountingTeacher(nn.Module):
    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        self.inner = tiny.network(seed=seed)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.inner(x)
        return out


@pytest.mark.parametrize(
    "recipe",
    [RECIPE, RECIPE.replace(density=0.5), RECIPE.replace(density_schedule="any", any_levels="0.3,1.0")],
)
def test_a_second_network_asks_nothing_and_ends_as_if_it_had(recipe: Recipe, tmp_path: Path) -> None:
    plain, _ = tiny.run(recipe, teacher=CountingTeacher())
    first, second = CountingTeacher(), CountingTeacher()
    tiny.run(RECIPE, teacher=first, lessons=tmp_path)
    made, _ = tiny.run(recipe, teacher=second, lessons=tmp_path)
    assert first.calls > 0
    assert second.calls == 0
    for a, b in zip(plain.state_dict().values(), made.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_other_images_and_other_teachers_are_asked_about(tmp_path: Path) -> None:
    tiny.run(RECIPE, teacher=CountingTeacher(), lessons=tmp_path)
    for recipe, teacher in (
        (RECIPE.replace(seed=5), CountingTeacher()),
        (RECIPE, CountingTeacher(seed=4)),
    ):
        tiny.run(recipe, teacher=teacher, lessons=tmp_path)
        assert teacher.calls > 0


def test_answers_survive_in_whole_files(tmp_path: Path) -> None:
    teacher = CountingTeacher()
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    logits = torch.randn(4, 10)
    lessons = Lessons(tmp_path, teacher)
    assert lessons.answer(images, lambda: logits) is logits
    lessons.keep()
    lessons.keep()  # nothing new
    again = Lessons(tmp_path, teacher)
    assert torch.equal(again.answer(images, lambda: pytest.fail("asked again")), logits)
    files = list(tmp_path.rglob("*"))
    assert [path.suffix for path in files if path.is_file()] == [".safetensors"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    teacher = CountingTeacher()
    lessons = Lessons(tmp_path, teacher)
    lessons.folder.mkdir(parents=True)
    (lessons.folder / "half.safetensors").write_bytes(b"half")
    with pytest.raises(TrainingError, match=r"half\.safetensors.*delete it"):
        Lessons(tmp_path, teacher)
