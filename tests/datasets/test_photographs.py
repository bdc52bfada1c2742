"""Photographs decoded once: the same pictures as from the folder, made anew when anything changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.datasets import Augment, hold_out, image_folder, keep_decoded
from penstock.errors import DataError


def smooth(height: int, width: int, turn: float = 0.0) -> Image.Image:
    """A picture without fine detail, so that scaling it once or twice gives nearly the same pixels."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    planes = [127 + 120 * np.sin(3 * x + 5 * y + turn + phase) for phase in (0.0, 2.0, 4.0)]
    return Image.fromarray(np.stack(planes, axis=2).astype(np.uint8))


def write_photographs(root: Path) -> Path:
    for name, shapes in {"church": [(60, 80), (90, 60)], "tench": [(64, 64), (50, 120)]}.items():
        (root / name).mkdir(parents=True)
        for index, shape in enumerate(shapes):
            smooth(*shape, turn=index).save(root / name / f"{index}.png")
    return root


def test_test_images_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = image_folder(write_photographs(tmp_path / "photos"), size=28, workers=0)
    kept = keep_decoded(folder, tmp_path / "cache" / "photos-28")
    assert kept.labels.tolist() == folder.labels.tolist() == [0, 0, 1, 1]
    expected, found = (next(iter(data.test_batches(4))).images for data in (folder, kept))
    assert found.shape == (4, 3, 28, 28)
    # Scaled to 8/7 of the side and then cut, not both at once: rounding, and half a pixel's place.
    assert (expected.float() - found.float()).abs().max() <= 8


def test_training_images_depend_on_seed_epoch_and_place_only(tmp_path: Path) -> None:
    folder = image_folder(write_photographs(tmp_path / "photos"), size=28, workers=0)
    kept = keep_decoded(folder, tmp_path / "photos-28")
    augment = Augment(flip=True, colour=0.1, size=20, smallest_area=0.35)
    draw = torch.Generator()
    whole = next(kept.training_batches([torch.tensor([2, 0, 1, 3])], augment, 5, draw)).images
    again = next(kept.training_batches([torch.tensor([1])], augment, 5, draw)).images
    other = next(kept.training_batches([torch.tensor([1])], augment, 6, draw)).images
    assert whole.shape == (4, 3, 20, 20)
    assert torch.equal(whole[2:3], again)
    assert not torch.equal(again, other)


def test_held_out_photographs_keep_their_pictures_and_labels(tmp_path: Path) -> None:
    kept = keep_decoded(image_folder(write_photographs(tmp_path / "p"), 28, 0), tmp_path / "p-28")
    rest, held = hold_out(kept, 2)
    assert sorted(rest.labels.tolist()) == sorted(held.labels.tolist()) == [0, 1]
    all_images = next(iter(kept.test_batches(4))).images
    for part in (rest, held):
        for image, label in zip(*next(iter(part.test_batches(4)))[:2], strict=True):
            same = [bool(torch.equal(image, one)) for one in all_images]
            assert sum(same) == 1
            assert kept.labels[same.index(True)] == label


def test_a_second_use_decodes_nothing_and_a_changed_file_everything(tmp_path: Path) -> None:
    root = write_photographs(tmp_path / "photos")
    counted: list[tuple[int, int]] = []

    def decoded(done: int, total: int) -> None:
        counted.append((done, total))

    for _ in range(2):
        keep_decoded(image_folder(root, 28, 0), tmp_path / "c", decoded)
    assert counted == [(4, 4)]
    smooth(64, 64, turn=3).save(root / "tench" / "0.png")
    kept = keep_decoded(image_folder(root, 28, 0), tmp_path / "c", decoded)
    assert len(counted) == 2
    again = keep_decoded(image_folder(root, 28, 0), tmp_path / "d")
    assert torch.equal(*(next(iter(one.test_batches(4))).images for one in (kept, again)))


@pytest.mark.parametrize("damage", ["pixels", "index", "places"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, damage: str) -> None:
    root = write_photographs(tmp_path / "photos")
    kept = keep_decoded(image_folder(root, 28, 0), tmp_path / "c")
    expected = next(iter(kept.test_batches(4))).images
    if damage == "pixels":
        (tmp_path / "c.pixels").write_bytes((tmp_path / "c.pixels").read_bytes()[:100])
    elif damage == "index":
        (tmp_path / "c.json").write_text("{")
    else:
        known = json.loads((tmp_path / "c.json").read_text())
        known["places"][0] = [known["bytes"], 500, 500]
        (tmp_path / "c.json").write_text(json.dumps(known))
    found = next(iter(keep_decoded(image_folder(root, 28, 0), tmp_path / "c").test_batches(4))).images
    assert torch.equal(found, expected)


def test_a_damaged_photograph_is_named(tmp_path: Path) -> None:
    root = write_photographs(tmp_path / "photos")
    broken = root / "tench" / "1.png"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(DataError, match=r"tench/1\.png: cannot be decoded"):
        keep_decoded(image_folder(root, 28, 0), tmp_path / "c")
    assert not list(tmp_path.glob("*c.*"))


def test_very_long_pictures_are_cut_at_both_ends(tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    smooth(20, 400).save(tmp_path / "photos" / "a" / "0.png")
    kept = keep_decoded(image_folder(tmp_path / "photos", 28, 0), tmp_path / "c")
    assert kept.picture(0).size == (128, 32)
