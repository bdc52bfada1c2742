"""PerforatedCNNs (Figurnov et al., NIPS 2016): some positions are computed, the others copy a neighbour.

    V(p) for p in a layer's mask;  V(q) = V(the nearest p), by Euclidean distance, for all others
    impact(p)  = mean over images of Σ_channels |V · ∂L/∂V| at p: the first-order cost of losing it
    rates      1, 1/1.5, 1/2, 1/3 … 1/20 of the positions
    greedily   raise the rate of the layer with the least (loss − loss₀) / (cost₀ − cost) until all is saved

Masks: "impact" (the highest stay), "grid" (equal spacing, random offset) or "uniform" (at random). The fourth
one of the authors, by the structure of a pooling layer behind, is not here. Cost is MACs; the authors measure
time. 1×1 convolutions stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from penstock.errors import PruningError
from penstock.pruning.pixels import (
    Candidate,
    PixelLayer,
    Work,
    choose_convolutions,
    layers_of,
    share_for,
)
from penstock.pruning.protocol import Budget, Calibration, Skipping, need_images
from penstock.surgery.network import eval_mode
from penstock.surgery.pixels import FixedPixels

RATES = (1.0, 1 / 1.5, *(1 / n for n in range(2, 21)))


@dataclass(frozen=True)
class Perforated:
    """Impacts and losses are measured on `images` images."""

    images: int = 500
    masks: Literal["impact", "grid", "uniform"] = "impact"
    seed: int = 0
    name: str = "perforated"

    def __post_init__(self) -> None:
        if self.masks not in ("impact", "grid", "uniform"):
            raise PruningError(f"masks: expected impact, grid or uniform, got {self.masks!r}")

    def prune(
        self, network: nn.Module, example: Tensor, budget: Budget, data: Calibration | None = None
    ) -> Skipping:
        """The network with masks found greedily, to be fine-tuned with the masks fixed."""
        data = need_images(data, self.name)

        def refuse(one: Candidate) -> str | None:
            if one.conv.kernel_size == (1, 1):
                return "1×1: there is nothing to gain by the authors' way of computing"
            return "its map is one pixel" if one.shape[1] * one.shape[2] < 2 else None

        chosen = choose_convolutions(network, example, refuse)
        chosen.replace_by(PerforatedConv)
        layers = layers_of(chosen.traced, PerforatedConv)
        share = share_for(budget, chosen.dense, chosen.skipping, least=min(RATES))
        self._search(chosen.traced, layers, (1 - share) * chosen.skipping, data)
        return chosen.result()

    def _search(
        self, network: fx.GraphModule, layers: list[PerforatedConv], wanted: float, data: Calibration
    ) -> None:
        """Raise rates until `wanted` MACs are saved."""
        draw = torch.Generator().manual_seed(self.seed)
        notches = [0] * len(layers)
        with eval_mode(network):
            while sum(layer.saved() for layer in layers) < wanted:
                impacts = measure_impacts(network, layers, data) if self.masks == "impact" else None
                loss, trials = mean_loss(network, data), []
                for place, layer in enumerate(layers):
                    if notches[place] + 1 == len(RATES):
                        continue
                    before, saved = layer.state(), layer.saved()
                    impact = None if impacts is None else impacts[place]
                    layer.perforate(self._mask(layer, RATES[notches[place] + 1], impact, draw), draw)
                    gain = layer.saved() - saved
                    if gain > 0:
                        trials.append(((mean_loss(network, data) - loss) / gain, place, layer.state()))
                    layer.restore(before)
                    if gain <= 0:
                        notches[place] += 1  # too few pixels for this notch to make a difference
                if not trials and all(notch + 1 == len(RATES) for notch in notches):
                    break
                if trials:
                    _, place, state = min(trials, key=lambda trial: trial[:2])
                    layers[place].restore(state)
                    notches[place] += 1

    def _mask(
        self, layer: PerforatedConv, rate: float, impact: Tensor | None, draw: torch.Generator
    ) -> Tensor:
        height, width = layer.size
        if impact is not None:
            return top_mask(impact, rate)
        if self.masks == "grid":
            return grid_mask(height, width, rate, draw)
        return top_mask(torch.rand(height, width, generator=draw), rate)


class PerforatedConv(PixelLayer):
    """conv(x) at the masked positions, and copies of them elsewhere."""

    mask: Tensor
    nearest: Tensor

    def __init__(self, candidate: Candidate) -> None:
        super().__init__(candidate.conv, candidate.dense_macs)
        _, height, width = candidate.shape
        self.size = (height, width)
        self.register_buffer("mask", torch.ones(height, width, dtype=torch.bool))
        self.register_buffer("nearest", torch.arange(height * width))
        self.probe: Tensor | None = None  # V, while impacts are measured

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, in channel, height, width) → (batch, out channel, height', width')."""
        whole: Tensor = self.conv(x)
        if whole.shape[2:] != self.mask.shape:
            raise PruningError(
                f"a perforated layer is made for maps of {tuple(self.mask.shape)}, "
                f"got {tuple(whole.shape[2:])}; give images of the size it was made with"
            )
        if self.probe is not None:
            self.probe = whole
            whole.retain_grad()
        macs = torch.full((len(x),), self.dense_macs * float(self.mask.float().mean()))
        self.work = Work(macs, macs)
        return whole.flatten(2)[:, :, self.nearest].unflatten(2, self.size)

    def skipped(self) -> FixedPixels:
        return FixedPixels(self.mask, self.nearest)

    def saved(self) -> float:
        """MACs an image that the mask spares."""
        return self.dense_macs * (1 - float(self.mask.double().mean()))

    def perforate(self, mask: Tensor, draw: torch.Generator) -> None:
        """Compute the positions of `mask` only. mask: bool (height, width)."""
        self.mask.copy_(mask)
        self.nearest.copy_(nearest_positions(mask, draw))

    def state(self) -> tuple[Tensor, Tensor]:
        return self.mask.clone(), self.nearest.clone()

    def restore(self, state: tuple[Tensor, Tensor]) -> None:
        self.mask.copy_(state[0])
        self.nearest.copy_(state[1])


