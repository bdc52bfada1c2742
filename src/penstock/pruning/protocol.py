"""What every method shares: a network, data and a budget go in, a cheaper network comes out.

A method joins by having a `name` and a `prune` that makes the network cheaper; `stages.prune_in_stages` does
the training around it, the same for every method.

    prune → Pruned      a smaller dense network: channels are gone for good
          → Skipping    a network as wide as before, whose layers skip work image by image or pixel by pixel

What a method may have besides, each a protocol of its own below: images to look at (`LooksAtImages`), a term
of the loss (`AddsToLoss`) or something to do after every epoch (`ActsOnEpochs`) before the cut; a loss of its
own in the training after it (`Trains`), something to do after each of its epochs (`MovesByEpoch`) or steps
(`MovesByStep`), and something to fit when it is over (`Settles`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from penstock.errors import PruningError

EpochHook = Callable[[nn.Module, float], None]
"""Called with the network and the share of its training that is done: before it (0.0), then every epoch."""


@dataclass(frozen=True)
class Budget:
    """How much goes: a share of the channels (`ratio`), or how many times fewer MACs are left (`saving`)."""

    ratio: float | None = None
    saving: float | None = None

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.saving is None):
            raise PruningError(
                f"give a budget as a ratio of channels or as a saving of MACs, one of the two; "
                f"got ratio={self.ratio!r}, saving={self.saving!r}"
            )
        if self.ratio is not None and not 0.0 <= self.ratio < 1.0:
            raise PruningError(f"ratio: expected a share of the channels in [0, 1[, got {self.ratio!r}")
        if self.saving is not None and not 1.0 <= self.saving < math.inf:
            raise PruningError(f"saving: expected at least 1 (1.19 leaves MACs / 1.19), got {self.saving!r}")


@dataclass(frozen=True)
class LayerCut:
    """One convolution or linear layer before and after; `kept` are the output channels that stayed."""

    layer: str
    channels_before: int
    kept: tuple[int, ...]
    macs_before: int
    macs_after: int

    @property
    def channels_after(self) -> int:
        return len(self.kept)


@dataclass(frozen=True)
class Pruned:
    """The smaller network and what it took. MACs are for one image of the example's size, without the norms.

    `channels_…` counts the output channels that could go, those of all layers tied together one by one.
    `threshold` is the least importance that stayed. `left_alone` says why a layer could not be cut.
    """

    network: nn.Module = field(repr=False)
    layers: tuple[LayerCut, ...]
    threshold: float
    channels_before: int
    channels_after: int
    weights_before: int
    weights_after: int
    left_alone: dict[str, str] = field(default_factory=dict)

    @property
    def macs_before(self) -> int:
        return sum(layer.macs_before for layer in self.layers)

    @property
    def macs_after(self) -> int:
        return sum(layer.macs_after for layer in self.layers)

    @property
    def saving(self) -> float:
        """How many times fewer MACs."""
        return self.macs_before / max(1, self.macs_after)

    @property
    def weight_saving(self) -> float:
        """How many times fewer weights (every parameter counts)."""
        return self.weights_before / max(1, self.weights_after)

    @property
    def ratio(self) -> float:
        """The share of the channels that went, of those that could go."""
        return 1 - self.channels_after / max(1, self.channels_before)


@dataclass(frozen=True)
class Calibration:
    """Training images that a method may look at while it decides; never those that a row is scored on.

    images: (n, channel, height, width), as the network takes them; labels: (n,).
    """

    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.images)

    def first(self, count: int) -> Calibration:
        """The first `count` images, or all if there are fewer."""
        return Calibration(self.images[:count], self.labels[:count])

    def split(self, count: int) -> tuple[Calibration, Calibration]:
        """(all but the last `count` images, the last `count`): one part to fit, one to score."""
        if not 0 < count < len(self):
            raise PruningError(f"cannot hold out {count} of {len(self)} images; give more images")
        return (
            Calibration(self.images[:-count], self.labels[:-count]),
            Calibration(self.images[-count:], self.labels[-count:]),
        )


@dataclass(frozen=True)
class Cost:
    """MACs an image, on average: dense, as the method's authors count them, and as they are executed here."""

    dense: float
    authors: float
    executed: float

    @property
    def saving(self) -> float:
        """How many times fewer MACs, by the authors' count."""
        return self.dense / self.authors


