"""The images that excite a channel are the ones that were built to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from penstock.datasets import ImageArrays
from penstock.errors import LayerError
from penstock.reporting import channel_maxima

from .networks import TwoLayers, coloured, halves


def test_the_maximum_of_a_channel_is_the_brightest_pixel_of_its_colour() -> None:
    data = coloured()
    maxima = channel_maxima(TwoLayers(), data, "first")
    expected = data.images.amax(dim=(2, 3)).numpy() / 255
    assert np.allclose(maxima.values, expected)


def test_the_most_and_least_exciting_images_are_in_order_of_brightness() -> None:
    data = coloured(4)
    maxima = channel_maxima(TwoLayers(), data, "first")
    green = (data.labels == 1).nonzero()[:, 0].tolist()
    assert maxima.most(1, 4).tolist() == green
    assert maxima.least(1, 2).tolist() == [0, 2]  # images without any green, ties to the lower index


def test_a_single_bright_pixel_is_found() -> None:
    images = torch.zeros(5, 3, 4, 4, dtype=torch.uint8)
    images[3, 2, 1, 2] = 200
    data = ImageArrays(images, torch.zeros(5, dtype=torch.int64), ("any",), "dots")
    maxima = channel_maxima(TwoLayers(), data, "first")
    assert maxima.most(2, 1).tolist() == [3]
    assert maxima.values[3, 2] == pytest.approx(200 / 255)
    assert maxima.most_varied(1) == [2]


def test_values_are_taken_before_the_activation() -> None:
    network = TwoLayers()
    with torch.no_grad():
        network.first.shift.fill_(-2.0)
    maxima = channel_maxima(network, coloured(), "first")
    assert maxima.values.max() == pytest.approx(-1.0)


def test_density_one_shows_channels_that_the_gate_skips_and_is_put_back() -> None:
    network = TwoLayers()
    skipping = channel_maxima(network, coloured(), "second")
    everything = channel_maxima(network, coloured(), "second", density=1.0)
    assert (skipping.values[:, 2] == 0).all()
    assert (everything.values[:, 2] > 0).all()
    assert network.second.density == 0.5


def test_a_plain_layer_gives_what_it_returns() -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(inplace=True))
    data = coloured()
    maxima = channel_maxima(network, data, "0", preprocess=halves)
    with torch.no_grad():
        expected = network[0](halves(data.images)).amax(dim=(2, 3)).numpy()
    assert np.allclose(maxima.values, expected)


def test_an_unknown_layer_is_an_error_that_lists_the_layers() -> None:
    with pytest.raises(LayerError, match=r"'third'.*first.*second"):
        channel_maxima(TwoLayers(), coloured(), "third")


def test_an_unknown_channel_is_an_error_that_says_which_there_are() -> None:
    maxima = channel_maxima(TwoLayers(), coloured(), "first")
    with pytest.raises(LayerError, match="0 to 2, not 3"):
        maxima.most(3)
