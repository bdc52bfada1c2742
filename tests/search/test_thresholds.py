"""fit_thresholds on shipped networks: the mean budget holds, also on other images, and the cap bounds all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.datasets import ImageArrays
from penstock.errors import DensityError, LayerError
from penstock.gating import gated_layers, winner_count


@pytest.fixture
def network() -> torch.nn.Module:
    return ps.zoo.pretrained("m_cifarnet-cifar10-d50")


@pytest.fixture(scope="module")
def halves() -> tuple[ImageArrays, ImageArrays]:
    whole = ps.datasets.sample()
    return whole.take(torch.arange(0, 400, 2)), whole.take(torch.arange(1, 400, 2))


def test_the_mean_share_is_the_density_and_images_differ(
    network: torch.nn.Module, halves: tuple[ImageArrays, ImageArrays]
) -> None:
    fitted, held = halves
    found = ps.fit_thresholds(network, fitted, density=0.5, cap=0.7)
    assert all(layer.threshold is None for _, layer in gated_layers(network))  # left alone
    assert found.images == len(fitted)
    assert list(found.shares.values()) == pytest.approx([0.5] * 8, rel=0.005)
    found.apply(network)
    x = network.preprocess(held.images)
    account = ps.account(network, x)
    for row in account.layers:
        if row.density is not None:
            assert row.density == 0.7
            assert row.active_out / row.out_channels == pytest.approx(0.5, rel=0.04)  # 200 images
    with torch.no_grad():
        network(x)
    counts = torch.stack([(layer.gains != 0).sum(1) for _, layer in gated_layers(network)], 1)
    caps = torch.tensor([winner_count(0.7, layer.conv.out_channels) for _, layer in gated_layers(network)])
    assert bool((counts <= caps).all())
    assert len(set(counts.sum(1).tolist())) > 20
    assert account.macs == pytest.approx(found.macs, rel=0.04)


def test_a_saving_is_met_by_scaling_the_densities(
    network: torch.nn.Module, halves: tuple[ImageArrays, ImageArrays]
) -> None:
    fitted, _ = halves
    found = ps.fit_thresholds(network, fitted, saving=3.0, images=100)
    assert found.saving == pytest.approx(3.0, rel=0.004)
    found.apply(network)
    account = ps.account(network, network.preprocess(fitted.images[::2]))
    assert account.saving == pytest.approx(found.saving, rel=0.03)
    assert found.most >= found.macs


def test_a_network_with_levels_keeps_the_one_that_serves_the_mean(
    halves: tuple[ImageArrays, ImageArrays],
) -> None:
    network = ps.zoo.pretrained("m_cifarnet-cifar10-any")
    ps.set_density(network, 0.3)
    shift = network.conv3.shift[network.conv3.level()].detach().clone()
    found = ps.fit_thresholds(network, halves[0], density=0.3, cap=1.0, images=40)
    found.apply(network)
    assert not network.conv3.levels
    assert torch.equal(network.conv3.shift, shift)
    assert network.conv3.density == 1.0


def test_a_layer_may_have_a_density_of_its_own_above_the_cap(
    network: torch.nn.Module, halves: tuple[ImageArrays, ImageArrays]
) -> None:
    found = ps.fit_thresholds(network, halves[0], density={"conv7": 0.9}, cap=0.6, images=40)
    assert found.densities["conv7"] == 0.9
    found.apply(network)
    assert network.conv7.density == 0.9
    assert network.conv6.density == 0.6


def test_bad_questions_are_refused(network: torch.nn.Module, halves: tuple[ImageArrays, ImageArrays]) -> None:
    few = halves[0]
    with pytest.raises(DensityError, match="give one of"):
        ps.fit_thresholds(network, few, density=0.5, saving=2.0)
    with pytest.raises(DensityError, match="cap"):
        ps.fit_thresholds(network, few, cap=0.0)
    with pytest.raises(DensityError, match="cannot be met"):
        ps.fit_thresholds(network, few, macs=1.0, images=4)
    with pytest.raises(LayerError, match="no gated layer"):
        ps.fit_thresholds(ps.zoo.m_cifarnet(), few)
    found = ps.fit_thresholds(network, few, images=8)
    other = ps.add_gates(ps.zoo.resnet18(classes=10), torch.zeros(1, 3, 32, 32))
    with pytest.raises(LayerError, match="these are others"):
        found.apply(other)


def test_thresholds_survive_saving_and_removal(
    network: torch.nn.Module, halves: tuple[ImageArrays, ImageArrays], tmp_path: object
) -> None:
    ps.fit_thresholds(network, halves[0], density=0.5, images=40).apply(network)
    x = network.preprocess(halves[1].images[:16])
    ps.save(network, f"{tmp_path}/net.safetensors")
    loaded = ps.load(f"{tmp_path}/net.safetensors")
    with torch.no_grad():
        wanted = network(x)
        assert torch.equal(loaded(x), wanted)
        small = ps.remove_unused(network, x)
        np.testing.assert_allclose(small(x), wanted, rtol=1e-4, atol=1e-4)
    assert [layer.threshold for _, layer in gated_layers(small)] == [
        layer.threshold for _, layer in gated_layers(network)
    ]
    ps.save(small, f"{tmp_path}/small.safetensors")
    with torch.no_grad():
        assert torch.equal(ps.load(f"{tmp_path}/small.safetensors")(x), small(x))
