"""The native batch norm of training against torch's own in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from penstock.native import ISA_VARIABLE, available_isas
from penstock.training.batch_norm import batch_norm
from penstock.training.fast_layers import FastLayers


@pytest.mark.parametrize("isa", available_isas())
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 70), st.integers(1, 7), st.integers(2, 7), st.floats(-5, 5),
    st.integers(0, 2**16),
)  # fmt: skip
def test_values_gradients_and_statistics_are_those_of_torch(
    isa: str, n: int, c: int, h: int, w: int, centre: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).double()  # the same numbers in both precisions

    values = ((draw(n, c, h, w) + centre).float().double(), draw(c), draw(c))
    to_out = draw(n, c, h, w)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ISA_VARIABLE, isa)
        for form, kind in ((F.batch_norm, torch.float64), (batch_norm, torch.float32)):
            z, gain, shift = (whole.to(kind, copy=True).requires_grad_() for whole in values)
            mean, variance = torch.zeros(c, dtype=kind), torch.ones(c, dtype=kind)
            out = form(z, mean, variance, gain, shift, True, 0.3, 1e-5)
            (out * to_out.to(kind)).sum().backward()
            found.append((out.detach(), z.grad, gain.grad, shift.grad, mean, variance))
    # A channel of few values can be nearly constant: its 1/sqrt(σ² + ε) then magnifies rounding.
    enlarged = float((values[0].var(dim=(0, 2, 3), correction=0) + 1e-5).rsqrt().max())
    for wanted, given_ in zip(*found, strict=True):
        assert wanted is not None
        assert given_ is not None
        size = max(1.0, float(wanted.abs().max())) * max(1.0, enlarged)
        assert torch.allclose(given_.double(), wanted, rtol=0, atol=2e-5 * size)


def test_norms_of_a_network_without_gates_are_computed_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.ReLU(inplace=True), nn.Flatten())
    images = torch.randn(5, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    with FastLayers(network):
        fast = network(images)
    names, step = set(), fast.grad_fn
    while step is not None:
        names.add(step.name())
        step = next((one for one, _ in step.next_functions if one is not None), None)
    assert "_BatchNormBackward" in names
    network[1].reset_running_stats()
    assert torch.allclose(fast, network(images), atol=1e-5)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.BatchNorm2d(4).double(),
        nn.BatchNorm2d(4).eval(),
    ],
    ids=["affine", "statistics", "double", "evaluated"],
)
def test_other_norms_go_to_torch(norm: nn.BatchNorm2d) -> None:
    images = torch.randn(3, 4, 5, 5, dtype=torch.float64 if norm.weight is not None else torch.float32)
    images = images.to(norm.weight.dtype) if norm.weight is not None else images
    with FastLayers(norm):
        fast = norm(images)
    assert fast.grad_fn is None or "_BatchNormBackward" not in fast.grad_fn.name()


def test_a_channel_of_one_value_is_refused_as_torch_refuses_it() -> None:
    norm = nn.BatchNorm2d(4)
    with FastLayers(norm), pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(torch.zeros(1, 4, 1, 1))
