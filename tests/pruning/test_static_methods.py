"""Every static method: removing is masking, the budget is met, and bad input is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.pruning.networks import NETWORKS, Chain, images, masked_twin, randomised
from torch import nn

from penstock.accounting import account
from penstock.errors import PruningError
from penstock.pruning import (
    AutoMl,
    Budget,
    ChannelPruning,
    DiscriminationAware,
    FilterPruning,
    FromScratch,
    NetworkSlimming,
    Pruned,
    RandomChannels,
    SoftFilterPruning,
    ThiNet,
    make_method,
)
from penstock.pruning.looking import measure_norms
from penstock.zoo import m_cifarnet, resnet18

METHODS: dict[str, Callable[[], Any]] = {
    "ns": NetworkSlimming,
    "l1": FilterPruning,
    "l1 normalised": lambda: FilterPruning(normalised=True),
    "sfp": SoftFilterPruning,
    "fpgm": lambda: SoftFilterPruning("median"),
    "random": RandomChannels,
    "thinet": lambda: ThiNet(positions=1),
    "cp": lambda: ChannelPruning(positions=9, rows=12),
    "dcp": lambda: DiscriminationAware(head_steps=1, portion=0.5, batches=1, batch_size=8),
    "amc": lambda: AutoMl(images=110, held_out=4, positions=20, episodes=2, warmup=1, lowest=0.1),
}
PAIRS = [(name, place) for name in METHODS for place in NETWORKS]
# Two methods that cut tied channels too, and one that fits weights anew, on every network; all on one.
QUICK = [(name, place) for name, place in PAIRS if place == "m_cifarnet" or name in ("ns", "sfp", "thinet")]


@pytest.mark.parametrize(("name", "place"), QUICK)
def test_the_cut_network_equals_the_masked_one(name: str, place: str) -> None:
    make, size = NETWORKS[place]
    torch.manual_seed(0)
    network = randomised(make())
    method = METHODS[name]()
    count = 270 if "mobilenet" in place else 110  # it ends in a layer of 1,280 channels
    data = images(count if hasattr(method, "images") else 4, size)
    budget = Budget(ratio=0.8)  # few weights to fit, so that few rows do
    given = (data,) if hasattr(method, "images") else ()
    cut = method.prune(network, data.images[:1], budget, *given)
    assert_equals_masked(network, cut, size)


def assert_equals_masked(network: nn.Module, cut: Pruned, size: int) -> None:
    x = images(4, size, seed=9).images
    twin = masked_twin(network, cut, x[:1])
    with torch.no_grad():
        wanted, got = twin(x), cut.network(x)
    scale = float(wanted.abs().max())
    torch.testing.assert_close(got / scale, wanted / scale, rtol=1e-4, atol=1e-4)
    assert not torch.equal(network(x), wanted)
    assert cut.macs_after == account(cut.network, x[:1], "paper").macs < cut.macs_before
    assert cut.channels_after < cut.channels_before


@pytest.mark.soak
@pytest.mark.parametrize(("name", "place"), [pair for pair in PAIRS if pair not in QUICK])
def test_the_cut_network_equals_the_masked_one_for_every_method(name: str, place: str) -> None:
    test_the_cut_network_equals_the_masked_one(name, place)


@pytest.mark.parametrize("saving", [1.0, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("make", [FilterPruning, SoftFilterPruning, RandomChannels, FromScratch])
def test_a_saving_is_met_by_one_share_for_all_layers(make: Callable[[], Any], saving: float) -> None:
    cut = make().prune(randomised(m_cifarnet()), torch.randn(1, 3, 32, 32), Budget(saving=saving))
    assert saving <= cut.saving < 1.06 * saving
    shares = [layer.channels_after / layer.channels_before for layer in cut.layers[:-1]]
    assert max(shares) - min(shares) <= 1 / 64


def test_only_soft_filter_pruning_removes_channels_of_a_sum() -> None:
    network, x = randomised(resnet18(classes=10)), torch.randn(1, 3, 32, 32)
    inner = FilterPruning().prune(network, x, Budget(ratio=0.5))
    widths = {layer.layer: layer.channels_after for layer in inner.layers}
    assert widths["conv1"] == widths["layer1.0.conv2"] == 64
    assert widths["layer1.0.conv1"] == 32
    assert "in a sum" in inner.left_alone["conv1"]
    whole = SoftFilterPruning().prune(network, x, Budget(ratio=0.5))
    widths = {layer.layer: layer.channels_after for layer in whole.layers}
    assert widths["conv1"] == widths["layer1.0.conv2"] == widths["layer1.0.conv1"] == 32


def test_a_budget_that_cannot_be_met_names_the_nearest_that_can() -> None:
    network, x = randomised(resnet18(classes=10)), torch.randn(1, 3, 32, 32)
    with pytest.raises(
        PruningError, match=r"saving 1000: .* (\d+\.\d+) is the most that can be had"
    ) as error:
        FilterPruning().prune(network, x, Budget(saving=1000))
    most = float(str(error.value).split(" is the most")[0].split()[-1])
    assert FilterPruning().prune(network, x, Budget(saving=most - 0.01)).saving >= most - 0.01
    with pytest.raises(PruningError, match=r"ratio 0\.999 would remove a whole layer"):
        FilterPruning().prune(network, x, Budget(ratio=0.999))


def test_too_few_images_are_refused_by_the_methods_that_look_at_them() -> None:
    network, x = randomised(Chain()), torch.randn(1, 3, 12, 12)
    with pytest.raises(PruningError, match="thinet decides by looking at images: expected at least 1, got 0"):
        ThiNet().prune(network, x, Budget(ratio=0.5))
    with pytest.raises(PruningError, match=r"layer 'conv2': 4 sampled rows cannot fit 27 weights .* 7 times"):
        ChannelPruning(positions=2).prune(network, x, Budget(ratio=0.5), images(2))


def test_a_network_without_the_layers_a_method_needs_is_refused() -> None:
    bare = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 100, 10))
    for make in METHODS.values():
        method = make()
        given = (images(16),) if hasattr(method, "images") else ()
        with pytest.raises(PruningError, match="0: no batch norm"):
            method.prune(bare, torch.randn(1, 3, 12, 12), Budget(ratio=0.4), *given)


def test_a_broken_weight_is_named() -> None:
    network = randomised(Chain())
    network.conv2.weight.data[0, 0, 0, 0] = torch.nan
    with pytest.raises(PruningError, match="'conv2'"):
        FilterPruning().prune(network, torch.randn(1, 3, 12, 12), Budget(ratio=0.4))


def test_the_same_widths_from_scratch_have_new_weights_and_the_widths_asked_for() -> None:
    network, x = randomised(m_cifarnet()), torch.randn(2, 3, 32, 32)
    model = SoftFilterPruning().prune(network, x, Budget(ratio=0.4))
    widths = {layer.layer: layer.channels_after for layer in model.layers}
    fresh = FromScratch(seed=3, widths=widths).prune(network, x, Budget(saving=1.0))
    assert [layer.channels_after for layer in fresh.layers] == [
        layer.channels_after for layer in model.layers
    ]
    kept = list(fresh.layers[0].kept)
    assert not torch.equal(fresh.network.get_submodule("conv0").weight, network.conv0.weight[kept])
    assert torch.equal(fresh.network.get_submodule("norm0").weight, torch.ones(len(kept)))
    again = FromScratch(seed=3, widths=widths).prune(network, x, Budget(saving=1.0))
    assert torch.equal(fresh.network(x), again.network(x))
    with pytest.raises(PruningError, match="'conv3' has 1 to 128"):
        FromScratch(widths={"conv3": 129}).prune(network, x, Budget(saving=1.0))


def test_settings_are_read_by_the_type_of_their_field() -> None:
    assert make_method("filter-pruning", {"normalised": "true"}) == FilterPruning(normalised=True)
    assert make_method("thinet", {"images": "64"}) == ThiNet(images=64)
    assert make_method("fpgm").name == "fpgm"
    with pytest.raises(PruningError, match="there is no method 'magic'; there are: network-slimming"):
        make_method("magic")
    with pytest.raises(PruningError, match="thinet has no setting 'colour'; it has: images, positions, seed"):
        make_method("thinet", {"colour": "red"})
    with pytest.raises(PruningError, match="fpgm has no setting 'criterion'"):
        make_method("fpgm", {"criterion": "norm"})
    with pytest.raises(PruningError, match="images takes a int such as 2000, got 'many'"):
        make_method("thinet", {"images": "many"})


def test_measured_norms_are_the_moments_of_what_they_see() -> None:
    network, data = Chain(), images(32)
    measure_norms(network, data.images, batch=32)
    seen = network.conv1(data.images)
    torch.testing.assert_close(network.norm1.running_mean, seen.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network.norm1.running_var, seen.var((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert network.training
    assert network.norm1.momentum == 0.1
