"""DCP's gradients and greedy choice, AMC's wall and its agent: each against an independent solution."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pruning.networks import Chain, images, randomised
from torch import Tensor

from penstock.errors import PruningError
from penstock.pruning import AutoMl, Budget, Calibration, DiscriminationAware
from penstock.pruning.amc import Walls, World
from penstock.pruning.cutting import find_channels
from penstock.pruning.dcp import Head, _places, gradient_norms, head_scale, stages
from penstock.pruning.ddpg import Agent, Hyper, Step, truncated_normal
from penstock.pruning.groups import find_groups
from penstock.pruning.looking import sample_rows


def test_dcps_gradient_is_that_of_finite_differences() -> None:
    network, data = randomised(Chain((3, 4, 5))).double(), images(8)
    x, labels = data.images.double(), data.labels
    found = find_channels(network, x[:1])
    group = find_groups(found)[0][0]
    assert group.writers == ("conv1",)
    head = Head("conv3", 5, 4).double().eval()
    method = DiscriminationAware(batches=1, batch_size=8, balance=0.7)
    (batch,) = method._prepare(found.traced.eval(), found.traced, group, head, Calibration(x, labels))
    weight = found.traced.get_submodule("conv2").weight
    weight.data[:, 1] = 0  # one input is not chosen yet
    places = {"conv2": _places(found, group, "conv2")}
    scores = gradient_norms({"conv2": weight}, places, list(group.roots), [batch])
    draw = torch.Generator().manual_seed(1)
    chosen = torch.randint(0, 8, (8,), generator=draw)

    def loss(w: Tensor) -> float:
        inner = torch.relu(network.norm1(network.conv1(x[chosen])))
        made = F.conv2d(inner, w, network.conv2.bias, 2, 1)
        whole = network.conv2(inner)
        behind = network.conv3(torch.relu(network.norm2(made)))
        logits = head.fc(torch.relu(head.norm(behind)).mean((2, 3)))
        return float(F.mse_loss(made, whole) + 0.7 * F.cross_entropy(logits, labels[chosen]))

    with torch.no_grad():
        for j, root in enumerate(group.roots):
            slopes = []
            for o, a, b in product(range(4), range(3), range(3)):
                moved = [weight.detach().clone() for _ in range(2)]
                moved[0][o, j, a, b] += 1e-5
                moved[1][o, j, a, b] -= 1e-5
                slopes.append((loss(moved[0]) - loss(moved[1])) / 2e-5)
            assert scores[root] == pytest.approx(float(np.linalg.norm(slopes)), rel=1e-4)


def test_dcp_prefers_inputs_that_carry_the_class() -> None:
    torch.manual_seed(0)
    network = randomised(Chain((6, 8, 5)))
    labels = torch.arange(64) % 4
    x = torch.randn(64, 3, 12, 12) * 0.1 + labels[:, None, None, None]
    network.norm1.bias.data.fill_(2.0)  # alive: a channel that is always 0 has no gradient either
    network.norm1.weight.data[[1, 4]] = network.norm1.bias.data[[1, 4]] = 1e-4  # as good as silent
    method = DiscriminationAware(head_steps=0, portion=0.2, batches=2, batch_size=32)
    cut = method.prune(network, x[:1], Budget(ratio=0.34), Calibration(x, labels))
    assert set(cut.layers[0].kept) == {0, 2, 3, 5}


def test_stages_cover_all_layers_and_auxiliary_losses_are_scaled() -> None:
    assert stages(8, 2) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert stages(2, 5) == [[0], [1]]
    assert head_scale(1.0, 2.0) == 0.25
    assert head_scale(0.01, 2.0) == 0.01
    assert head_scale(2.3, 0.1) == 1.0  # a new head behind a trained network


@settings(max_examples=12, deadline=None)
@given(st.floats(1.0, 3.0), st.lists(st.floats(0.2, 1.0), min_size=3, max_size=3), st.sampled_from([1, 2]))
def test_the_wall_lets_through_exactly_what_later_layers_can_make_up_for(
    saving: float, shares: list[float], unit: int
) -> None:
    found = find_channels(randomised(Chain()), torch.randn(1, 3, 12, 12))
    groups, _ = find_groups(found, tied=False)
    walls = Walls(found, groups, Budget(saving=saving), lowest=0.2, round_to=unit)
    dense = sum(found.macs().values())

    def macs(counts: tuple[int, ...]) -> int:
        gone = {root for group, count in zip(groups, counts, strict=True) for root in group.roots[count:]}
        return sum(found.macs(gone).values())

    def choices(place: int) -> list[int]:
        size = walls.sizes[place]
        step = unit if size >= 2 * unit else 1
        return [c for c in range(1, size + 1) if (c % step == 0 or c == size) and c >= walls.least[place]]

    counts: list[int] = []
    for place, share in enumerate(shares):
        got = walls.allow(counts, share)
        feasible = [
            c
            for c in choices(place)
            if any(
                macs((*counts, c, *rest)) <= dense / saving + 1e-6
                for rest in product(*(choices(later) for later in range(place + 1, 3)))
            )
        ]
        wanted = max(walls.rounded(share, walls.sizes[place]), feasible[0])
        assert got == max(c for c in feasible if c <= wanted)
        counts.append(got)
    assert macs(tuple(counts)) <= dense / saving + 1e-6


def test_a_budget_beyond_the_lowest_share_is_refused_with_the_nearest() -> None:
    found = find_channels(randomised(Chain()), torch.randn(1, 3, 12, 12))
    groups, _ = find_groups(found, tied=False)
    with pytest.raises(PruningError, match=r"a saving of 500 cannot be had: .* it is (\d+\.\d+)"):
        Walls(found, groups, Budget(saving=500), 0.2, 1)


def test_amc_meets_its_budget_and_refits_by_least_squares() -> None:
    network, data = randomised(Chain()), images(200)
    method = AutoMl(images=200, held_out=50, positions=4, episodes=8, warmup=4, round_to=1)
    cut = method.prune(network, data.images[:1], Budget(saving=2.0), data)
    assert cut.saving >= 2.0
    found = find_channels(network, data.images[:1])
    groups, _ = find_groups(found, tied=False)
    fit, held = data.split(50)
    world = World(found, groups, fit, held, 4, 0)
    kept = world.apply(found.traced, [4, 8, 5])
    sums = network.conv2.weight.detach().abs().sum((0, 2, 3)).numpy()
    places = sorted(np.argsort(-sums)[:4].tolist())
    assert [groups[0].roots.index(root) for root in kept[0]] == places
    rows = sample_rows(network, ["conv2"], fit.images, 4, 0)["conv2"].double().numpy()
    wanted = rows.reshape(len(rows), -1) @ network.conv2.weight.detach().double().numpy().reshape(8, -1).T
    fitted, *_ = np.linalg.lstsq(rows[:, places].reshape(len(rows), -1), wanted, rcond=None)
    got = found.traced.get_submodule("conv2").weight.detach().numpy()[:, places].reshape(8, -1)
    np.testing.assert_allclose(got, fitted.T, atol=5e-3)


def test_the_agents_targets_follow_slowly() -> None:
    agent = Agent(3, 0.2, 100, seed=0, hyper=Hyper(hidden=8, batch=4, tau=0.25))
    agent.remember([Step(torch.randn(3), 0.5, 1.0, torch.randn(3), True) for _ in range(4)])
    before = [p.clone() for p in agent.slow_critic.parameters()]
    agent.learn()
    after = zip(before, agent.slow_critic.parameters(), agent.critic.parameters(), strict=True)
    for old, slow, quick in after:
        torch.testing.assert_close(slow.data, 0.75 * old.data + 0.25 * quick.data)


def test_the_agent_learns_which_action_pays() -> None:
    agent = Agent(2, 0.2, 400, seed=0, hyper=Hyper(hidden=32, actor_rate=3e-3, critic_rate=1e-2, tau=0.1))
    states = [torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])]
    best = [0.3, 0.9]
    for episode in range(120):
        place = episode % 2
        action = agent.explore() if episode < 80 else agent.act(states[place], episode - 80)
        reward = -((action - best[place]) ** 2) * 10
        agent.remember([Step(states[place], action, reward, states[place], True)])
        for _ in range(3):
            agent.learn()
    assert agent.act(states[0]) < 0.55 < 0.65 < agent.act(states[1])


@settings(max_examples=20, deadline=None)
@given(st.floats(0.2, 1.0), st.floats(0.001, 2.0), st.integers(0, 100))
def test_noise_stays_within_the_actions(mean: float, spread: float, seed: int) -> None:
    assert 0.2 <= truncated_normal(mean, spread, 0.2, 1.0, np.random.default_rng(seed)) <= 1.0
