"""Images held in memory: what `datasets.cifar10` returns and what training and evaluation read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from penstock.datasets.augment import Augment
from penstock.datasets.preprocess import Preprocess
from penstock.datasets.protocol import Batch, Own, whole
from penstock.errors import DataError


@dataclass(frozen=True)
class ImageArrays:
    """images: uint8 (count, channel, height, width); labels: int64 (count,).

    >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    >>> data = ImageArrays(images, torch.tensor([0, 1, 1, 0]), ("cat", "dog"))
    >>> [batch.labels.tolist() for batch in data.test_batches(3)]
    [[0, 1, 1], [0]]
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str = "arrays"
    preprocess: Preprocess = field(default_factory=Preprocess)

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise DataError(
                f"{self.name}: images must be uint8 (count, channel, height, width), "
                f"got {self.images.dtype} {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"{self.name}: labels must be int64 ({len(self.images)},), "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Tensor) -> ImageArrays:
        """The images at `indices`, in that order."""
        return ImageArrays(
            self.images[indices], self.labels[indices], self.classes, self.name, self.preprocess
        )

    def training_batches(
        self,
        order: Sequence[Tensor],
        augment: Augment,
        epoch: int,
        draw: torch.Generator,
        own: Own = whole,
    ) -> Iterator[Batch]:
        """Augmented batches, one for each tensor of indices; see `protocol.Images`."""
        for indices in order:
            images = augment(self.images[indices], indices, epoch, draw)
            part = own(len(indices))
            yield Batch(images[part], self.labels[indices][part])

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """All images as they are, in order."""
        for start in range(0, len(self), batch_size):
            part = slice(start, start + batch_size)
            yield Batch(self.images[part], self.labels[part])


class _Divisible(Protocol):
    @property
    def labels(self) -> Tensor: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...
    def take(self, indices: Tensor) -> Self: ...


D = TypeVar("D", bound=_Divisible)


def hold_out(data: D, count: int, seed: int = 0) -> tuple[D, D]:
    """Split off `count` images, equally many of each class as far as it divides → (rest, held out).

    The split depends on `seed` only, so every run that names the same count holds out the same images.

    >>> from penstock.datasets import sample
    >>> rest, held = hold_out(sample(), 200)
    >>> len(rest), held.labels.bincount().tolist()
    (800, [20, 20, 20, 20, 20, 20, 20, 20, 20, 20])
    """
    if not 0 < count < len(data):
        raise DataError(f"{data.name}: cannot hold out {count} of {len(data)} images")
    shuffled = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    by_class = [shuffled[data.labels[shuffled] == label] for label in range(len(data.classes))]
    # Taking the first of each class, then the second of each, … keeps any count balanced.
    ranks = torch.cat([torch.arange(len(members)) for members in by_class])
    ordered = torch.cat(by_class)[torch.argsort(ranks, stable=True)]
    return data.take(ordered[count:].sort().values), data.take(ordered[:count].sort().values)
