"""Insertion: a CNN in, the same CNN with gates out, as a copy.

At every site the convolution becomes a GatedConv2d of the same name, with the batch norm that followed it
inside (its scale and shift taken over by the gate); the activation stays where it is in the graph.

    init="preserve"   π = |γ| and β = b/|γ| (γ, b: the norm's scale and shift); where γ < 0, θ and the running
                      mean change sign. At density 1 the gated network computes what the original did.
    init="paper"      φ by He's initialisation, ρ = 1, β = b, θ kept: the function changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from penstock.errors import SurgeryError
from penstock.gating import SUMMARIES, GatedConv2d, check_density
from penstock.surgery.explain import remember
from penstock.surgery.operators import module_of
from penstock.surgery.sites import Site, find_sites
from penstock.surgery.trace import trace, unwrapped

# Below this |γ| the quotient b/|γ| would make the gate's gradients explode, so ρ stops here and the filter
# shrinks instead.
_SMALLEST_SCALE = 1e-3
# A filter whose γ is 0 shrinks to this share rather than to nothing: the error is 1e-7 of a normalised value,
# and training can still revive it.
_SMALLEST_SHRINK = 1e-4
# Without running statistics the norm would undo any shrinking, so only ρ has a floor there.
_SMALLEST_UNTRACKED_SCALE = 1e-6


def add_gates(
    model: nn.Module,
    example: Tensor,
    density: float = 1.0,
    init: str = "preserve",
    summary: str = "l1",
    keep_dense: Sequence[str] = (),
) -> fx.GraphModule:
    """A copy of `model` in which every convolution that can be gated is; `model` itself is untouched.

    example: one input batch (batch, channel, height, width). density: d in ]0, 1], for all gated layers.
    init: "preserve" (equal outputs at density 1) or "paper". summary: "l1", "l2", "linf" or "variance".
    keep_dense: names or patterns of convolutions to leave alone. `explain` says what was done and why.

    >>> import torch, penstock as ps
    >>> gated = ps.add_gates(ps.zoo.m_cifarnet(), torch.zeros(1, 3, 32, 32), density=0.5)
    >>> gated(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    density = check_density(density)
    if init not in _INITS:
        raise SurgeryError(f"init: expected one of {', '.join(map(repr, _INITS))}, got {init!r}")
    if summary not in SUMMARIES:
        raise SurgeryError(f"summary: expected one of {', '.join(map(repr, SUMMARIES))}, got {summary!r}")
    model = unwrapped(model)
    check_weights(model)
    traced = trace(model, example)
    verdicts = find_sites(traced, model, keep_dense)
    for verdict in verdicts:
        if verdict.site is not None:
            _put_gate(traced, verdict.site, density, init, summary)
    traced.graph.lint()
    traced.recompile()
    remember(traced, verdicts)
    return traced


def check_weights(model: nn.Module) -> None:
    """Refuse what is not a plain CNN in working order: no convolution, gates already, NaN or Inf weights."""
    if not isinstance(model, nn.Module):
        raise SurgeryError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        if isinstance(module, GatedConv2d):
            raise SurgeryError(
                f"the network already has gates (layer {name!r}); "
                "change their density with penstock.set_density"
            )
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        raise SurgeryError(f"{type(model).__name__} has no Conv2d layer, so there is nothing to gate")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise SurgeryError(f"{name!r} is not initialised yet; run the network once on a batch first")
        # One bad value makes the sum bad, and a sum is ten times cheaper than a test of every value.
        if not tensor.is_floating_point() or tensor.is_meta or bool(torch.isfinite(tensor.detach().sum())):
            continue
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise SurgeryError(
                f"{name!r} holds {bad} NaN or infinite values of {tensor.numel()}; "
                "repair or reload the weights first"
            )


def _put_gate(traced: fx.GraphModule, site: Site, density: float, init: str, summary: str) -> None:
    conv = module_of(site.conv)
    norm = None if site.norm is None else module_of(site.norm)
    assert isinstance(conv, nn.Conv2d)
    assert norm is None or isinstance(norm, nn.BatchNorm2d)
    scale, shift = _scale_and_shift(conv, norm)
    layer = GatedConv2d(conv, norm, summary=summary, density=density)
    layer.to(device=conv.weight.device, dtype=conv.weight.dtype)
    layer.train(conv.training if norm is None else norm.training)
    with torch.no_grad():
        _INITS[init](layer, scale, shift)
    traced.set_submodule(str(site.conv.target), layer)
    if site.norm is None:
        return
    site.norm.replace_all_uses_with(site.conv)
    traced.graph.erase_node(site.norm)
    _take_out_norm(traced, str(site.norm.target))


def _scale_and_shift(conv: nn.Conv2d, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
    """γ and b, taken out of the norm and the convolution so that these are ready for a gate."""
    ones = torch.ones_like(conv.weight[:, 0, 0, 0])
    bias = torch.zeros_like(ones) if conv.bias is None else conv.bias.detach().clone()
    conv.bias = None
    if norm is None:
        return ones, bias
    assert isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm)
    if norm.running_mean is not None:  # without running statistics the norm takes any bias out by itself
        norm.running_mean -= bias.to(norm.running_mean)
    scale = norm.weight.detach().clone() if norm.affine else ones
    shift = norm.bias.detach().clone() if norm.affine else torch.zeros_like(ones)
    norm.affine = False
    norm.register_parameter("weight", None)
    norm.register_parameter("bias", None)
    return scale.to(ones), shift.to(ones)


def _init_to_preserve(layer: GatedConv2d, scale: Tensor, shift: Tensor) -> None:
    norm = layer.norm
    tracked = isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None
    untracked = isinstance(norm, nn.BatchNorm2d) and norm.running_mean is None
    gain = scale.abs().clamp(min=_SMALLEST_UNTRACKED_SCALE if untracked else _SMALLEST_SCALE)
    factor = torch.where(scale < 0, -1.0, 1.0).to(scale)
    if tracked:
        factor = factor * (scale.abs() / gain).clamp(min=_SMALLEST_SHRINK)
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        norm.running_mean *= factor.to(norm.running_mean)
    layer.conv.weight *= factor[:, None, None, None]
    layer.gate.weight.zero_()
    layer.gate.bias.copy_(gain)
    layer.shift.copy_(shift / gain)


def _init_as_in_paper(layer: GatedConv2d, scale: Tensor, shift: Tensor) -> None:
    layer.gate.reset_as_in_paper()
    layer.shift.copy_(shift)


_INITS: dict[str, Callable[[GatedConv2d, Tensor, Tensor], None]] = {
    "preserve": _init_to_preserve,
    "paper": _init_as_in_paper,
}


def _take_out_norm(traced: fx.GraphModule, name: str) -> None:
    """Drop the norm's old place, but keep what stands under it (the activation of a fused norm)."""
    children = dict(traced.get_submodule(name).named_children())
    if not children:
        traced.delete_submodule(name)
        return
    place = nn.Module()
    for child, module in children.items():
        place.add_module(child, module)
    place.training = next(iter(children.values())).training
    traced.set_submodule(name, place)