def nearest_positions(mask: Tensor, draw: torch.Generator) -> Tensor:
    """(height · width,): for every position the nearest one in `mask`; ties are broken at random."""
    axes = [torch.arange(n) for n in mask.shape]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 1)
    computed = mask.flatten().nonzero().flatten()
    squared = (places[:, None] - places[computed][None]).square().sum(2).double()
    # Squared distances are whole numbers, so a random part below one half decides between equal ones only.
    chance = torch.rand(squared.shape, generator=draw, dtype=torch.float64)
    return computed[(squared + 0.5 * chance).argmin(1)]


def top_mask(values: Tensor, rate: float) -> Tensor:
    """The share `rate` of the positions with the largest values, at least one. values: (height, width)."""
    count = max(1, round(rate * values.numel()))
    mask = torch.zeros(values.numel(), dtype=torch.bool)
    mask[values.flatten().cpu().argsort(descending=True, stable=True)[:count]] = True
    return mask.view(values.shape)


def grid_mask(height: int, width: int, rate: float, draw: torch.Generator) -> Tensor:
    """About `rate` of the positions, equally spaced in both directions, from a random offset."""
    rows, columns = (max(1, round(n * rate**0.5)) for n in (height, width))
    axes = []
    for count, size in ((rows, height), (columns, width)):
        start = float(torch.rand((), generator=draw))
        axes.append(((torch.arange(count) + start) * size / count).floor().long().clamp(max=size - 1))
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[axes[0][:, None], axes[1]] = True
    return mask


def mean_loss(network: nn.Module, data: Calibration) -> float:
    """The cross entropy on the images."""
    total = 0.0
    with torch.no_grad():
        for x, labels in zip(data.images.split(250), data.labels.split(250), strict=True):
            total += float(F.cross_entropy(network(x), labels, reduction="sum"))
    return total / len(data)


def measure_impacts(network: nn.Module, layers: list[PerforatedConv], data: Calibration) -> list[Tensor]:
    """For every layer the impact of each position, (height, width)."""
    impacts = [torch.zeros(layer.size) for layer in layers]
    for layer in layers:
        layer.probe = torch.zeros(())
    try:
        for x, labels in zip(data.images.split(125), data.labels.split(125), strict=True):
            loss = F.cross_entropy(network(x), labels, reduction="sum")
            loss.backward()  # type: ignore[no-untyped-call]
            for layer, impact in zip(layers, impacts, strict=True):
                assert layer.probe is not None
                assert layer.probe.grad is not None
                impact += (layer.probe * layer.probe.grad).abs().sum((0, 1)).detach().cpu() / len(data)
    finally:
        network.zero_grad()
        for layer in layers:
            layer.probe = None
    return impacts
