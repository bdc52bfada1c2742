"""ManiDP's training (Tang et al., CVPR 2021) on our gates: thresholds instead of counts, and two losses.

    π_c(x)      = g_c(x) if g_c(x) > t, else 0        images differ in how many channels they use
    t           moves with the training: k = ⌈r · C⌉ channels have a mean g above it
    sparsity    = λ₁ · mean over images of w_i ‖g(x_i)‖₁,  w_i = max(0, (½L̄ − L_i) / ½L̄): easy images use less
    similarity  = λ₂ · Σ over layers of MSE(cos(g_i, g_j), cos(f_i, f_j)),  f: the layer's output, pooled

The authors let r fall along a cosine. An image then uses fewer channels than k, because not all of those with
a large mean are large in it. So that the budget is met, here the mean share of channels that images use
follows the cosine, and r is what that takes (ours); when the training is over, r is fitted once more, by the
MACs.

A threshold keeps an image's largest saliencies, so the engine runs it as that image's own count of winners.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.gating import Arithmetic, SaliencyPredictor, gated_layers, winner_count
from penstock.gating.layer import copy_without_records
from penstock.pruning.counting import density_for, gated_cost, image_densities, meet_saving, saving_at
from penstock.pruning.protocol import Budget, Calibration, Skipping, reached
from penstock.surgery import add_gates, explain
from penstock.training.losses import cosines

_LEAST = 0.01
_GAIN = 0.1  # of what r misses, a step
_FOLLOWS = 0.2  # of the way to the batch's share of channels, a step


@dataclass(frozen=True)
class ManifoldPruning:
    """`sparsity` is λ₁ and `similarity` λ₂; the mean share reaches its target after `anneal` of the
    training."""

    sparsity: float = 5e-3
    similarity: float = 1.0
    anneal: float = 1.0
    name: str = "manidp"

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Skipping:
        """The network with gates that have thresholds, still at 0."""
        gated = add_gates(network, example)
        target = density_for(gated, example, budget)
        for _, layer in gated_layers(gated):
            layer.gate = ThresholdGate(layer.gate, target)
            layer.register_forward_hook(note_output)
        reasons = {conv.name: conv.reason for conv in explain(gated).left_alone}
        return Skipping(gated, "gated", gated_cost, reasons, plain_gates, image_densities)

    def batch_loss(self, network: nn.Module, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Both losses of the last forward."""
        easy = easiness(F.cross_entropy(logits.detach(), labels, reduction="none"))
        total = logits.new_zeros(())
        for gate in threshold_gates(network):
            if gate.whole is None or gate.pooled is None:
                continue
            total = total + self.sparsity * (easy * gate.whole.abs().sum(1)).mean()
            total = total + self.similarity * F.mse_loss(cosines(gate.whole), cosines(gate.pooled))
        return total

    def after_step(self, network: nn.Module, share: float) -> None:
        """Move every r towards the mean share that is wanted now, and the thresholds to where r is."""
        for gate in threshold_gates(network):
            wanted = annealed(reached(share, self.anneal), gate.target)
            gate.rank.add_(_GAIN * (wanted - gate.used)).clamp_(_LEAST, 1.0)
            gate.move_threshold(float(gate.rank))

    def settle(self, network: nn.Module, data: Calibration, budget: Budget) -> None:
        """All r are shifted together until the mean image costs what the budget says."""
        gates = threshold_gates(network)
        ranks = [float(gate.rank) for gate in gates]
        wanted = budget.saving or saving_at(network, data.images, gates[0].target)

        def move(knob: float) -> None:
            for gate, rank in zip(gates, ranks, strict=True):
                gate.rank.fill_(min(1.0, max(_LEAST, rank + 2 * knob - 1)))
                gate.move_threshold(float(gate.rank))

        meet_saving(lambda: gated_cost(network, data.images).saving, wanted, move)


def threshold_gates(network: nn.Module) -> list[ThresholdGate]:
    """The gates of a network that this method made, in order."""
    return [layer.gate for _, layer in gated_layers(network) if isinstance(layer.gate, ThresholdGate)]


class ThresholdGate(SaliencyPredictor):
    """A predictor whose saliencies up to `threshold` are zero; the image's largest one always stays.

    `rank` is r, `used` the mean share of channels of the latest batches, `mean` the mean g.
    """

    threshold: Tensor
    mean: Tensor
    rank: Tensor
    used: Tensor

    def __init__(self, gate: SaliencyPredictor, target: float) -> None:
        super().__init__(gate.weight.shape[0], gate.weight.shape[1], gate.summary)
        self.load_state_dict(gate.state_dict())
        self.target = target
        self.register_buffer("threshold", torch.zeros(()).to(gate.weight))
        self.register_buffer("mean", torch.zeros_like(gate.bias.data))
        for name in ("rank", "used"):
            self.register_buffer(name, torch.ones(()).to(gate.weight))
        self.whole: Tensor | None = None  # g of the last forward, before the threshold
        self.pooled: Tensor | None = None

    def forward(self, x: Tensor, level: Tensor | None = None, arithmetic: Arithmetic | None = None) -> Tensor:
        """x: (batch, in channel, height, width) → (batch, out channel)."""
        whole = super().forward(x, level, arithmetic)
        self.whole = whole
        if self.training:
            now = whole.detach().mean(0)
            self.mean.lerp_(now, 0.02) if bool(self.mean.any()) else self.mean.copy_(now)
        stays = (whole > self.threshold) | (whole == whole.amax(1, keepdim=True))
        if self.training:
            self.used.lerp_(stays.to(self.used).mean(), _FOLLOWS)
        return torch.where(stays, whole, torch.zeros_like(whole))

    def move_threshold(self, share: float) -> None:
        """Put it where k = ⌈share · C⌉ mean saliencies lie above it; nothing goes at share 1."""
        count = winner_count(share, len(self.mean))
        ranked = self.mean.sort(descending=True).values
        level = ranked[count] if count < len(ranked) else torch.zeros_like(ranked[0])
        self.threshold.copy_(level)

    def __deepcopy__(self, memo: dict[int, object]) -> ThresholdGate:
        twin: ThresholdGate = copy_without_records(self, memo, ("whole", "pooled"))
        return twin


def note_output(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
    """A forward hook: keeps what saliencies are compared with. output: (batch, channel, height, width)."""
    gate = layer.gate
    assert isinstance(gate, ThresholdGate)
    gate.pooled = output.mean((2, 3))


def plain_gates(network: nn.Module) -> nn.Module:
    """A copy with ordinary gates, for a checkpoint and the engine; its images need their own counts."""
    twin = deepcopy(network)
    for _, layer in gated_layers(twin):
        old = layer.gate
        layer.gate = SaliencyPredictor(old.weight.shape[0], old.weight.shape[1], old.summary).to(old.weight)
        layer.gate.load_state_dict({"weight": old.weight, "bias": old.bias})
        layer._forward_hooks.clear()
    return twin


def annealed(share: float, target: float) -> float:
    """r: from 1 to `target` along half a cosine.

    >>> annealed(0.0, 0.5), annealed(1.0, 0.5)
    (1.0, 0.5)
    """
    return target + (1 - target) * (1 + math.cos(math.pi * min(1.0, share))) / 2


def easiness(losses: Tensor) -> Tensor:
    """max(0, (½L̄ − L_i) / ½L̄): how far below half the mean an image's loss is. losses: (batch,)."""
    half = losses.mean() / 2
    return ((half - losses) / half.clamp(min=1e-12)).clamp(min=0)
