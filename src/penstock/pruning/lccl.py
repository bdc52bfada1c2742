"""Low-cost Collaborative Layers (Dong et al., CVPR 2017): a cheap map says where a convolution is worth it.

    m(y, x) = relu(norm(cheap(x)) − t) / s    cheap: one 1×1 filter (k×k where paddings do not agree)
    out     = conv(x) · m                     where m = 0, no output channel is computed

Zeros come out of the ReLU by themselves; the method has no knob, and its authors have t = 0 and s = 1
(`native`). To meet a budget (ours), t rises step by step from 0 to the value that leaves the wanted share of
pixels, and s is the mean of what is left, so that m stays near 1: without s, m would fall from 1 to about
0.05, every layer would shrink its output by as much, and the gradients of layers one behind the other would
grow by the inverse of all of them. When the training is over, t and s are fitted once more. The map starts at
1, so that the network begins as it was. The first convolution stays dense.
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
    fit_front_to_back,
    layers_of,
    share_for,
)
from penstock.pruning.protocol import Budget, Calibration, Skipping, reached
from penstock.surgery.pixels import DecidingMap

_FOLLOWS = 0.1  # of the way to the batch's values, a step


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

    def after_step(self, network: nn.Module, share: float) -> None:
        """Let the thresholds rise."""
        for layer in layers_of(network, CheapMap):
            layer.done.fill_(reached(share, self.anneal))

    def settle(self, network: nn.Module, data: Calibration, budget: Budget) -> None:
        """Thresholds that leave the wanted share of pixels."""
        if not self.native:
            fit_front_to_back(network, data.images)


class CheapMap(PixelLayer):
    """conv(x) · m. `goal`: the share of pixels to end with; `done`: how far the threshold has risen, 0 to 1;
    `edge`: where it ends; `threshold` and `size`: t and s."""

    goal: Tensor
    done: Tensor
    edge: Tensor
    threshold: Tensor
    size: Tensor

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
        for name, start in (("goal", 1.0), ("done", 0.0), ("edge", 0.0), ("threshold", 0.0), ("size", 1.0)):
            self.register_buffer(name, torch.tensor(start).to(conv.weight))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, in channel, height, width) → (batch, out channel, height', width')."""
        value = self.norm(self.cheap(x))
        if self.fits or (self.training and bool(self.done > 0) and bool(self.goal < 1)):
            self._raise_threshold(value.detach(), 1.0 if self.fits or not self.edge else _FOLLOWS)
        m = torch.relu(value - self.threshold) / self.size
        pixels = (m.detach() != 0).flatten(1).sum(1).double() / m[0].numel()
        macs = pixels * self.dense_macs + self.cheap_macs
        self.work = Work(macs, macs)
        return self.conv(x) * m

    def _raise_threshold(self, value: Tensor, weight: float) -> None:
        """Move `edge`, `threshold` and `size` by `weight` of the way to what these values ask for."""
        least = max(1, min(value.numel(), round(float(1 - self.goal) * value.numel())))
        self.edge.lerp_(value.flatten().kthvalue(least).values, weight)
        self.threshold.copy_(self.edge if self.fits else self.done * self.edge)
        left = torch.relu(value - self.threshold)
        self.size.lerp_(left.sum() / (left > 0).sum().clamp(min=1), weight).clamp_(min=1e-6)

    def skipped(self) -> DecidingMap:
        scale, shift = scale_and_shift(self.norm)
        weight = self.cheap.weight * (scale / self.size)[:, None, None, None]
        return DecidingMap(self.cheap, weight.detach(), ((shift - self.threshold) / self.size).detach())
