"""The training convolution against torch's own in double precision, and where it steps aside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from penstock.native import ISA_VARIABLE, available_isas, native
from penstock.training.fast_layers import FastLayers
from penstock.training.winograd import conv3x3, fits

_SHAPES = st.tuples(
    st.integers(1, 4),  # images
    st.integers(1, 40),  # in
    st.integers(1, 40),  # out
    st.integers(3, 13),  # height
    st.integers(3, 13),  # width
    st.integers(0, 2),  # padding
    st.integers(0, 2**16),  # seed
)


def relative(given: Tensor, wanted: Tensor, scale: Tensor | None = None) -> float:
    """The largest error, against the largest value of `scale` (which no cancellation makes small)."""
    scale = wanted if scale is None else scale
    return float((given - wanted).detach().abs().max() / scale.detach().abs().max().clamp_min(1e-12))


def draw(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("isa", available_isas())
@settings(max_examples=40, deadline=None)
@given(shape=_SHAPES)
def test_forward_and_both_gradients_are_those_of_torch(isa: str, shape: tuple[int, ...]) -> None:
    n, c, k, h, w, padding, seed = shape
    generator = torch.Generator().manual_seed(seed)
    x = draw((n, c, h, w), generator).requires_grad_()
    weight = draw((k, c, 3, 3), generator).requires_grad_()
    y = F.conv2d(x, weight, padding=padding)
    gradient = draw(tuple(y.shape), generator)
    wanted = (y, *torch.autograd.grad(y, (x, weight), gradient))
    sizes = [whole.detach().abs().requires_grad_() for whole in (x, weight)]
    size = F.conv2d(*sizes, padding=padding)
    scales = (size, *torch.autograd.grad(size, sizes, gradient.abs()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ISA_VARIABLE, isa)
        x32, weight32 = (whole.detach().float().requires_grad_() for whole in (x, weight))
        y32 = conv3x3(x32, weight32, padding)
        given = (y32, *torch.autograd.grad(y32, (x32, weight32), gradient.float()))
    for name, mine, theirs, scale in zip(("y", "dx", "dw"), given, wanted, scales, strict=True):
        assert relative(mine, theirs, scale) < 1e-5, (name, isa, shape)


def test_the_number_of_threads_changes_no_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    x = draw((5, 21, 14, 11), generator).float().permute(0, 2, 3, 1).contiguous().numpy()
    w = draw((35, 3, 3, 21), generator).float().numpy()
    results = []
    for threads in (1, 2, 3):
        trainer = native().Trainer("baseline", threads)
        y = np.empty((5, 14, 11, 35), np.float32)
        trainer.forward(x, w, 1, y)
        dx, dw = np.empty_like(x), np.empty_like(w)
        trainer.backward(x, w, 1, y, dx, dw, True)
        results.append((y, dx, dw))
    for other in results[1:]:
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(results[0], other, strict=True))


def test_inside_the_context_a_network_gives_the_same_loss_and_gradients() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.Conv2d(32, 48, 3, padding=1),
        nn.Conv2d(48, 32, 3, stride=2),
        nn.Conv2d(32, 32, 3, padding=2, dilation=2),
        nn.Conv2d(32, 16, 1),
    )
    x = torch.randn(2, 3, 16, 16)
    plain = torch.autograd.grad(network(x).square().mean(), list(network.parameters()))
    with FastLayers(network):
        loss = network(x).square().mean()
    fast = torch.autograd.grad(loss, list(network.parameters()))
    for mine, theirs in zip(fast, plain, strict=True):
        assert relative(mine, theirs) < 1e-4


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stride": 2}, "stride"),
        ({"dilation": (2, 2)}, "dilation"),
        ({"groups": 2}, "groups"),
        ({"padding": "same"}, "padding by name"),
        ({"padding": (1, 0)}, "uneven padding"),
        ({"x": torch.zeros(1, 32, 5, 5)}, "tiles mostly padding"),
        ({"x": torch.zeros(1, 32, 16, 16, dtype=torch.float64)}, "type"),
        ({"x": torch.zeros(0, 32, 16, 16)}, "empty batch"),
        ({"weight": torch.zeros(32, 32, 5, 5)}, "kernel"),
        ({"weight": torch.zeros(8, 32, 3, 3)}, "few channels"),
    ],
)
def test_what_does_not_fit_goes_torchs_way(change: dict[str, object], why: str) -> None:
    usual = {
        "x": torch.zeros(1, 32, 16, 16),
        "weight": torch.zeros(32, 32, 3, 3),
        "stride": 1,
        "padding": 1,
        "dilation": 1,
        "groups": 1,
    }
    assert fits(**usual)[0]  # type: ignore[arg-type]
    assert not fits(**(usual | change))[0], why  # type: ignore[arg-type]


def test_the_native_side_refuses_arrays_that_do_not_belong_together() -> None:
    trainer = native().Trainer("baseline", 1)
    x, w = np.zeros((1, 8, 8, 16), np.float32), np.zeros((16, 3, 3, 16), np.float32)
    for wrong in (
        (x, w, 1, np.zeros((1, 6, 6, 16), np.float32)),
        (x, w[:, :, :2].copy(), 1, np.zeros_like(x)),
        (x, w, 3, np.zeros((1, 12, 12, 16), np.float32)),
        (x, w, -1, np.zeros((1, 4, 4, 16), np.float32)),
        (x[:0].copy(), w, 1, x[:0].copy()),
        (x[:, :2, :2].copy(), w, 0, np.zeros((1, 0, 0, 16), np.float32)),
    ):
        with pytest.raises((ValueError, TypeError)):
            trainer.forward(*wrong)
    for wrong_back in ((x, x[:, :7].copy(), w), (x, x, w[:8].copy()), (x[:, :7].copy(), x, w)):
        dy, dx, dw = wrong_back
        with pytest.raises(ValueError, match="wrong shape"):
            trainer.backward(x, w, 1, dy, dx, dw, True)
    with pytest.raises(ValueError, match="threads"):
        native().Trainer("baseline", 0)
