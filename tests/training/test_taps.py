"""Convolutions tap by tap against torch's own in double precision, and where they are chosen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.test_winograd import draw, relative

from penstock.training.fast_layers import FastLayers
from penstock.training.taps import conv3x3_by_taps, products
from penstock.training.winograd import taps_fit

_SHAPES = st.tuples(
    st.integers(1, 3),  # images
    st.integers(1, 9),  # in
    st.integers(1, 9),  # out
    st.integers(1, 9),  # height
    st.integers(1, 9),  # width
    st.integers(1, 3),  # stride
    st.integers(1, 2),  # padding
    st.integers(0, 2**16),  # seed
)


@settings(max_examples=80, deadline=None)
@given(shape=_SHAPES)
def test_forward_and_both_gradients_are_those_of_torch(shape: tuple[int, ...]) -> None:
    n, c, k, h, w, stride, padding, seed = shape
    generator = torch.Generator().manual_seed(seed)
    x = draw((n, c, h, w), generator).requires_grad_()
    weight = draw((k, c, 3, 3), generator).requires_grad_()
    y = F.conv2d(x, weight, stride=stride, padding=padding)
    gradient = draw(tuple(y.shape), generator)
    wanted = (y, *torch.autograd.grad(y, (x, weight), gradient))
    mine = conv3x3_by_taps(x, weight, stride, padding)
    found = (mine, *torch.autograd.grad(mine, (x, weight), gradient))
    for name, ours, theirs in zip(("y", "dx", "dw"), found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).detach().abs().max()) < 1e-11, (name, shape)


def test_a_frozen_input_gets_no_gradient_and_the_filters_theirs() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = draw((2, 3, 3, 3), generator), draw((4, 3, 3, 3), generator).requires_grad_()
    (found,) = torch.autograd.grad(conv3x3_by_taps(x, weight).square().sum(), weight)
    (wanted,) = torch.autograd.grad(F.conv2d(x, weight, padding=1).square().sum(), weight)
    assert relative(found, wanted) < 1e-12


def test_products_outside_the_image_are_not_counted() -> None:
    assert products(3, 3, 1, 1) == 49
    assert products(2, 2, 1, 1) == 16
    assert products(1, 1, 1, 1) == 1
    assert products(4, 4, 1, 0) == 36
    assert products(4, 4, 2, 1) == 25


@pytest.mark.parametrize(
    ("side", "stride", "chosen"),
    [(2, 1, True), (3, 1, True), (4, 1, False), (8, 1, False), (8, 2, True), (16, 2, False), (3, 3, False)],
)
def test_small_maps_go_tap_by_tap_and_others_do_not(side: int, stride: int, chosen: bool) -> None:
    x, weight = torch.zeros(1, 32, side, side), torch.zeros(32, 32, 3, 3)
    assert taps_fit(x, weight, stride, 1, 1, 1) is chosen
    assert not taps_fit(x.double(), weight.double(), stride, 1, 1, 1)
    assert not taps_fit(x, weight, stride, 1, 2, 1)


def test_inside_the_context_small_maps_give_torchs_results_with_a_bias() -> None:
    layer = torch.nn.Conv2d(32, 16, 3, stride=2, padding=1)
    x = torch.randn(2, 32, 6, 6)
    with FastLayers(layer):
        y = layer(x)
    assert "_Convolution" in str(y.grad_fn.next_functions[0][0])  # type: ignore[union-attr]
    assert relative(y, layer(x)) < 1e-5