@dataclass(frozen=True)
class Skipping:
    """A network that skips work: its layers are all there, and each image, or each pixel, uses some.

    `kind`: "gated" (channels, runs in the engine) or "pixels". `cost` counts a network of this kind, trained
    or not, on images as it takes them. `left_alone` says why a layer never skips. `plain`: from the trained
    network to one that a checkpoint and the engine take; None if there is none. It needs each image's own
    counts: `densities` gives them, as {layer: share}, from the trained network and images.
    """

    network: nn.Module = field(repr=False)
    kind: str
    cost: Callable[[nn.Module, Tensor], Cost] = field(repr=False)
    left_alone: dict[str, str] = field(default_factory=dict)
    plain: Callable[[nn.Module], nn.Module] | None = field(default=None, repr=False)
    densities: Callable[[nn.Module, Tensor], list[dict[str, float]]] | None = field(default=None, repr=False)


class Method(Protocol):
    """A way to decide what goes."""

    @property
    def name(self) -> str:
        """What `penstock prune --method` calls it."""

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Pruned | Skipping:
        """A cheaper copy of `network`. example: (batch, channel, height, width), the network's input."""


@runtime_checkable
class LooksAtImages(Protocol):
    """A method that decides by looking at images; its `prune` takes them as `data`."""

    @property
    def images(self) -> int:
        """How many it wants."""

    def prune(
        self, network: nn.Module, example: Tensor, budget: Budget, data: Calibration | None = None
    ) -> Pruned | Skipping: ...


@runtime_checkable
class AddsToLoss(Protocol):
    """A method that prepares the network for the cut while it trains before it."""

    def penalty(self, network: nn.Module) -> Tensor | None:
        """Added to the loss of every batch; None if this network needs no preparation."""


@runtime_checkable
class ActsOnEpochs(Protocol):
    """A method that changes the network after every epoch of the training before the cut."""

    def epoch_hook(self, network: nn.Module, example: Tensor, budget: Budget) -> EpochHook: ...


@runtime_checkable
class Trains(Protocol):
    """A method whose network learns with a loss of its own after `prune`."""

    def batch_loss(self, network: nn.Module, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Added to the task loss of every batch. logits: (batch, class); labels: (batch,)."""


@runtime_checkable
class MovesByEpoch(Protocol):
    """A method whose network changes from epoch to epoch of the training after `prune`."""

    def after_epoch(self, network: nn.Module, share: float) -> None:
        """After each epoch (and before the first, with share 0): share of the training that is done."""


@runtime_checkable
class MovesByStep(Protocol):
    """A method whose network changes bit by bit in the training after `prune`."""

    def after_step(self, network: nn.Module, share: float) -> None:
        """After every optimiser step: share of the training that is done."""


@runtime_checkable
class Settles(Protocol):
    """A method that fits what decides to the trained network, so that its mean cost is the budget."""

    def settle(self, network: nn.Module, data: Calibration, budget: Budget) -> None:
        """In place. data: training images, as inference sees them."""


def need_images(data: Calibration | None, method: str, least: int = 1) -> Calibration:
    """`data`, or an error that says how many images `method` needs."""
    given = 0 if data is None else len(data)
    if data is None or given < least:
        raise PruningError(
            f"{method} decides by looking at images: expected at least {least}, got {given}; "
            "give more with `data`, or with --images on the command line"
        )
    return data


def nothing_left(what: str, network: nn.Module, left_alone: Mapping[str, str]) -> PruningError:
    """The error for a network with nothing that a method can work on; left_alone: {layer: why}."""
    why = "; ".join(f"{layer}: {reason}" for layer, reason in left_alone.items())
    return PruningError(f"{type(network).__name__} has no {what} ({why or 'no layers'})")


def reached(share: float, anneal: float) -> float:
    """How near a goal is, from 0 to 1, after `share` of a training that is to reach it at `anneal`.

    >>> reached(0.25, 0.5), reached(0.75, 0.5), reached(0.0, 0.0)
    (0.5, 1.0, 1.0)
    """
    return 1.0 if anneal == 0 else min(1.0, share / anneal)
