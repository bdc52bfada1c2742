"""The gated layer's arithmetic for training on a CPU: the plain form's numbers in fewer passes over memory.

A training step there is bound by memory, so each feature map that is allocated and written once less counts.
Enters: the convolution's output z and the gains π of one layer; leaves: the gated map, with its gradients:

    f = (z - μ) · r + β,  out = π · f        r = 1/sqrt(σ² + ε)
    ∂L/∂π = Σ_hw f · ∂L/∂out                 ∂L/∂z, ∂L/∂β: the norm's own, of π · ∂L/∂out
    s = Σ_hw |x|                             ∂L/∂x = sgn(x) · ∂L/∂s

Only z is kept for the way back: f is overwritten by out, which a following activation may overwrite again.
`FusedLayers` is given to the layers of a network that trains; without it they compute the plain equations.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from penstock.gating import EQUATIONS, Arithmetic, GatedConv2d, gated_layers, winners_take_all
from penstock.surgery.network import has_hooks
from penstock.training.thresholds import choose_by_threshold
from penstock.training.winner_norm import boost_over_winners, takes_winners


class _NormGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, shift: Tensor, gains: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        mean, variance, ctx.training, ctx.eps = norm.running_mean, norm.running_var, norm.training, norm.eps
        assert mean is not None
        assert variance is not None
        assert norm.momentum is not None
        out, batch_mean, batch_scale = torch.native_batch_norm(
            z, None, shift, mean, variance, norm.training, norm.momentum, norm.eps
        )
        # Running statistics change with the next batch, so they are kept only where they were used.
        statistics = (batch_mean, batch_scale) if norm.training else (mean, variance)
        ctx.save_for_backward(z, shift, gains, *statistics)
        return out.mul_(gains[:, :, None, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, None]:
        z, shift, gains, mean, spread = ctx.saved_tensors
        scale = spread if ctx.training else (spread + ctx.eps).rsqrt()
        buffer = (z - (mean - shift / scale)[:, None, None]).mul_(gradient)
        to_gains = buffer.sum(dim=(2, 3)).mul_(scale)
        torch.mul(gradient, gains[:, :, None, None], out=buffer)
        running, batch = ((None, None), (mean, spread)) if ctx.training else ((mean, spread), (None, None))
        to_z, _, to_shift = torch.ops.aten.native_batch_norm_backward(
            buffer, z, None, *running, *batch, ctx.training, ctx.eps, [ctx.needs_input_grad[0], False, False]
        )
        if ctx.needs_input_grad[1]:
            to_shift = buffer.sum(dim=(0, 2, 3))
        return to_z, to_shift, to_gains, None


class _AbsoluteSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.abs().sum(dim=(2, 3))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x.sgn().mul_(gradient[:, :, None, None])


class FusedLayers(Arithmetic):
    """Gated layers in fewer passes over memory, given to all of a network's for the time of a ``with``.

    statistics: "all", the paper's, or "winners" (see `winner_norm`). cap: winners are chosen by thresholds,
    at most this share of a layer's channels (see `thresholds`); 0 for exactly k.

    with FusedLayers(network):
        logits = network(x)
    """

    def __init__(self, network: nn.Module, statistics: str = "all", cap: float = 0.0) -> None:
        self.over_winners = statistics == "winners"
        self.cap = cap
        self.noise = 0.0
        """On the choice of winners, in standard deviations of an image's saliencies; each step sets it."""
        self.layers = [layer for _, layer in gated_layers(network)]
        self.pools = False
        """Whether `pooled` is wanted: the mean size of each layer's channels in the last forward."""
        self.pooled: dict[GatedConv2d, Tensor] = {}

    def __enter__(self) -> Self:
        self.pooled.clear()
        for layer in self.layers:
            layer.arithmetic = self
        return self

    def __exit__(self, *raised: object) -> None:
        for layer in self.layers:
            layer.arithmetic = EQUATIONS

    def choose(self, layer: GatedConv2d, saliency: Tensor, counts: Tensor) -> Tensor:
        if not layer.training or not (self.noise or self.cap):
            return super().choose(layer, saliency, counts)
        choice: Tensor | None = None
        if self.noise:
            values = saliency.detach()
            spread = self.noise * values.std(dim=1, correction=0, keepdim=True)
            noisy = values + spread * torch.randn_like(values)
            # Winners are the largest magnitudes: shifted, so that what noise made negative does not win. A
            # threshold compares images, so all are then shifted alike.
            choice = noisy - noisy.amin(dim=(0, 1) if self.cap else 1, keepdim=True)
        if not self.cap:
            return winners_take_all(saliency, counts, choice)
        return choose_by_threshold(layer, saliency, choice, self.cap)

    def features(self, layer: GatedConv2d, x: Tensor, gains: Tensor, level: Tensor | None) -> Tensor:
        return self.noted(layer, super().features(layer, x, gains, level))

    def noted(self, layer: GatedConv2d, out: Tensor) -> Tensor:
        """A layer's result, whose channels' sizes are kept if somebody asks for them."""
        if self.pools and layer.training:
            self.pooled[layer] = self.summarise(out, "l1")
        return out

    def summarise(self, x: Tensor, summary: str) -> Tensor:
        # Tracers pass a proxy for x, which is not of type Tensor; they take the plain form.
        plain = type(x) is not Tensor or not x.requires_grad or torch.compiler.is_compiling()
        if summary != "l1" or plain:
            return super().summarise(x, summary)
        return self.absolute_sum(x) / (x.shape[2] * x.shape[3])

    def absolute_sum(self, x: Tensor) -> Tensor:
        """Σ |x| over each map, its gradient in one allocation. x: (n, c, h, w) → (n, c)."""
        return _AbsoluteSum.apply(x)

    def boost(self, layer: GatedConv2d, z: Tensor, gains: Tensor, level: Tensor | None) -> Tensor:
        if self.over_winners and takes_winners(layer):
            return boost_over_winners(layer, z, gains, level)
        norm = layer.norm
        if not (layer.training and level is None and is_tracked(norm) and fits(z, gains, norm)):
            return super().boost(layer, z, gains, level)
        assert isinstance(norm, nn.BatchNorm2d)
        count_batch(norm)
        return layer.activation(_NormGate.apply(z, layer.shift, gains, norm))


def fits(z: Tensor, gains: Tensor, norm: nn.Module) -> bool:
    """Whether an autograd function of our own may compute norm and gate.

    Tracers, compilers, hooks, other devices and mixed types take the plain form.
    """
    return (
        type(z) is Tensor  # not the proxy of a tracer
        and torch.is_grad_enabled()
        and gains.requires_grad
        and z.device.type == "cpu"
        and z.dtype == gains.dtype  # not so under autocast
        and not has_hooks(norm)
        and not torch.compiler.is_compiling()
    )


def is_tracked(norm: nn.Module) -> bool:
    """Whether a batch norm keeps running statistics with a fixed momentum."""
    return type(norm) is nn.BatchNorm2d and norm.track_running_stats and norm.momentum is not None


def count_batch(norm: nn.Module) -> None:
    """What a batch norm notes when it trains, besides its statistics."""
    if isinstance(norm, nn.BatchNorm2d) and norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
