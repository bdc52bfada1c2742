"""Image folders: labels, cuts, workers, damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock.datasets import Augment, UnreadableImage, hold_out, image_folder, keep_decoded
from penstock.datasets.folder import centre_cut, random_cut
from penstock.errors import DataError


def write_images(root: Path, each: int = 4, size: tuple[int, int] = (40, 30)) -> Path:
    """Two classes, red and blue, of noisy pictures."""
    rng = np.random.default_rng(0)
    for channel, name in ((0, "red"), (2, "blue")):
        folder = root / name
        folder.mkdir(parents=True)
        for index in range(each):
            pixels = rng.integers(0, 40, (size[1], size[0], 3), dtype=np.uint8)
            pixels[:, :, channel] += 200
            Image.fromarray(pixels).save(folder / f"{index}.{'jpg' if index % 2 else 'png'}")
    return root


def batches_of(data: object, augment: Augment, epoch: int = 0) -> list[torch.Tensor]:
    order = torch.arange(len(data)).split(3)  # type: ignore[arg-type]
    made = data.training_batches(order, augment, epoch, torch.Generator())  # type: ignore[attr-defined]
    return [batch.images for batch in made]


def test_labels_follow_the_folders_in_order_of_name(tmp_path: Path) -> None:
    data = image_folder(write_images(tmp_path), size=16, workers=0)
    assert data.classes == ("blue", "red")
    assert data.labels.tolist() == [0] * 4 + [1] * 4
    batch = torch.cat([batch.images for batch in data.test_batches(3)])
    assert batch.shape == (8, 3, 16, 16)
    assert batch.dtype == torch.uint8
    brightest = batch.float().mean((2, 3)).argmax(1)
    assert brightest.tolist() == [2] * 4 + [0] * 4


def test_workers_change_nothing_but_the_speed(tmp_path: Path) -> None:
    write_images(tmp_path)
    augment = Augment(flip=True, colour=0.2, cutout=3, seed=5)
    alone = batches_of(image_folder(tmp_path, 16, workers=0), augment, epoch=2)
    shared = batches_of(image_folder(tmp_path, 16, workers=2), augment, epoch=2)
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))
    other = batches_of(image_folder(tmp_path, 16, workers=0), augment, epoch=3)
    assert not torch.equal(alone[0], other[0])


def test_processes_share_a_batch_without_changing_it(tmp_path: Path) -> None:
    data = image_folder(write_images(tmp_path), 16, workers=0)
    order, augment, draw = torch.randperm(8).split(4), Augment(flip=True, colour=0.1), torch.Generator()
    full = list(data.training_batches(order, augment, 0, draw))
    halves = [list(data.training_batches(order, augment, 0, draw, own)) for own in (
        lambda n: slice(0, n // 2), lambda n: slice(n // 2, n))]  # fmt: skip
    for batch, first, second in zip(full, *halves, strict=True):
        assert torch.equal(batch.images, torch.cat([first.images, second.images]))
        assert torch.equal(batch.labels, torch.cat([first.labels, second.labels]))


def test_the_size_can_be_smaller_for_a_while(tmp_path: Path) -> None:
    data = image_folder(write_images(tmp_path), 16, workers=0)
    assert batches_of(data, Augment(size=8))[0].shape == (3, 3, 8, 8)


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_images_are_skipped_named_and_counted(tmp_path: Path, workers: int) -> None:
    write_images(tmp_path)
    (tmp_path / "blue" / "1.jpg").write_bytes((tmp_path / "blue" / "1.jpg").read_bytes()[:200])
    (tmp_path / "red" / "0.png").write_bytes(b"not an image at all")
    (tmp_path / "red" / "2.png").write_bytes(b"")
    data = image_folder(tmp_path, 16, workers=workers)
    with pytest.warns(UnreadableImage) as caught:
        batches = list(data.test_batches(4))
    assert [batch.skipped for batch in batches] == [1, 2]
    assert batches[0].labels.tolist() == [0, 0, 0]
    assert batches[1].labels.tolist() == [1, 1]
    assert all(len(batch.images) == len(batch.labels) for batch in batches)
    said = [str(one.message) for one in caught]
    assert all(any(name in text for text in said) for name in ("1.jpg", "0.png", "2.png"))


def test_a_batch_of_damaged_images_only_is_empty(tmp_path: Path) -> None:
    write_images(tmp_path, each=1)
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"x")
    with pytest.warns(UnreadableImage):
        (batch,) = image_folder(tmp_path, 16, workers=0).test_batches(4)
    assert batch.images.shape == (0, 3, 16, 16)
    assert batch.skipped == 2


def test_grey_palette_and_transparent_images_become_rgb(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    for mode in ("L", "P", "RGBA", "1", "CMYK", "LA"):
        picture = Image.new(mode, (20, 20))
        picture.save(folder / f"{mode}.{'tif' if mode == 'CMYK' else 'png'}")
    (batch,) = image_folder(tmp_path, 8, workers=0).test_batches(10)
    assert batch.images.shape == (6, 3, 8, 8)


def test_a_test_part_keeps_the_labels_of_its_training_part(tmp_path: Path) -> None:
    write_images(tmp_path / "train")
    write_images(tmp_path / "val")
    for path in (tmp_path / "val" / "blue").iterdir():
        path.unlink()
    train = image_folder(tmp_path / "train", 16, workers=0)
    assert image_folder(tmp_path / "val", 16, workers=0, classes=train.classes).labels.tolist() == [1] * 4
    (tmp_path / "val" / "green").mkdir()
    with pytest.raises(DataError, match="'green' is not among the 2 training classes"):
        image_folder(tmp_path / "val", 16, classes=train.classes)


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: there is no such folder"):
        image_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="expected one for each class"):
        image_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: there is no image"):
        image_folder(tmp_path)
    with pytest.raises(DataError, match="size"):
        image_folder(tmp_path, size=0)


def test_images_can_be_held_out_of_a_folder(tmp_path: Path) -> None:
    data = image_folder(write_images(tmp_path), 16, workers=0)
    rest, held = hold_out(data, 2)
    assert (len(rest), len(held)) == (6, 2)
    assert held.labels.tolist() == [0, 1]
    assert not set(rest.files) & set(held.files)


@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    side=st.integers(1, 33),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60)
def test_cuts_of_any_picture_have_the_size_asked_for(size: tuple[int, int], side: int, seed: int) -> None:
    picture = Image.effect_noise(size, 50).convert("RGB")
    assert random_cut(picture, side, torch.Generator().manual_seed(seed)).size == (side, side)
    assert centre_cut(picture, side).size == (side, side)


def test_the_middle_stays_in_the_middle() -> None:
    pixels = np.zeros((100, 140, 3), dtype=np.uint8)
    pixels[45:55, 65:75] = 255
    cut = np.asarray(centre_cut(Image.fromarray(pixels), 56))[:, :, 0].astype(float)
    rows, columns = np.nonzero(cut > 128)
    assert abs(rows.mean() - 27.5) < 1
    assert abs(columns.mean() - 27.5) < 1


@pytest.mark.parametrize("size", [(8_000, 8_001), (10_000, 8_000), (13_000, 13_000)])
def test_a_small_file_with_very_many_pixels_is_unreadable(tmp_path: Path, size: tuple[int, int]) -> None:
    data = write_images(tmp_path)
    Image.new("1", size).save(data / "red" / "bomb.png")
    folder = image_folder(data, size=16, workers=0)
    said = rf"bomb\.png: cannot be decoded .*{size[0] * size[1]} pixels"
    with pytest.warns(UnreadableImage, match=said):
        (batch,) = folder.test_batches(100)
    assert (len(batch.labels), batch.skipped) == (8, 1)
    with pytest.raises(DataError, match=said):
        keep_decoded(folder, tmp_path / "cache")


def test_the_largest_photograph_of_a_camera_is_read(tmp_path: Path) -> None:
    data = write_images(tmp_path)
    Image.new("L", (9_504, 6_336)).save(data / "red" / "camera.jpg", quality=10)
    (batch,) = image_folder(data, size=16, workers=0).test_batches(100)
    assert (len(batch.labels), batch.skipped) == (9, 0)


def test_a_file_that_would_start_another_program_is_unreadable(tmp_path: Path) -> None:
    data = write_images(tmp_path)
    Image.new("RGB", (8, 8)).save(data / "red" / "page.jpg", format="EPS")
    with pytest.warns(UnreadableImage, match=r"page\.jpg: cannot be decoded"):
        (batch,) = image_folder(data, size=16, workers=0).test_batches(100)
    assert (len(batch.labels), batch.skipped) == (8, 1)
