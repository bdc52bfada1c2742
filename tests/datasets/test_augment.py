"""Augmentation of batches, and arrays as a data set."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.datasets import Augment, ImageArrays, hold_out
from penstock.datasets.augment import alternate_flip, change_colour, cut_out, random_crop, resize
from penstock.errors import DataError


def images(n: int = 6, size: int = 8) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8)


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_default_leaves_images_alone() -> None:
    batch = images()
    assert torch.equal(Augment()(batch, torch.arange(6), 3, chance()), batch)


def test_a_crop_is_a_window_of_the_reflected_image() -> None:
    batch = images(4)
    padded = torch.nn.functional.pad(batch.float(), (2, 2, 2, 2), mode="reflect").to(torch.uint8)
    cropped = random_crop(batch, 2, chance())
    for one, whole in zip(cropped, padded, strict=True):
        windows = [whole[:, y : y + 8, x : x + 8] for y in range(5) for x in range(5)]
        assert any(torch.equal(one, window) for window in windows)


def test_an_image_is_mirrored_in_every_second_epoch() -> None:
    batch, indices = images(64), torch.arange(64)
    first, second, third = (alternate_flip(batch, indices, epoch, 0) for epoch in range(3))
    assert torch.equal(first, third)
    assert torch.equal(second.flip(3), first)
    mirrored = (first != batch).flatten(1).any(1).float().mean()
    assert 0.2 < mirrored < 0.8


def test_colour_keeps_grey_grey_and_black_black() -> None:
    grey = torch.full((50, 3, 2, 2), 100, dtype=torch.uint8)
    changed = change_colour(grey, 0.3, chance())
    assert (changed.amax(1) - changed.amin(1)).max() <= 1  # rounding
    assert 70 <= changed.min() <= changed.max() <= 130
    assert changed.unique().numel() > 10
    assert not change_colour(torch.zeros_like(grey), 0.3, chance()).any()


def test_colour_changes_brightness_saturation_and_hue_image_by_image() -> None:
    red = torch.tensor([200, 60, 60], dtype=torch.uint8).view(1, 3, 1, 1).expand(400, 3, 1, 1)
    changed = change_colour(red, 0.1, chance()).flatten(1).float()
    luma = changed @ torch.tensor([0.299, 0.587, 0.114])
    assert 0.88 < luma.min() / luma.median() < 0.95
    assert 1.05 < luma.max() / luma.median() < 1.12
    # Hue as television has it: the angle in the plane of I and Q.
    axes = torch.tensor([[0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    turned = torch.atan2(*(changed @ axes.T).T.flip(0)) - torch.atan2(
        *(red[0].flatten().float() @ axes.T).flip(0)
    )
    assert 16 < turned.rad2deg().abs().max() < 19  # a tenth of 180°, and rounding
    assert torch.equal(change_colour(red, 0.1, chance()).flatten(1).float(), changed)


def test_colour_needs_rgb() -> None:
    with pytest.raises(DataError, match="1 channels"):
        change_colour(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), 0.1, chance())
    grey = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    assert change_colour(grey, 0.0, chance()) is grey


def test_a_square_is_greyed_out() -> None:
    batch = torch.zeros(30, 3, 16, 16, dtype=torch.uint8)
    cut = cut_out(batch, 4, chance())
    counts = (cut == 128).all(1).flatten(1).sum(1)
    assert counts.max() == 16
    assert counts.min() >= 4


@given(size=st.integers(1, 40))
def test_scaling_gives_the_size_and_keeps_the_mean(size: int) -> None:
    batch = torch.full((2, 3, 16, 16), 77, dtype=torch.uint8)
    scaled = resize(batch, size)
    assert scaled.shape == (2, 3, size, size)
    assert (scaled == 77).all()


@given(
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 100),
)
def test_held_out_images_are_balanced_disjoint_and_together_everything(
    counts: list[int], share: float, seed: int
) -> None:
    labels = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])
    total = len(labels)
    pixels = torch.arange(total).view(-1, 1, 1, 1).to(torch.uint8)
    data = ImageArrays(pixels, labels, tuple(map(str, range(len(counts)))))
    count = min(total - 1, max(1, int(share * total)))
    rest, held = hold_out(data, count, seed)
    assert len(held) == count
    assert sorted(rest.images.flatten().tolist() + held.images.flatten().tolist()) == list(range(total))
    taken = held.labels.bincount(minlength=len(counts))
    for k, n in enumerate(counts):  # no class lags behind another unless it has run out
        assert taken[k] == n or taken[k] >= taken.max() - 1


@pytest.mark.parametrize("count", [0, 5, -1])
def test_holding_out_nothing_or_everything_is_an_error(count: int) -> None:
    data = ImageArrays(
        torch.zeros(5, 3, 2, 2, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64), ("a",), "mine"
    )
    with pytest.raises(DataError, match=f"mine: cannot hold out {count} of 5"):
        hold_out(data, count)


def test_arrays_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(DataError, match="uint8"):
        ImageArrays(torch.zeros(5, 3, 2, 2), torch.zeros(5, dtype=torch.int64), ("a",))
    with pytest.raises(DataError, match="labels"):
        ImageArrays(torch.zeros(5, 3, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), ("a",))


def test_processes_draw_the_same_chance_for_their_parts_of_a_batch() -> None:
    data = ImageArrays(images(20), torch.randint(0, 3, (20,)), ("a", "b", "c"))
    order = torch.randperm(20).split(8)
    augment = Augment(2, True, 3, 0.2, seed=1)
    full = list(data.training_batches(order, augment, 1, chance(4)))
    first = list(data.training_batches(order, augment, 1, chance(4), lambda n: slice(0, n // 2)))
    second = list(data.training_batches(order, augment, 1, chance(4), lambda n: slice(n // 2, n)))
    for whole, a, b in zip(full, first, second, strict=True):
        assert torch.equal(whole.images, torch.cat([a.images, b.images]))
        assert torch.equal(whole.labels, torch.cat([a.labels, b.labels]))
