"""Each static method's criterion on a small case that numpy, or trying everything, solves independently."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pruning.networks import Chain, images, randomised
from torch import nn

from penstock.pruning import (
    Budget,
    ChannelPruning,
    FilterPruning,
    RandomChannels,
    SoftFilterPruning,
    ThiNet,
    sensitivity,
)
from penstock.pruning.channel_pruning import choose, lasso
from penstock.pruning.looking import accuracy, sample_rows
from penstock.pruning.refit import refit_layer
from penstock.pruning.thinet import discard


def kept_of(network: nn.Module, method: FilterPruning | SoftFilterPruning, layer: str) -> tuple[int, ...]:
    cut = method.prune(network, torch.randn(1, 3, 12, 12), Budget(ratio=0.5))
    return next(one.kept for one in cut.layers if one.layer == layer)


def largest(scores: np.ndarray, count: int) -> tuple[int, ...]:
    return tuple(sorted(np.argsort(-scores, kind="stable")[:count].tolist()))


def test_filter_pruning_keeps_the_filters_of_largest_absolute_sum() -> None:
    network = randomised(Chain())
    weight = network.conv2.weight.detach().numpy()
    sums = np.array([np.abs(w).sum() for w in weight])
    assert kept_of(network, FilterPruning(), "conv2") == largest(sums, 4)
    norm = network.norm2
    gain = norm.weight.detach().numpy() / np.sqrt(norm.running_var.numpy() + norm.eps)
    assert kept_of(network, FilterPruning(normalised=True), "conv2") == largest(sums * np.abs(gain), 4)


def test_soft_filter_pruning_goes_by_the_euclidean_norm_and_fpgm_by_the_distances_to_all_others() -> None:
    network = randomised(Chain(), seed=4)
    rows = network.conv2.weight.detach().double().numpy().reshape(8, -1)
    norms = np.array([np.sqrt((row**2).sum()) for row in rows])
    assert kept_of(network, SoftFilterPruning(), "conv2") == largest(norms, 4)
    apart = np.array([sum(np.sqrt(((row - other) ** 2).sum()) for other in rows) for row in rows])
    assert kept_of(network, SoftFilterPruning("median"), "conv2") == largest(apart, 4)


def test_the_soft_zeros_are_set_in_the_weights_and_nowhere_else() -> None:
    network = randomised(Chain())
    method = SoftFilterPruning()
    kept = kept_of(network, method, "conv2")
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    hook = method.epoch_hook(network, torch.randn(1, 3, 12, 12), Budget(ratio=0.5))
    hook(network, 0.0)
    for channel in range(8):
        zero = not network.conv2.weight[channel].any()
        assert zero == (channel not in kept)
    for name, tensor in network.state_dict().items():
        if not name.endswith("conv1.weight") and name not in ("conv2.weight", "conv3.weight"):
            assert torch.equal(tensor, before[name]), name
    network.conv2.weight.data = before["conv2.weight"].flip(0)  # as if training had turned the ranking round
    hook(network, 0.5)
    assert [bool(network.conv2.weight[channel].any()) for channel in range(8)] == [
        7 - channel in kept for channel in range(8)
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 9), st.integers(1, 12), st.integers(0, 1000))
def test_thinets_greedy_choice_is_that_of_explicit_sums(channels: int, rows: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(rows, channels))
    chosen: list[int] = []
    for _ in range(channels - 1):
        costs = {
            j: float(np.square(x[:, [*chosen, j]].sum(1)).sum()) for j in range(channels) if j not in chosen
        }
        chosen.append(min(costs, key=lambda j: costs[j]))
    columns = torch.from_numpy(x)
    assert discard(columns.T @ columns, channels - 1) == chosen


def test_thinet_looks_at_what_each_channel_adds_to_the_next_layer_and_scales_what_stays() -> None:
    network, data = randomised(Chain()), images(300)
    method = ThiNet(positions=8)
    cut = method.prune(network, data.images[:1], Budget(ratio=0.5), data)
    kept = list(cut.layers[0].kept)
    # What conv2 makes of one channel of its input alone, everywhere: the sampled rows estimate these sums.
    with torch.no_grad():
        x = torch.relu(network.norm1(network.conv1(data.images)))
        parts = torch.stack(
            [
                F.conv2d(x[:, j : j + 1], network.conv2.weight[:, j : j + 1], None, 2, 1).flatten()
                for j in range(6)
            ],
            dim=1,
        ).numpy()
    gone: list[int] = []
    for _ in range(3):
        costs = {j: float(np.square(parts[:, [*gone, j]].sum(1)).sum()) for j in range(6) if j not in gone}
        gone.append(min(costs, key=lambda j: costs[j]))
    assert kept == sorted(set(range(6)) - set(gone))
    wanted, *_ = np.linalg.lstsq(parts[:, kept], parts.sum(1), rcond=None)
    small = cut.network.get_submodule("conv2").weight.detach()
    outputs = list(cut.layers[1].kept)
    scales = (small / network.conv2.weight.detach()[outputs][:, kept]).mean((0, 2, 3)).numpy()
    np.testing.assert_allclose(scales, wanted, rtol=0.1)


def ista(gram: np.ndarray, moment: np.ndarray, penalty: float) -> np.ndarray:
    """The LASSO by proximal gradient steps, another algorithm than the one under test."""
    step, beta = 1 / np.linalg.eigvalsh(gram)[-1], np.zeros(len(moment))
    for _ in range(20000):
        moved = beta - step * (gram @ beta - moment)
        beta = np.sign(moved) * np.maximum(np.abs(moved) - step * penalty, 0)
    return beta


@settings(max_examples=6, deadline=None)
@given(st.integers(2, 7), st.integers(0, 1000), st.sampled_from([0.001, 0.05, 0.3, 0.9]))
def test_the_lasso_path_is_that_of_proximal_gradients(channels: int, seed: int, share: float) -> None:
    draw = np.random.default_rng(seed)
    z, y = draw.normal(size=(40, channels)), draw.normal(size=40)
    gram, moment = z.T @ z / 40, z.T @ y / 40
    penalty = share * float(np.abs(moment).max())
    found = lasso(torch.from_numpy(gram), torch.from_numpy(moment), penalty).numpy()
    np.testing.assert_allclose(found, ista(gram, moment, penalty), atol=1e-5)
    slope = gram @ found - moment  # what makes it a minimum, whatever found it
    assert (np.abs(slope) <= penalty * (1 + 1e-5) + 1e-9).all()
    np.testing.assert_allclose(slope[found != 0], -penalty * np.sign(found[found != 0]), atol=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(3, 12), st.integers(0, 1000))
def test_the_lasso_keeps_as_many_inputs_as_asked_for(channels: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(60, channels))
    y = z @ draw.normal(size=channels) + 0.1 * draw.normal(size=60)
    gram, moment = torch.from_numpy(z.T @ z / 60), torch.from_numpy(z.T @ y / 60)
    for count in range(1, channels):
        assert len(set(choose(gram, moment, count))) == count


def test_the_lasso_drops_what_adds_nothing() -> None:
    z = np.random.default_rng(0).normal(size=(200, 6))
    y = 3 * z[:, 1] - 2 * z[:, 4]
    gram, moment = torch.from_numpy(z.T @ z / 200), torch.from_numpy(z.T @ y / 200)
    assert choose(gram, moment, 2) == [1, 4]


def test_channel_pruning_refits_by_least_squares_to_the_original_outputs() -> None:
    network, data = randomised(Chain()), images(60)
    cut = ChannelPruning(positions=10, rows=100).prune(network, data.images[:1], Budget(ratio=0.34), data)
    kept, outputs = list(cut.layers[0].kept), list(cut.layers[1].kept)
    rows = sample_rows(network, ["conv2"], data.images, 10, 0)["conv2"].numpy().astype(np.float64)
    weight = network.conv2.weight.detach().double().numpy().reshape(8, -1)
    wanted = rows.reshape(len(rows), -1) @ weight.T
    fitted, *_ = np.linalg.lstsq(rows[:, kept].reshape(len(rows), -1), wanted, rcond=None)
    small = cut.network.get_submodule("conv2").weight.detach().numpy().reshape(len(outputs), -1)
    np.testing.assert_allclose(small, fitted.T[outputs], atol=5e-3)


def test_sampled_rows_are_what_the_kernel_sees() -> None:
    network, data = randomised(Chain()), images(5)
    rows = sample_rows(network, ["conv2", "conv3", "fc"], data.images, 7, 3)
    with torch.no_grad():
        x = torch.relu(network.norm1(network.conv1(data.images)))
        whole = F.conv2d(x, network.conv2.weight, None, 2, 1)
    made = rows["conv2"].flatten(1) @ network.conv2.weight.detach().flatten(1).T
    for index, row in enumerate(made):
        image = whole[index // 7].flatten(1).T
        assert float((image - row).abs().amax(1).min()) < 1e-4
    assert rows["conv3"].shape == (35, 8, 1)
    assert rows["fc"].shape == (5, 5, 1)


def test_a_refit_with_all_inputs_changes_nothing() -> None:
    layer = nn.Conv2d(3, 4, 3)
    before = layer.weight.detach().clone()
    rows = torch.randn(500, 3, 9)
    refit_layer(layer, "conv", range(3), rows, rows.flatten(1) @ before.flatten(1).T, ridge=1e-9)
    torch.testing.assert_close(layer.weight.detach(), before, rtol=1e-3, atol=1e-4)


def test_the_sensitivity_table_is_the_accuracy_with_one_layer_masked() -> None:
    network, data = randomised(Chain()), images(64)
    table = sensitivity(network, data.images[:1], data, keeps=(1.0, 0.5))
    assert [(row.layer, row.keep) for row in table][:2] == [("conv1", 1.0), ("conv1", 0.5)]
    assert all(
        row.accuracy == accuracy(network, data.images, data.labels) for row in table if row.keep == 1.0
    )
    kept = kept_of(network, FilterPruning(), "conv2")
    for channel in set(range(8)) - set(kept):
        network.norm2.weight.data[channel] = network.norm2.bias.data[channel] = 0
    right = next(row.accuracy for row in table if (row.layer, row.keep) == ("conv2", 0.5))
    assert right == pytest.approx(accuracy(network, data.images, data.labels))


def test_the_lasso_ends_with_dead_and_with_collinear_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    z = draw.normal(size=(200, 12))
    z[:, 3] = z[:, 7] = 0.0
    z[:, 9:] = z[:, :3] * (1 + 1e-7)
    y = z @ draw.normal(size=12)
    gram, moment = torch.from_numpy(z.T @ z / 200), torch.from_numpy(z.T @ y / 200)
    solved: list[float] = []

    def counted(g: torch.Tensor, m: torch.Tensor, penalty: float, start: torch.Tensor) -> torch.Tensor:
        solved.append(penalty)
        return lasso(g, m, penalty, start)

    monkeypatch.setattr("penstock.pruning.channel_pruning.lasso", counted)
    for count in (1, 6, 11):
        kept = choose(gram, moment, count)
        assert len(set(kept)) == count
        assert count == 11 or not {3, 7} & set(kept)
    assert len(solved) < 3 * 70
    few = lasso(gram, moment, 1e-9, steps=24)
    assert bool(torch.isfinite(few).all())


def test_random_channels_keeps_as_many_as_filter_pruning_and_goes_by_its_seed_alone() -> None:
    network, x = randomised(Chain((16, 16, 16))), torch.randn(1, 3, 12, 12)
    like = FilterPruning().prune(network, x, Budget(saving=2.0))
    cuts = [RandomChannels(seed=seed).prune(network, x, Budget(saving=2.0)) for seed in (0, 0, 1)]
    for cut in cuts:
        assert [one.channels_after for one in cut.layers] == [one.channels_after for one in like.layers]
    kept = [[one.kept for one in cut.layers] for cut in cuts]
    assert kept[0] == kept[1] != kept[2]
    seen = np.zeros(16)
    for seed in range(67):
        cut = RandomChannels(seed=seed).prune(network, x, Budget(ratio=0.5))
        for layer in cut.layers[:3]:  # the convolutions
            seen[list(layer.kept)] += 1
    assert (np.abs(seen / 201 - 0.5) < 0.18).all()  # 5 standard deviations: no channel is favoured
