"""RNP and ManiDP: each part against an independent solution, and the engine runs what they decide."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.pruning.colours import RECIPE, coloured
from tests.pruning.networks import Chain, images, randomised
from torch import nn

from penstock.accounting import account
from penstock.engine import compile
from penstock.errors import PruningError
from penstock.gating import gated_layers, winner_count
from penstock.pruning import (
    Budget,
    ManifoldPruning,
    Plan,
    RuntimeNeuralPruning,
    Skipping,
    prune_in_stages,
)
from penstock.pruning.manidp import ThresholdGate, annealed, cosines, easiness
from penstock.pruning.rnp import Agent, RuntimePruned, q_loss


def runtime_pruned(saving: float = 2.0) -> Skipping:
    method = RuntimeNeuralPruning(agent_batch=8, agent_steps=4, groups=2)
    data = images(32)
    return method.prune(randomised(Chain((8, 8, 8))), data.images[:1], Budget(saving=saving), data)


def test_q_learning_minimises_the_temporal_difference_of_every_layer() -> None:
    torch.manual_seed(0)
    agent, slow = Agent([3, 4], 3), Agent([3, 4], 3)
    agent.seen = [torch.randn(5, 3), torch.randn(5, 4)]
    agent.actions = [torch.tensor([0, 1, 2, 1, 0]), torch.tensor([2, 2, 0, 1, 1])]
    reward = -torch.rand(5)
    got = q_loss(agent, slow, reward, price=0.3, discount=0.9).item()

    def values(net: Agent) -> list[np.ndarray]:
        hidden, found = torch.zeros(5, 128), []
        cell = net.memory
        for place, seen in enumerate(agent.seen):
            encoded = torch.relu(net.encoders[place](seen))
            hidden = torch.tanh(
                encoded @ cell.weight_ih.T + cell.bias_ih + hidden @ cell.weight_hh.T + cell.bias_hh
            )
            found.append(net.values(hidden).detach().numpy())
        return found

    own, later = values(agent), values(slow)
    total = 0.0
    for image in range(5):
        first, second = int(agent.actions[0][image]), int(agent.actions[1][image])
        targets = (-0.3 * first + 0.9 * later[1][image].max(), -0.3 * second + float(reward[image]))
        for place, (action, target) in enumerate(zip((first, second), targets, strict=True)):
            apart = abs(float(own[place][image, action]) - float(target))
            total += apart**2 / 2 if apart < 1 else apart - 0.5
    assert got == pytest.approx(total / 5 / 2, rel=1e-4)


def test_an_action_computes_the_first_groups_in_the_order_of_the_scales() -> None:
    made = runtime_pruned().network
    assert isinstance(made, RuntimePruned)
    made.agent.phase.fill_(1)
    with torch.no_grad():
        made.eval()(images(6).images)
    for place, (_, layer) in enumerate(gated_layers(made)):
        order = layer.gate.bias.detach().abs().argsort(descending=True, stable=True)
        for image, action in enumerate(made.agent.actions[place].tolist()):
            used = set(layer.gains[image].nonzero().flatten().tolist())
            assert used == set(order[: winner_count((action + 1) / 2, 8)].tolist())


def test_the_engine_runs_what_the_agent_decides() -> None:
    found = runtime_pruned()
    network = found.network
    assert isinstance(network, RuntimePruned)
    network.agent.phase.fill_(1)
    nn.init.normal_(network.agent.values[2].bias, std=0.01)
    x = images(8).images
    with torch.no_grad():
        wanted = network.eval()(x)
    assert found.plain is not None
    assert found.densities is not None
    engine = compile(found.plain(network), x[:1])
    for image, density in enumerate(found.densities(network, x)):
        got = engine(x[image : image + 1], density=density)
        torch.testing.assert_close(got, wanted[image : image + 1], rtol=1e-3, atol=1e-4)
    cost = found.cost(network, x)
    assert cost.authors < cost.executed  # ours has the gates' own MACs besides
    assert cost.authors - network.agent.macs() <= cost.dense


def test_rnp_trains_in_its_three_phases_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    method = RuntimeNeuralPruning(agent_batch=8, agent_steps=6, groups=2, nested=0.5)
    torch.manual_seed(0)
    network = Chain((8, 8, 8))
    plan = Plan(Budget(saving=2.0), finetune=RECIPE)
    outcome = prune_in_stages(network, method, coloured(), coloured(12), plan, out=tmp_path)
    made = outcome.network
    assert isinstance(made, RuntimePruned)
    assert made.agent.decides
    assert outcome.skipping is not None
    again = prune_in_stages(network, method, coloured(), coloured(12), plan, out=tmp_path).network
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_rnp_settles_at_the_budget_whatever_its_agent_thinks() -> None:
    method = RuntimeNeuralPruning(agent_batch=8, agent_steps=4, groups=4)
    data = images(64)
    found = method.prune(randomised(Chain((32, 32, 32))), data.images[:1], Budget(saving=1.8), data)
    made = found.network
    assert isinstance(made, RuntimePruned)
    made.agent.phase.fill_(1)
    nn.init.normal_(made.agent.values[2].bias, std=1.0)
    method.settle(made, data, Budget(saving=1.8))
    saving = found.cost(made, data.images).saving
    assert 1.8 <= saving < 1.8 * 1.25  # an action is a quarter of a layer, and few images decide alike


def test_rnps_budget_is_bounded_by_its_groups() -> None:
    with pytest.raises(PruningError, match=r"saving 50: .* is the most that can be had"):
        runtime_pruned(saving=50)
    with pytest.raises(PruningError, match="at least 16, got 0"):
        RuntimeNeuralPruning(agent_batch=8).prune(Chain(), torch.randn(1, 3, 12, 12), Budget(saving=2.0))


def test_manidps_losses_are_those_of_numpy() -> None:
    losses = np.array([0.1, 0.4, 2.0, 0.9])
    half = losses.mean() / 2
    wanted = np.maximum(0, (half - losses) / half)
    np.testing.assert_allclose(easiness(torch.from_numpy(losses)).numpy(), wanted)
    rows = np.random.default_rng(0).normal(size=(4, 5))
    table = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in rows] for a in rows]
    np.testing.assert_allclose(cosines(torch.from_numpy(rows)).numpy(), table, atol=1e-9)
    assert annealed(0.5, 0.2) == pytest.approx(0.6)
    assert annealed(0.25, 0.0) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def manifold_pruned() -> tuple[ManifoldPruning, Skipping]:
    method = ManifoldPruning()
    return method, method.prune(randomised(Chain()), torch.randn(1, 3, 12, 12), Budget(saving=2.0))


def test_manidps_batch_loss_adds_up_over_layers() -> None:
    method, found = manifold_pruned()
    data = images(6)
    network = found.network.train()
    for _, layer in gated_layers(network):
        layer.gate.weight.data.normal_(0, 0.3)
    pooled = {}
    for name, layer in gated_layers(network):
        layer.register_forward_hook(lambda _, __, out, name=name: pooled.update({name: out.mean((2, 3))}))
    logits = network(data.images)
    got = method.batch_loss(network, logits, data.labels)
    lost = F.cross_entropy(logits, data.labels, reduction="none").detach()
    easy = ((lost.mean() / 2 - lost) / (lost.mean() / 2)).clamp(min=0)
    wanted = 0.0
    for name, layer in gated_layers(network):
        g = layer.gate.whole.detach()
        wanted += 5e-3 * float((easy * g.sum(1)).mean())
        one = F.cosine_similarity(g[:, None], g[None], dim=2)
        f = pooled[name].detach()
        other = F.cosine_similarity(f[:, None], f[None], dim=2)
        wanted += float(((one - other) ** 2).mean())
    assert got is not None
    assert got.item() == pytest.approx(wanted, rel=1e-4)


def test_a_threshold_leaves_the_wanted_number_of_channels_above_it_on_average() -> None:
    _, found = manifold_pruned()
    for _, layer in gated_layers(found.network):
        gate = layer.gate
        assert isinstance(gate, ThresholdGate)
        gate.mean.copy_(torch.rand(len(gate.mean)))
        for share in (1.0, 0.7, 0.3):
            gate.move_threshold(share)
            assert int((gate.mean > gate.threshold).sum()) == winner_count(share, len(gate.mean))


def test_manidps_mean_share_follows_its_budget_and_settles_there() -> None:
    method, found = manifold_pruned()
    network, data = found.network.train(), images(64)
    for _, layer in gated_layers(network):
        layer.gate.weight.data.normal_(0, 0.5)
    with torch.no_grad():
        for _ in range(80):
            network(data.images)
            method.after_step(network, 1.0)
    for _, layer in gated_layers(network):
        gate = layer.gate
        assert isinstance(gate, ThresholdGate)
        assert float(gate.used) == pytest.approx(gate.target, abs=0.15)  # layers have 6 to 8 channels
    method.settle(network, data, Budget(saving=2.0))
    assert 2.0 <= found.cost(network, data.images).saving < 2.0 * 1.25


def test_the_engine_runs_thresholds_as_each_images_own_count() -> None:
    _, found = manifold_pruned()
    network, x = found.network.eval(), images(8).images * torch.linspace(0.1, 3, 8)[:, None, None, None]
    for _, layer in gated_layers(network):
        gate = layer.gate
        gate.weight.data.normal_(0, 0.5)
        gate.threshold.fill_(float(gate.bias.detach().median()))
    with torch.no_grad():
        wanted = network(x)
    assert found.plain is not None
    assert found.densities is not None
    densities = found.densities(network, x)
    assert len({tuple(own.values()) for own in densities}) > 1  # images do differ
    engine = compile(found.plain(network), x[:1])
    for image, density in enumerate(densities):
        got = engine(x[image : image + 1], density=density)
        torch.testing.assert_close(got, wanted[image : image + 1], rtol=1e-3, atol=1e-4)
    assert found.cost(network, x).executed == pytest.approx(account(network, x, "executed").macs)


def test_manidp_trains_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = randomised(Chain())  # scales that differ, so that saliencies do
    plan = Plan(Budget(saving=2.0), finetune=RECIPE)
    first = prune_in_stages(network, ManifoldPruning(), coloured(), None, plan, out=tmp_path).network
    gates = [layer.gate for _, layer in gated_layers(first)]
    assert any(float(gate.threshold) > 0 for gate in gates)
    again = prune_in_stages(network, ManifoldPruning(), coloured(), None, plan, out=tmp_path).network
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
