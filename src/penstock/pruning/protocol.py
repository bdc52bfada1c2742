"""What every pruning method shares: a network, data and a budget go in, a smaller network comes out.

A method joins by having a `name`, a `penalty` that prepares the network while it trains, and a `prune` that
makes it smaller; `stages.prune_in_stages` does the training around them, the same for every method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from penstock.errors import PruningError


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


class Method(Protocol):
    """A way to decide which channels go."""

    @property
    def name(self) -> str:
        """What `penstock prune --method` calls it."""

    def penalty(self, network: nn.Module) -> Tensor | None:
        """Added to the loss in the training before the cut; None for a method that prepares nothing."""

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Pruned:
        """A smaller copy of `network`. example: (batch, channel, height, width), the network's input."""
