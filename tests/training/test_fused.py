"""The fused training form of the gated layer against the plain one: same outputs, statistics, gradients."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from penstock.gating import GatedConv2d, saliency_penalty
from penstock.training.fused import FusedLayers


def layer(in_channels: int, out_channels: int, density: float, stride: int = 1) -> GatedConv2d:
    conv = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
    made = GatedConv2d(conv, nn.BatchNorm2d(out_channels, affine=False), nn.ReLU(), density=density)
    nn.init.normal_(made.shift)
    return made.double()


def _history(out: Tensor) -> str:
    """The names of the autograd functions behind a result."""
    seen, waiting = [], [out.grad_fn]
    while waiting:
        function = waiting.pop()
        if function is not None:
            seen.append(function.name())
            waiting += [before for before, _ in function.next_functions]
    return " ".join(seen)


@given(
    channels=st.tuples(st.integers(1, 6), st.integers(1, 9)),
    size=st.tuples(st.integers(3, 8), st.integers(3, 8)),
    density=st.floats(0.05, 1.0),
    stride=st.integers(1, 2),
    channels_last=st.booleans(),
    frozen=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=40)
def test_fused_and_plain_forms_agree_in_outputs_statistics_and_gradients(
    channels: tuple[int, int], size: tuple[int, int], density: float, stride: int,
    channels_last: bool, frozen: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    fused = layer(*channels, density, stride)
    fused.norm.train(not frozen)
    plain = deepcopy(fused)
    x = torch.randn(3, channels[0], *size, dtype=torch.float64)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    results: list[tuple[Tensor, Tensor, GatedConv2d]] = []
    weights: Tensor | None = None
    for network in (fused, plain):
        given_x = x.clone().requires_grad_()
        with FusedLayers(network) if network is fused else nullcontext():
            out = network(given_x)
        assert ("NormGate" in _history(out)) == (network is fused)
        weights = torch.randn_like(out) if weights is None else weights
        ((out * weights).sum() + 0.1 * saliency_penalty(network)).backward()
        assert given_x.grad is not None
        results.append((out.detach(), given_x.grad, network))
    (out_a, grad_a, a), (out_b, grad_b, b) = results
    torch.testing.assert_close(out_a, out_b)
    torch.testing.assert_close(grad_a, grad_b)
    for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=lambda text, name=name: f"{name}: {text}")
    for (name, p), (_, q) in zip(a.named_buffers(), b.named_buffers(), strict=True):
        torch.testing.assert_close(p, q, msg=lambda text, name=name: f"{name}: {text}")


def test_an_activation_may_overwrite_the_gated_map() -> None:
    made = layer(3, 4, 0.5)
    inplace = deepcopy(made)
    inplace.activation = nn.ReLU(inplace=True)
    for network in (made, inplace):
        with FusedLayers(network):
            out = network(torch.ones(2, 3, 5, 5, dtype=torch.float64).cumsum(3))
        out.square().sum().backward()
    for p, q in zip(made.parameters(), inplace.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_second_forward_before_the_backward_does_not_change_the_gradient() -> None:
    made = layer(3, 4, 0.5)
    twin = deepcopy(made)
    x, other = torch.randn(2, 2, 3, 5, 5, dtype=torch.float64)
    with FusedLayers(made):
        made(x).sum().backward()
    with FusedLayers(twin):
        first = twin(x)
        twin(other)
    first.sum().backward()
    torch.testing.assert_close(made.conv.weight.grad, twin.conv.weight.grad)


def test_the_absolute_sum_has_the_gradient_of_its_formula() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(FusedLayers(nn.Identity()).absolute_sum, (x,))


@pytest.mark.parametrize("training", [True, False])
def test_a_gated_layer_can_still_be_traced_symbolically(training: bool) -> None:
    made = layer(3, 4, 0.5).train(training)
    traced = torch.fx.symbolic_trace(deepcopy(made))
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(traced(x), made(x))


def test_mixed_precision_takes_the_plain_form_and_trains() -> None:
    made = layer(3, 4, 0.5).float()
    with torch.autocast("cpu", dtype=torch.bfloat16), FusedLayers(made):
        out = made(torch.randn(2, 3, 5, 5))
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())
