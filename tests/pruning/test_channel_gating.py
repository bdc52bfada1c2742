"""Channel Gating: sums, gates, gradients and counts against brute force; budgets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.pruning.networks import Chain, images, randomised
from torch import Tensor, nn

from penstock.errors import PruningError
from penstock.pruning import Budget, ChannelGating
from penstock.pruning.channel_gating import GatedSums, step
from penstock.pruning.pixels import pixel_layers


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
