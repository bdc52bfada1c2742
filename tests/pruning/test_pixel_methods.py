"""The pixel methods: masks, neighbours, impacts and gradients against brute force; MACs from the masks."""

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
from penstock.pruning.channel_gating import GatedSums, step
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
    layer.size.fill_(0.5)
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
    layer.size.fill_(1.0)
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


def test_the_gates_slope_is_that_of_a_sigmoid() -> None:
    z = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    step(z).sum().backward()
    small = 1e-6
    with torch.no_grad():
        slope = (torch.sigmoid(2 * (z + small)) - torch.sigmoid(2 * (z - small))) / (2 * small)
    torch.testing.assert_close(z.grad, slope, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(step(z.detach()), (z.detach() > 0).double())
    z.grad = None
    step(z, True).sum().backward()
    torch.testing.assert_close(z.grad, slope * (z.detach() > 0), rtol=1e-5, atol=1e-7)


def gated_sums() -> tuple[GatedSums, nn.Conv2d, Tensor]:
    torch.manual_seed(0)
    network = Chain((8, 8, 8)).double().eval()
    found = ChannelGating(parts=4).prune(network, torch.randn(1, 3, 12, 12).double(), Budget(saving=1.3))
    assert "conv1" in found.left_alone
    layer = found.network.get_submodule("conv2")
    assert isinstance(layer, GatedSums)
    layer.delta.data.zero_()
    return layer.eval(), network.conv2, torch.randn(2, 8, 10, 10).double()


def test_channel_gating_adds_the_rest_where_the_base_is_above_its_threshold() -> None:
    layer, conv, x = gated_sums()
    with torch.no_grad():
        out = layer(x)
        whole = conv(x)
        masked = torch.zeros_like(conv.weight)
        for group in range(4):
            own = slice(2 * group, 2 * group + 2)
            masked[own, own] = conv.weight[own, own]
        base = F.conv2d(x, masked, conv.bias, 2, 1)
    gate = base / (1 + layer.norm.eps) ** 0.5 > 0
    torch.testing.assert_close(out, torch.where(gate, whole, base))
    density = gate.double().mean((1, 2, 3))
    torch.testing.assert_close(layer.work.authors, layer.dense_macs * (0.25 + 0.75 * density))
    flat = gate.flatten(2).numpy()
    vectors = [
        [[flat[i, c, at : at + 8].any() for at in range(0, 25, 8)] for c in range(8)] for i in range(2)
    ]
    share = np.asarray(vectors).mean((1, 2))
    np.testing.assert_allclose(layer.work.executed.numpy(), layer.dense_macs * (0.25 + 0.75 * share))


def test_channel_gatings_gradient_is_that_of_finite_differences() -> None:
    layer, conv, x = gated_sums()
    aim = torch.randn(2, 8, 5, 5).double()
    (layer(x) * aim).sum().backward()
    with torch.no_grad():
        base = F.conv2d(x, layer.base_weight(), conv.bias, 2, 1, groups=4)
        whole, z = conv(x), layer.norm(base)
        hard = (z > layer.delta[:, None, None]).double()

        def value(delta: Tensor) -> float:
            # The layer's value plus how a sigmoid in the step's place would change it.
            moved = torch.sigmoid(2 * (z - delta[:, None, None])) - torch.sigmoid(
                2 * (z - layer.delta[:, None, None])
            )
            return float(((base + (hard + moved) * (whole - base)) * aim).sum())

        for channel in range(8):
            up, down = layer.delta.clone(), layer.delta.clone()
            up[channel] += 1e-5
            down[channel] -= 1e-5
            slope = (value(up) - value(down)) / 2e-5
            assert float(layer.delta.grad[channel]) == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_channel_gatings_loss_pulls_thresholds_to_their_target_and_its_saving_is_bounded() -> None:
    network, x = Chain((8, 8, 8)), torch.randn(1, 3, 12, 12)
    method = ChannelGating(parts=4)
    made = method.prune(network, x, Budget(saving=1.3)).network
    method.after_step(made, 1.0)
    layers = [layer for _, layer in pixel_layers(made) if isinstance(layer, GatedSums)]
    for layer in layers:
        layer.delta.data += torch.linspace(-1, 1, 8)
    wanted = sum((layer.delta - layer.goal).square().sum().item() for layer in layers)
    pulled = method.batch_loss(made, torch.zeros(1), torch.zeros(1))
    assert pulled is not None
    assert pulled.item() == pytest.approx(1e-4 * wanted, rel=1e-4)
    with pytest.raises(PruningError, match="is the most that can be had"):
        method.prune(network, x, Budget(saving=5.0))
    with pytest.raises(PruningError, match="conv1: its channels do not divide into 7 parts"):
        ChannelGating(parts=7).prune(network, x, Budget(saving=1.3))


def test_channel_gating_settles_at_the_density_that_the_budget_asks_for() -> None:
    network, data = randomised(Chain((8, 8, 8))), images(64)
    method = ChannelGating(parts=4)
    found = method.prune(network, data.images[:1], Budget(saving=1.35))
    assert found.cost(found.network, data.images).saving < 1.3
    method.settle(found.network, data, Budget(saving=1.35))
    assert found.cost(found.network, data.images).saving == pytest.approx(1.35, rel=0.01)


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
