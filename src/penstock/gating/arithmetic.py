"""How a gated layer computes: the paper's equations, in steps that training may compute in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from penstock.gating.levels import LevelNorm2d
from penstock.gating.summaries import summarise
from penstock.gating.winners import winners_take_all

if TYPE_CHECKING:
    from penstock.gating.layer import GatedConv2d


class Arithmetic:
    """How a gated layer computes: the paper's equations as they stand.

    Training gives layers one that computes the same numbers faster (`penstock.training`).
    """

    def summarise(self, x: Tensor, summary: str) -> Tensor:
        """ss(x): (batch, channel, height, width) → (batch, channel)."""
        return summarise(x, summary)

    def choose(self, layer: GatedConv2d, saliency: Tensor, counts: Tensor) -> Tensor:
        """π: the winners' saliencies, the rest zero, (batch, channel). counts: k, for all images or each."""
        return winners_take_all(saliency, counts, threshold=layer.threshold)

    def features(self, layer: GatedConv2d, x: Tensor, gains: Tensor, level: Tensor | None) -> Tensor:
        """activation(π · (norm(conv(x)) + β)): everything that the gate does not decide."""
        return self.boost(layer, layer.conv(x), gains, level)

    def boost(self, layer: GatedConv2d, z: Tensor, gains: Tensor, level: Tensor | None) -> Tensor:
        """activation(π · (norm(z) + β)). z: (batch, channel, height, width); gains: π, (batch, channel)."""
        shift = layer.shift if level is None else layer.shift[level]
        normed = layer.norm(z, level) if isinstance(layer.norm, LevelNorm2d) else layer.norm(z)
        return layer.activation(gains[:, :, None, None] * (normed + shift[..., None, None]))


EQUATIONS = Arithmetic()
