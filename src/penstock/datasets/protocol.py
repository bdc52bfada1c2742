"""What training and evaluation ask of a data set: batches of uint8 images with their labels.

`ImageArrays` (in memory) and `ImageFolder` (decoded as it goes) both answer; a user's own data set may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.datasets.augment import Augment
from penstock.datasets.preprocess import Preprocess

Own = Callable[[int], slice]
"""From a batch's size to the part of it that this process needs."""


class Batch(NamedTuple):
    """images: uint8 (n, channel, height, width); labels: int64 (n,); skipped: how many could not be read."""

    images: Tensor
    labels: Tensor
    skipped: int = 0


class Images(Protocol):
    """A data set of labelled images."""

    @property
    def labels(self) -> Tensor:
        """int64 (count,)."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names; a label is a place in it."""

    @property
    def name(self) -> str:
        """For messages and records."""

    @property
    def preprocess(self) -> Preprocess:
        """The way into a network that does not bring its own."""

    def __len__(self) -> int: ...

    def training_batches(
        self, order: Sequence[Tensor], augment: Augment, epoch: int, draw: torch.Generator, own: Own
    ) -> Iterator[Batch]:
        """One augmented batch for each tensor of indices in `order`, cut to this process's part.

        Which image looks how depends on (augment.seed, epoch, draw) only, never on the number of processes.
        """

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """All images as they are, in order."""


def whole(size: int) -> slice:
    """The `Own` of a process that is alone."""
    return slice(0, size)


class LoadedByPlace:
    """The batches of a data set that loads its images one by one, each by its place in it."""

    def __len__(self) -> int:
        raise NotImplementedError

    def load(
        self, batches: Sequence[list[int]], augment: Augment | None = None, epoch: int = 0
    ) -> Iterator[Batch]:
        """A batch for each list of places; without `augment`, images cut out in the middle."""
        raise NotImplementedError

    def training_batches(
        self,
        order: Sequence[Tensor],
        augment: Augment,
        epoch: int,
        draw: torch.Generator,
        own: Own = whole,
    ) -> Iterator[Batch]:
        """Augmented batches, one for each tensor of indices; see `Images`."""
        yield from self.load([indices[own(len(indices))].tolist() for indices in order], augment, epoch)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """All images, cut out in the middle, in order."""
        places = list(range(len(self)))
        yield from self.load([places[at : at + batch_size] for at in range(0, len(self), batch_size)])
