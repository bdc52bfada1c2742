"""The gated layer's arithmetic for training on a CPU: the plain form's numbers in fewer passes over memory.

A training step there is bound by memory, so each feature map that is allocated and written once less counts.
Enters: the convolution's output z and the gains π of one layer; leaves: the gated map, with its gradients:

    f = (z - μ) · r + β,  out = π · f        r = 1/sqrt(σ² + ε)
    ∂L/∂π = Σ_hw f · ∂L/∂out                 ∂L/∂z, ∂L/∂β: the norm's own, of π · ∂L/∂out
    s = Σ_hw |x|                             ∂L/∂x = sgn(x) · ∂L/∂s

Only z is kept for the way back: f is overwritten by out, which a following activation may overwrite again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from penstock.gating.levels import LevelNorm2d

Norm = nn.BatchNorm2d | LevelNorm2d


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


NormGate = Callable[[Tensor, Tensor, Tensor, Norm, bool, Tensor | None], tuple[Tensor, Tensor]]
"""(z, shift, gains, norm, clamp at zero, level) → the gated map, and Σ |x| over each of its maps, (n, c)."""

faster_norm_gate: ContextVar[NormGate | None] = ContextVar("faster_norm_gate", default=None)
"""What training puts in the place of the form above, where it has something faster."""


def norm_gate(
    z: Tensor,
    shift: Tensor,
    gains: Tensor,
    norm: Norm,
    activation: nn.Module,
    relu_follows: bool = False,
    level: Tensor | None = None,
) -> Tensor:
    """activation(π · (norm(z) + β)); the norm has no γ and β. z: (n, c, h, w); shift: (c,); gains: (n, c).

    relu_follows: the result goes into a ReLU and nowhere else, so it may be clamped here already.
    level: the row of the norm and of shift, (level, c), that serves all images, (), or each of them, (n,).
    """
    if isinstance(norm, nn.BatchNorm2d) and norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    faster = faster_norm_gate.get()
    if faster is None or z.dtype != torch.float32:
        return activation(_NormGate.apply(z, shift, gains, norm))
    own = type(activation) is nn.ReLU and not activation._forward_hooks
    clamps = own or (relu_follows and type(activation) is nn.Identity)
    out, sums = faster(z, shift, gains, norm, clamps, level)
    if not own and type(activation) is not nn.Identity:
        return activation(out)
    out._penstock_known = (out._version, sums, clamps)  # type: ignore[attr-defined]
    return out


def known_sums(x: Tensor) -> Tensor | None:
    """Σ |x| over each map if `norm_gate` left it with x and nobody has written into x since."""
    version, sums, _ = getattr(x, "_penstock_known", (-1, None, False))
    return sums if version == x._version else None


def known_clamped(x: Tensor) -> bool:
    """Whether x is known to be a ReLU's result already."""
    version, _, clamped = getattr(x, "_penstock_known", (-1, None, False))
    return clamped and version == x._version


def fits_norm_gate(z: Tensor, gains: Tensor, norm: nn.Module, level: Tensor | None = None) -> bool:
    """Whether `norm_gate` applies; the plain form is for tracers, compilers, hooks and other norms."""
    return (
        _fits_norm(norm, z, level)
        and type(z) is Tensor  # a tracer stands for z with an object of its own
        and torch.is_grad_enabled()
        and gains.requires_grad
        and z.device.type == "cpu"
        and z.dtype == gains.dtype  # not so under autocast
        and not (norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks)
        and not torch.compiler.is_compiling()
    )


def _fits_norm(norm: nn.Module, z: Tensor, level: Tensor | None) -> bool:
    if type(norm) is LevelNorm2d:
        # Only the faster form knows levels, and it wants the images of a level side by side.
        if faster_norm_gate.get() is None or z.dtype != torch.float32 or level is None:
            return False
        return level.dim() == 0 or bool((level[1:] >= level[:-1]).all())
    tracked = type(norm) is nn.BatchNorm2d and norm.track_running_stats and norm.momentum is not None
    return tracked and level is None


def absolute_sum(x: Tensor) -> Tensor:
    """Σ |x| over each map, its gradient in one allocation. x: (n, c, h, w) → (n, c)."""
    known = known_sums(x)
    return _AbsoluteSum.apply(x) if known is None else known
