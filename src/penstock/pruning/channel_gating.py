"""Channel Gating (Hua et al., arXiv 2018 / NeurIPS 2019): some inputs decide if the rest is worth adding.

    Y_p = the sum over 1/p of the inputs (output group i reads input group i)
    d   = 1[norm(Y_p) > Δ_o]                     for every activation; norm without scale and shift
    Y   = d · (the whole sum) + (1 − d) · Y_p
    ∂d/∂z ≈ α σ(αz)(1 − σ(αz)), α = 2;  loss += pull · Σ (Δ − T)²

T is the knob. norm(Y_p) is about normal, so a density d of whole sums asks for T = Φ⁻¹(1 − d); T moves there
step by step over the first part of the training, and the thresholds with it (ours: in short runs the authors'
pull is too weak). When the training is over, each layer's thresholds are shifted together until it has the
density d. MACs are counted by activation (the authors) and by vectors of 8 neighbouring pixels, which a CPU
would have to compute whole. No time is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.errors import PruningError
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

_VECTOR = 8
_SLOPE = 2.0
_START = -1.28  # 10% of a normal distribution lie below


@dataclass(frozen=True)
class ChannelGating:
    """`parts` is p, which bounds the saving; `sparse_backward` gives no gradient where the gate is closed."""

    parts: int = 4
    pull: float = 1e-4
    anneal: float = 0.5
    sparse_backward: bool = False
    name: str = "channel-gating"

    def __post_init__(self) -> None:
        if self.parts < 2:
            raise PruningError(f"parts: expected at least 2, got {self.parts!r}")

    def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Skipping:
        """The network with gates between the parts of every convolution whose channels divide by p."""

        def refuse(one: Candidate) -> str | None:
            if one.conv.groups > 1 or one.conv.in_channels % self.parts or one.conv.out_channels % self.parts:
                return f"its channels do not divide into {self.parts} parts"
            return None

        chosen = choose_convolutions(network, example, refuse)
        base = 1 / self.parts
        share = share_for(budget, chosen.dense, chosen.skipping, least=base + 1e-4)
        density = (share - base) / (1 - base)
        goal = NormalDist().inv_cdf(min(0.999, max(0.001, 1 - density)))
        chosen.replace_by(lambda one: GatedSums(one, self.parts, goal, self.sparse_backward))
        return chosen.result()

    def batch_loss(self, network: nn.Module, logits: Tensor, labels: Tensor) -> Tensor | None:
        """pull · Σ (Δ − T)²."""
        terms = [(layer.delta - layer.target).square().sum() for layer in layers_of(network, GatedSums)]
        return self.pull * torch.stack(terms).sum()

    def after_step(self, network: nn.Module, share: float) -> None:
        """Move T, and all thresholds with it."""
        done = reached(share, self.anneal)
        for layer in layers_of(network, GatedSums):
            layer.target.fill_(_START + done * (layer.goal - _START))
            with torch.no_grad():
                layer.delta.add_(layer.target - layer.delta.mean())

    def settle(self, network: nn.Module, data: Calibration, budget: Budget) -> None:
        """Thresholds with which every layer has the density that the budget asks for."""
        fit_front_to_back(network, data.images)


class GatedSums(PixelLayer):
    """x: (batch, in channel, height, width) → (batch, out channel, height', width')."""

    target: Tensor

    def __init__(self, candidate: Candidate, parts: int, goal: float, sparse_backward: bool) -> None:
        conv = candidate.conv
        super().__init__(conv, candidate.dense_macs)
        self.parts, self.goal, self.sparse_backward = parts, goal, sparse_backward
        self.norm = nn.BatchNorm2d(conv.out_channels, affine=False).to(conv.weight)
        self.delta = nn.Parameter(torch.full((conv.out_channels,), _START).to(conv.weight))
        self.register_buffer("target", torch.tensor(_START).to(conv.weight))

    def base_weight(self) -> Tensor:
        """(output, input / p, k, k): the weights of output group i on input group i."""
        weight = self.conv.weight
        rows = weight.unflatten(0, (self.parts, -1)).unflatten(2, (self.parts, -1))
        return torch.cat([rows[i, :, i] for i in range(self.parts)])

    def forward(self, x: Tensor) -> Tensor:
        conv = self.conv
        base = F.conv2d(
            x, self.base_weight(), conv.bias, conv.stride, conv.padding, conv.dilation, groups=self.parts
        )
        whole = conv(x)
        above = self.norm(base) - self.delta[:, None, None]
        if self.fits:
            place = max(1, round(NormalDist().cdf(self.goal) * above.numel()))
            shift = above.flatten().kthvalue(place).values
            self.delta.add_(shift)
            above = above - shift
        gate = step(above, self.sparse_backward)
        self.work = self._count(gate.detach())
        return base + gate * (whole - base)

    def _count(self, gate: Tensor) -> Work:
        rows = gate.flatten(2)
        short = -rows.shape[2] % _VECTOR
        vectors = F.pad(rows, (0, short)).unflatten(2, (-1, _VECTOR)).amax(3)
        base = 1 / self.parts
        shares = [rows.double().mean((1, 2)), vectors.double().mean((1, 2))]
        authors, executed = (self.dense_macs * (base + (1 - base) * share) for share in shares)
        return Work(authors, executed)


class _Step(torch.autograd.Function):
    """1 where z > 0, with a sigmoid's slope."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, sparse: bool) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(z)
        ctx.sparse = sparse
        return (z > 0).to(z)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (z,) = ctx.saved_tensors
        s = torch.sigmoid(_SLOPE * z)
        slope = _SLOPE * s * (1 - s)
        return gradient * (slope * (z > 0) if ctx.sparse else slope), None


def step(z: Tensor, sparse: bool = False) -> Tensor:
    """1[z > 0]; its gradient is that of σ(2z), and with `sparse` only where z > 0."""
    made: Tensor = _Step.apply(z, sparse)  # type: ignore[no-untyped-call]
    return made
