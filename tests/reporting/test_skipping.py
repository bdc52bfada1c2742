"""Heat maps are right where the answer is known by construction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from penstock.datasets import ImageArrays
from penstock.errors import DataError, LayerError
from penstock.gating import GatedConv2d, set_density
from penstock.reporting import SkipMap, skip_maps

from .networks import SKIPPED, TwoLayers, coloured


def test_each_class_skips_exactly_the_channels_it_was_built_to_skip() -> None:
    first, second = skip_maps(TwoLayers(), coloured())
    assert (first.layer, second.layer) == ("first", "second")
    assert np.array_equal(first.probability, np.zeros((3, 3)))
    assert np.array_equal(second.probability, SKIPPED.numpy())
    assert second.never_used.tolist() == [False, False, True, False]
    assert second.remaining == 3
    assert second.computed == 2.0


def test_channels_are_ordered_by_how_often_they_are_evaluated_least_first() -> None:
    skipped = np.array([[4, 0, 2, 4], [4, 1, 0, 3]])
    one = SkipMap("x", skipped, np.array([4, 4]))
    assert one.order.tolist() == [0, 3, 2, 1]
    assert one.never_used.tolist() == [True, False, False, False]


def test_a_share_of_a_class_shows_as_that_probability() -> None:
    data = coloured(4)
    # One of the four red images turns green without changing its label.
    images = data.images.clone()
    images[0] = images[0].roll(1, dims=0)
    _, second = skip_maps(TwoLayers(), ImageArrays(images, data.labels, data.classes, "mixed"))
    assert second.probability[0].tolist() == [0.25, 0.75, 1.0, 0.0]


def test_a_class_without_images_has_no_probability() -> None:
    data = coloured()
    fewer = data.take((data.labels != 1).nonzero()[:, 0])
    _, second = skip_maps(TwoLayers(), fewer)
    assert np.isnan(second.probability[1]).all()
    assert second.never_used.tolist() == [False, False, True, False]


@given(batch_size=st.integers(1, 13))
@settings(max_examples=6)
def test_the_batch_size_changes_nothing(batch_size: int) -> None:
    whole = skip_maps(TwoLayers(), coloured())
    parts = skip_maps(TwoLayers(), coloured(), batch_size=batch_size)
    assert all(np.array_equal(a.skipped, b.skipped) for a, b in zip(whole, parts, strict=True))


@given(density=st.floats(0.05, 1.0), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_every_image_computes_the_winner_count(density: float, seed: int) -> None:
    torch.manual_seed(seed)
    layer = GatedConv2d(nn.Conv2d(3, 7, 3, bias=False), activation=nn.ReLU())
    layer.gate.bias.data.fill_(9.0)  # no saliency is zero, so winners only
    network = nn.Sequential(layer)
    set_density(network, density)
    (one,) = skip_maps(network, coloured())
    assert one.computed == int(layer.winners)


def test_looking_leaves_the_network_as_it_was() -> None:
    network = TwoLayers().train()
    network.first.norm.eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    skip_maps(network, coloured())
    assert network.training
    assert network.second.conv.training
    assert not network.first.norm.training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_a_network_without_gates_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(LayerError, match="add_gates"):
        skip_maps(nn.Sequential(nn.Conv2d(3, 4, 1)), coloured())


def test_no_images_is_an_error_that_names_the_data() -> None:
    with pytest.raises(DataError, match="coloured"):
        skip_maps(TwoLayers(), coloured(0))
