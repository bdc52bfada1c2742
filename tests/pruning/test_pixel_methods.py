"""PerforatedCNN and LCCL: masks, neighbours and impacts against brute force; MACs from the masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pruning.colours import RECIPE, coloured
from tests.pruning.networks import Chain, images, randomised
from torch import Tensor, nn

from penstock.accounting import account
from penstock.errors import PruningError
from penstock.pruning import Budget, ChannelGating, LowCostLayers, Perforated, Plan, prune_in_stages
from penstock.pruning.lccl import CheapMap
from penstock.pruning.perforated import (
    RATES,
    PerforatedConv,
    grid_mask,
    measure_impacts,
    nearest_positions,
    top_mask,
)
from penstock.pruning.pixels import pixel_layers


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.floats(0.05, 1.0), st.integers(0, 99))
def test_every_pixel_copies_a_nearest_computed_one(height: int, width: int, rate: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    mask = top_mask(torch.rand(height, width, generator=draw), rate)
    assert int(mask.sum()) == max(1, round(rate * height * width))
    chosen = nearest_positions(mask, draw)
    computed = [(y, x) for y in range(height) for x in range(width) if mask[y, x]]
    for place, source in enumerate(chosen.tolist()):
        y, x = divmod(place, width)
        got = divmod(source, width)
        assert mask[got]
        apart = (got[0] - y) ** 2 + (got[1] - x) ** 2
        assert apart == min((a - y) ** 2 + (b - x) ** 2 for a, b in computed)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 16), st.integers(2, 16), st.sampled_from(RATES), st.integers(0, 99))
def test_a_grid_is_rows_times_columns_equally_spaced(height: int, width: int, rate: float, seed: int) -> None:
    mask = grid_mask(height, width, rate, torch.Generator().manual_seed(seed))
    rows, columns = mask.any(1), mask.any(0)
    assert torch.equal(mask, rows[:, None] & columns)
    for used, size in ((rows, height), (columns, width)):
        places = used.nonzero().flatten().diff()
        assert len(places) == 0 or int(places.max() - places.min()) <= 1
        assert int(used.sum()) == max(1, round(size * rate**0.5))


def perforated(saving: float = 2.0, masks: str = "impact") -> tuple[nn.Module, nn.Module]:
    network, data = randomised(Chain()), images(12)
    found = Perforated(masks=masks).prune(network, data.images[:1], Budget(saving=saving), data)  # type: ignore[arg-type]
    return network, found.network


def test_an_impact_is_the_first_order_cost_of_a_position() -> None:
    twin, made = perforated(1.0)
    data = images(5)
    layers = [layer for _, layer in pixel_layers(made) if isinstance(layer, PerforatedConv)]
    impacts = measure_impacts(made, layers, data)
    v = twin.conv1(data.images).detach().requires_grad_(True)
    x = torch.relu(twin.norm2(twin.conv2(torch.relu(twin.norm1(v)))))
    logits = twin.fc(torch.relu(twin.norm3(twin.conv3(x))).mean((2, 3)))
    F.cross_entropy(logits, data.labels, reduction="sum").backward()
    wanted = np.zeros(v.shape[2:])
    for image in range(5):
        for channel in range(6):
            wanted += np.abs(v[image, channel].detach().numpy() * v.grad[image, channel].numpy()) / 5
    np.testing.assert_allclose(impacts[0].numpy(), wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("masks", ["impact", "grid", "uniform"])
def test_perforation_meets_the_budget_and_counts_its_pixels(masks: str) -> None:
    network, made = perforated(1.7, masks)
    x = images(3).images
    found = Perforated(masks=masks).prune(network, x[:1], Budget(saving=1.7), images(12))  # type: ignore[arg-type]
    cost = found.cost(found.network, x)
    assert cost.dense == account(network, x[:1], "paper").macs
    spared = 0.0
    for _, layer in pixel_layers(found.network):
        spared += layer.dense_macs * (1 - float(layer.mask.double().mean()))
    assert cost.executed == cost.authors == pytest.approx(cost.dense - spared)
    assert cost.saving >= 1.7
    assert "conv3" in found.left_alone
    with torch.no_grad():
        y, z = made.conv1(x), network.conv1(x)
    mask = made.conv1.mask
    assert torch.equal(y[:, :, mask], z[:, :, mask])


def test_perforations_greedy_step_is_the_one_that_trying_all_finds() -> None:
    network, data = randomised(Chain((6, 8, 5))), images(24)
    found = Perforated(masks="impact", images=24).prune(network, data.images[:1], Budget(saving=1.01), data)
    (changed,) = [
        name for name, one in pixel_layers(found.network) if not bool(one.mask.all())
    ]  # so small a budget takes one step
    # Independently: for each layer, mask the least of Σ|V ∂L/∂V|, copy neighbours, and look at the loss.
    ratios = {}
    for name in ("conv1", "conv2"):
        v: list[Tensor] = []
        hook = network.get_submodule(name).register_forward_hook(lambda _, __, out, v=v: v.append(out))
        for one in network.parameters():
            one.requires_grad_(True)
        loss = F.cross_entropy(network(data.images), data.labels, reduction="sum")
        (slope,) = torch.autograd.grad(loss, v[0])
        hook.remove()
        impact = (v[0] * slope).abs().sum((0, 1)).detach().numpy()
        size = impact.shape
        count = round(impact.size / 1.5)
        kept = np.zeros(impact.size, bool)
        kept[np.argsort(-impact.ravel(), kind="stable")[:count]] = True
        ys, xs = np.divmod(np.arange(impact.size), size[1])
        apart = (ys[:, None] - ys[kept]) ** 2 + (xs[:, None] - xs[kept]) ** 2
        copies = torch.from_numpy(np.flatnonzero(kept)[apart.argmin(1)])

        def perforate(_: nn.Module, __: object, out: Tensor, copies: Tensor = copies) -> Tensor:
            return out.flatten(2)[:, :, copies].view_as(out)

        hook = network.get_submodule(name).register_forward_hook(perforate)
        with torch.no_grad():
            after = F.cross_entropy(network(data.images), data.labels, reduction="sum")
        hook.remove()
        layer = network.get_submodule(name)
        saved = layer.weight.numel() * (impact.size - count)
        ratios[name] = float(after - loss.detach()) / saved
        made = found.network.get_submodule(name)
        assert name != changed or np.array_equal(made.mask.numpy().ravel(), kept)
    # Neighbours at equal distance are drawn by lot, so losses differ a little; the choice must be clear.
    best, other = sorted(ratios.values())
    assert abs(best - other) < 0.1 * abs(other) or ratios[changed] == best


def test_a_perforated_layer_says_which_size_it_was_made_for() -> None:
    _, made = perforated()
    with pytest.raises(PruningError, match=r"maps of \(10, 10\), got \(12, 12\)"):
        made(torch.randn(1, 3, 14, 14))


def test_a_low_cost_layer_begins_as_the_convolution_and_skips_where_its_map_is_zero() -> None:
    network, x = randomised(Chain()), images(4).images
    found = LowCostLayers().prune(network, x[:1], Budget(saving=1.3))
    torch.testing.assert_close(found.network(x), network(x))
    assert (
        found.cost(found.network, x).saving < 1
    )  # nothing is skipped yet, and the cheap maps cost something
    found = LowCostLayers(native=True).prune(network, x[:1], Budget(saving=1.3))
    assert set(found.left_alone) == {"conv1", "fc"}
    layer = found.network.get_submodule("conv2")
    assert isinstance(layer, CheapMap)
    assert layer.cheap.kernel_size == (1, 1)
    layer.eval()
    layer.norm.running_var.fill_(1.0)
    layer.threshold.fill_(1.0)
    layer.level.fill_(0.5)
    features = torch.randn(4, 6, 10, 10)
    out = layer(features)
    m = torch.relu(layer.norm(layer.cheap(features)) - 1.0) / 0.5
    torch.testing.assert_close(out, network.conv2(features) * m)
    off = (m == 0).expand_as(out)
    assert off.any()
    assert not out[off].any()
    share = (m != 0).double().mean((1, 2, 3))
    torch.testing.assert_close(layer.work.authors, share * layer.dense_macs + 6 * 25)
    layer.threshold.fill_(0.0)
    layer.level.fill_(1.0)
    layer.norm.weight.data.zero_()
    torch.testing.assert_close(layer(features), network.conv2(features))


def test_the_threshold_follows_the_budget() -> None:
    network, x = randomised(Chain()), images(64).images
    method = LowCostLayers(anneal=0.5)
    found = method.prune(network, x[:1], Budget(saving=1.4))
    method.after_step(found.network, 0.5)
    found.network.train()
    with torch.no_grad():
        for _ in range(60):
            found.network(x)
    assert found.cost(found.network, x).saving == pytest.approx(1.4, rel=0.12)
    assert float(found.network.get_submodule("conv2").effect) == 1.0
    for _, layer in pixel_layers(found.network):
        layer.threshold.zero_()
    method.settle(found.network, images(64), Budget(saving=1.4))
    assert found.cost(found.network, x).saving == pytest.approx(1.4, rel=0.01)
    layer = found.network.get_submodule("conv2")
    with torch.no_grad():
        features = randomised(Chain()).conv1(x)
        m = layer.eval()(features) / layer.conv(features)
    assert 0.5 < float(m[m > 0].mean()) < 2  # so the layer's output stays as large as it was
    with pytest.raises(PruningError, match=r"saving 100: .* is the most that can be had"):
        method.prune(network, x[:1], Budget(saving=100))


@pytest.mark.parametrize("method", [Perforated(images=12), LowCostLayers(), ChannelGating(parts=2)])
def test_pixel_methods_train_and_go_on_where_they_stopped(
    method: Perforated | LowCostLayers | ChannelGating, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network, plan = Chain((8, 8, 8)), Plan(Budget(saving=1.2), finetune=RECIPE)
    outcome = prune_in_stages(network, method, coloured(), coloured(12), plan, out=tmp_path)
    assert outcome.skipping is not None
    assert outcome.skipping.kind == "pixels"
    again = prune_in_stages(network, method, coloured(), coloured(12), plan, out=tmp_path).network
    for name, tensor in outcome.network.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_what_skips_takes_one_round_and_no_gates_on_top() -> None:
    plan = Plan(Budget(saving=1.2), rounds=2)
    with pytest.raises(PruningError, match="lccl removes nothing for good"):
        prune_in_stages(Chain((8, 8, 8)), LowCostLayers(), coloured(), None, plan)
