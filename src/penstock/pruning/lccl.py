"""Low-cost Collaborative Layers (Dong et al., CVPR 2017): a cheap map says where a convolution is worth it.

    m(y, x) = relu(norm(cheap(x)) − t) / s    cheap: one 1×1 filter (k×k where paddings do not agree)
    out     = conv(x) · m                     where m = 0, no output channel is computed

Zeros come out of the ReLU by themselves; the method has no knob, and its authors have t = 0 and s = 1
(`native`). To meet a budget (ours), t is the value above which the wanted share of a batch's pixels lies, and
s the mean of what is left, as a norm's statistics are; running values of both serve inference, and are fitted
once more when the training is over. So that the network begins as it was, m takes effect step by step: the
layer multiplies by 1 − a + a · m, with a rising from 0 to 1. The first convolution stays dense.
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
        if not self.native and share < 1:
            for layer in layers:
                layer.start(share)
        return chosen.result()

    def after_step(self, network: nn.Module, share: float) -> None:
        """Let the maps take effect."""
        for layer in layers_of(network, CheapMap):
            if layer.goal < 1:
                layer.effect.fill_(reached(share, self.anneal))

    def settle(self, network: nn.Module, data: Calibration, budget: Budget) -> None:
        """Thresholds that leave the wanted share of pixels."""
        for layer in layers_of(network, CheapMap):
            layer.effect.fill_(1.0)
        fit_front_to_back(network, data.images)


class CheapMap(PixelLayer):
    """conv(x) · m. `goal`: the share of pixels to compute, 1: what the map says; `effect`: a;
    `threshold` and `level`: t and s."""

    goal: Tensor
    effect: Tensor
    threshold: Tensor
    level: Tensor

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
        for name, start in (("goal", 1.0), ("effect", 1.0), ("threshold", 0.0), ("level", 1.0)):
            self.register_buffer(name, torch.tensor(start).to(conv.weight))

    def start(self, share: float) -> None:
        """Meet a budget: this share of the pixels, from a map without effect on."""
        self.goal.fill_(share)
        self.effect.zero_()
        nn.init.ones_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)
        self.norm.requires_grad_(False)  # t and s take its shift and scale out again

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, in channel, height, width) → (batch, out channel, height', width')."""
        value = self.norm(self.cheap(x))
        threshold, level = self.threshold, self.level
        if (self.fits or self.training) and self.goal < 1:
            threshold, level = self._measure(value.detach())
        m = torch.relu(value - threshold) / level
        m = m if self.effect == 1 else 1 - self.effect + self.effect * m
        pixels = (m.detach() != 0).flatten(1).sum(1).double() / m[0].numel()
        macs = pixels * self.dense_macs + self.cheap_macs
        self.work = Work(macs, macs)
        return self.conv(x) * m

    def _measure(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """t and s of these values; the running ones follow."""
        last = max(1, min(value.numel(), round(float(1 - self.goal) * value.numel())))
        # A little higher: where layers before wrote a constant, many pixels have the same value.
        threshold = value.flatten().kthvalue(last).values + 1e-3 * value.std()
        left = torch.relu(value - threshold)
        level = (left.sum() / (left > 0).sum().clamp(min=1)).clamp(min=1e-6)
        weight = 1.0 if self.fits else _FOLLOWS
        self.threshold.lerp_(threshold, weight)
        self.level.lerp_(level, weight)
        return threshold, level

    def skipped(self) -> DecidingMap | None:
        if self.effect < 1:
            return None
        scale, shift = scale_and_shift(self.norm)
        weight = self.cheap.weight * (scale / self.level)[:, None, None, None]
        return DecidingMap(self.cheap, weight.detach(), ((shift - self.threshold) / self.level).detach())
