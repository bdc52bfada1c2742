"""Low-cost Collaborative Layers (Dong et al., CVPR 2017): a cheap map says where a convolution is worth it.

    m(y, x) = relu(norm(cheap(x)) − t)        cheap: one 1×1 filter (k×k where paddings do not agree)
    out     = conv(x) · m                     where m = 0, no output channel is computed

Zeros come out of the ReLU by themselves; the method has no knob. To meet a budget, t is moved so that the
wanted share of pixels is left (ours, not the authors'); `native` leaves it at 0. The map starts at 1, so that
the network begins as it was. The first convolution stays dense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from penstock.gating import scale_and_shift
from penstock.pruning.pixels import (
    Candidate,
    PixelLayer,
    Work,
    choose_convolutions,
    layers_of,
    share_for,
)
from penstock.pruning.protocol import Budget, Skipping, reached
from penstock.surgery.pixels import DecidingMap


@dataclass(frozen=True)
class LowCostLayers:
    """`native`: no threshold, whatever comes out; else it meets the budget after `anneal` of the training."""

    native: bool = False
    anneal: float = 0.5
    name: str = "lccl"

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Skipping:
        """The network with a cheap map beside every convolution but the first."""

        def refuse(one: Candidate) -> str | None:
            if one.conv.groups > 1:
                return "grouped: it is cheap already"
            return "the first convolution stays dense" if one.first else None

        chosen = choose_convolutions(network, example, refuse)
        chosen.replace_by(CheapMap)
        layers = layers_of(chosen.traced, CheapMap)
        share = share_for(budget, chosen.dense, chosen.skipping, sum(layer.cheap_macs for layer in layers))
        for layer in layers:
            layer.goal.fill_(1.0 if self.native else share)
        return chosen.result()

    def batch_loss(self, network: nn.Module, logits: Tensor, labels: Tensor) -> Tensor | None:
        return None

    def after_epoch(self, network: nn.Module, share: float) -> None:
        """Bring the share of computed pixels nearer to its goal."""
        done = reached(share, self.anneal)
        for layer in layers_of(network, CheapMap):
            layer.wanted.copy_(1 - done * (1 - layer.goal))


class CheapMap(PixelLayer):
    """conv(x) · m. `goal`: the share of pixels to end with; `wanted`: the share now."""

    goal: Tensor
    wanted: Tensor
    threshold: Tensor

    def __init__(self, candidate: Candidate) -> None:
        super().__init__(candidate.conv, candidate.dense_macs)
        conv = candidate.conv
        reach = tuple(d * (k - 1) / 2 for d, k in zip(conv.dilation, conv.kernel_size, strict=True))
        if conv.padding == reach:
            self.cheap = nn.Conv2d(conv.in_channels, 1, 1, conv.stride, bias=False)  # type: ignore[arg-type]
        else:
            sizes: dict[str, Any] = {
                name: getattr(conv, name) for name in ("kernel_size", "stride", "padding", "dilation")
            }
            self.cheap = nn.Conv2d(conv.in_channels, 1, bias=False, **sizes)
        self.cheap.to(conv.weight)
        self.norm = nn.BatchNorm2d(1).to(conv.weight)
        nn.init.constant_(self.norm.weight, 0.1)
        nn.init.constant_(self.norm.bias, 1.0)
        _, height, width = candidate.shape
        self.cheap_macs = self.cheap.weight.numel() * height * width
        for name in ("goal", "wanted"):
            self.register_buffer(name, torch.ones(()).to(conv.weight))
        self.register_buffer("threshold", torch.zeros(()).to(conv.weight))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, in channel, height, width) → (batch, out channel, height', width')."""
        value = self.norm(self.cheap(x))
        if self.training and bool(self.wanted < 1):
            edge = (
                value.detach()
                .flatten()
                .kthvalue(max(1, min(value.numel(), round(float(1 - self.wanted) * value.numel()))))
            )
            self.threshold.lerp_(edge.values, 0.1)
        m = torch.relu(value - self.threshold)
        pixels = (m.detach() != 0).flatten(1).sum(1).double() / m[0].numel()
        macs = pixels * self.dense_macs + self.cheap_macs
        self.work = Work(macs, macs)
        return self.conv(x) * m

    def skipped(self) -> DecidingMap:
        scale, shift = scale_and_shift(self.norm)
        weight = self.cheap.weight * scale[:, None, None, None]
        return DecidingMap(self.cheap, weight.detach(), (shift - self.threshold).detach())
