"""Runtime Neural Pruning (Lin et al., NIPS 2017): an agent decides for each image how many groups to compute.

    channels    k groups in a fixed order, by |γ|: an action a ∈ {1 … k} computes the first a of them
    agent       mean of the layer's input → an encoder of the layer's own → RNN over depth → Q(s, 1 … k)
    reward      (a − 1) · p at each layer, p < 0; at the last also −α · cross entropy
    Q(s, a)   → r + γ max Q'(s', ·), ε-greedy, Q' a copy that follows slowly

The training after `prune` goes: random actions, so that every prefix works; then the agent learns with the
network at rest; then the network trains under the agent. p is the only knob, so it is moved while the agent
learns until its choices cost what the budget says. Another p would change Q(s, a) by about a multiple of a,
so from then on, after every epoch and at the end, the agent chooses by Q(s, a) + f · a, with f fitted to the
budget (ours). A prefix is a list of channels, which the engine runs.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.errors import PruningError
from penstock.gating import GatedConv2d, gated_layers, winner_count
from penstock.pruning.counting import density_for, gated_cost, image_densities, meet_saving, saving_at
from penstock.pruning.ddpg import follow_slowly
from penstock.pruning.protocol import Budget, Calibration, Cost, Skipping, need_images
from penstock.surgery import add_gates, explain
from penstock.surgery.network import eval_mode

_FITTED = 256  # images that f is fitted to between epochs
_MOST_FAVOUR = 4.0


@dataclass(frozen=True)
class RuntimeNeuralPruning:
    """`nested` is the share of the training with random actions; then the agent takes `agent_steps` steps."""

    images: int = 5000
    groups: int = 4
    nested: float = 0.4
    agent_steps: int = 400
    agent_batch: int = 64
    agent_rate: float = 1e-3
    balance: float = 0.1
    discount: float = 0.999
    tau: float = 0.005
    seed: int = 0
    name: str = "rnp"

    def __post_init__(self) -> None:
        if self.groups < 2:
            raise PruningError(f"groups: expected at least 2, got {self.groups!r}")

    def prune(
        self, network: nn.Module, example: Tensor, budget: Budget, data: Calibration | None = None
    ) -> Skipping:
        """The network with gates whose order is fixed, and an agent that has learned nothing yet."""
        data = need_images(data, self.name, 2 * self.agent_batch)
        gated = add_gates(network, example)
        for _, layer in gated_layers(gated):
            layer.gate.requires_grad_(False)  # ρ = |γ| is the order of the channels: it must not move
        target = density_for(gated, example, budget, least=1 / self.groups)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            agent = Agent([layer.conv.in_channels for _, layer in gated_layers(gated)], self.groups)
        saving = budget.saving or saving_at(gated, example, target)
        made = RuntimePruned(gated, agent, Lesson(data, target, saving)).to(example.device)
        reasons = {conv.name: conv.reason for conv in explain(gated).left_alone}
        return Skipping(made, "gated", count_cost, reasons, backbone_of, decisions)

    def after_epoch(self, network: nn.Module, share: float) -> None:
        """Random actions up to `nested`; then the agent learns, once, and decides from there on."""
        assert isinstance(network, RuntimePruned)
        if share >= self.nested and not network.agent.decides:
            teach_agent(network, self)
            network.agent.phase.fill_(1)
        if network.agent.decides:
            self.settle(network, network.lesson.data.first(_FITTED), Budget(saving=network.lesson.saving))

    def settle(self, network: nn.Module, data: Calibration, budget: Budget) -> None:
        """f with which the mean image costs what the budget says."""
        assert isinstance(network, RuntimePruned)
        agent, saving = network.agent, budget.saving or network.lesson.saving

        def move(knob: float) -> None:
            agent.favour.fill_(_MOST_FAVOUR * (2 * knob - 1))

        meet_saving(
            lambda: count_cost(network, data.images).saving,
            saving,
            move,
        )


class Agent(nn.Module):
    """Decides layer after layer; `decide` stands before each gated layer. inputs: each layer's channels."""

    phase: Tensor
    favour: Tensor

    def __init__(self, inputs: list[int], groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.encoders = nn.ModuleList(nn.Linear(width, 64) for width in inputs)
        self.memory = nn.RNNCell(64, 128)
        self.values = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, groups))
        self.requires_grad_(False)
        self.register_buffer("phase", torch.zeros((), dtype=torch.int64))
        self.register_buffer("favour", torch.zeros(()))  # f
        self.explore = 1.0  # ε, while it learns
        self.learning = False
        self.seen: list[Tensor] = []  # what it saw and did in the last forward, layer by layer
        self.actions: list[Tensor] = []
        self._hidden: Tensor | None = None

    @property
    def decides(self) -> bool:
        """Whether it chooses by what it has learned; before, it draws at random, or takes all in eval."""
        return bool(self.phase == 1)

    def macs(self) -> int:
        """MACs of deciding for one image."""
        return sum(p.numel() for name, p in self.named_parameters() if "weight" in name)

    def decide(self, place: int, layer: GatedConv2d, inputs: tuple[Tensor, ...]) -> None:
        """A forward pre-hook: gives every image of the batch its number of channels in this layer."""
        pooled = inputs[0].detach().mean((2, 3))
        if place == 0:
            self.seen, self.actions, self._hidden = [], [], None
        values, self._hidden = self.step(place, pooled, self._hidden)
        batch = len(pooled)
        lot = torch.randint(0, self.groups, (batch,), device=pooled.device)
        if self.learning:
            guess = torch.rand(batch, device=pooled.device) < self.explore
            action = torch.where(guess, lot, values.argmax(1))
        elif self.decides:
            action = (values + self.favour * torch.arange(self.groups, device=values.device)).argmax(1)
        else:
            action = lot if layer.training else torch.full_like(lot, self.groups - 1)
        self.seen.append(pooled)
        self.actions.append(action)
        width = layer.conv.out_channels
        counts = torch.tensor([winner_count(a / self.groups, width) for a in range(1, self.groups + 1)])
        layer.image_winners = counts.to(action.device)[action][:, None]

    def step(self, place: int, pooled: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """Q of every action, (batch, groups), and what it remembers."""
        encoded = torch.relu(self.encoders[place](pooled))
        hidden = self.memory(encoded, hidden)
        return self.values(hidden), hidden

    def replay(self, seen: list[Tensor]) -> list[Tensor]:
        """Q of every action at every layer, from what was seen there."""
        hidden, values = None, []
        for place, pooled in enumerate(seen):
            own, hidden = self.step(place, pooled, hidden)
            values.append(own)
        return values


@dataclass(frozen=True)
class Lesson:
    """What the agent learns from: training images, and the density and the saving that the budget comes
    to."""

    data: Calibration
    density: float
    saving: float


class RuntimePruned(nn.Module):
    """A gated network under an agent. x: (batch, channel, height, width) → (batch, class)."""

    def __init__(self, backbone: nn.Module, agent: Agent, lesson: Lesson) -> None:
        super().__init__()
        self.backbone, self.agent, self.lesson = backbone, agent, lesson
        for place, (_, layer) in enumerate(gated_layers(backbone)):
            layer.register_forward_pre_hook(partial(agent.decide, place))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.backbone(x)
        return logits


def decisions(network: nn.Module, images: Tensor) -> list[dict[str, float]]:
    """The share of channels that the agent gives each image in each layer."""
    assert isinstance(network, RuntimePruned)
    return image_densities(network.backbone, images)


def backbone_of(network: nn.Module) -> nn.Module:
    """The gated network without its agent: who runs it gives each image its counts."""
    assert isinstance(network, RuntimePruned)
    twin = deepcopy(network).backbone
    for _, layer in gated_layers(twin):
        layer._forward_pre_hooks.clear()
        layer.image_winners = None
    return twin


def count_cost(network: nn.Module, images: Tensor) -> Cost:
    """The authors count convolutions and the decision network; we also count what our gates do."""
    assert isinstance(network, RuntimePruned)
    return gated_cost(network.backbone, images, network.agent.macs(), predictors=False)


def teach_agent(network: RuntimePruned, method: RuntimeNeuralPruning) -> None:
    """Q-learning with the network at rest; p moves until the greedy choices cost what they should."""
    agent, lesson = network.agent, network.lesson
    slow = deepcopy(agent)
    agent.requires_grad_(True)
    optimiser = torch.optim.Adam(agent.parameters(), lr=method.agent_rate)
    draw = torch.Generator().manual_seed(method.seed)
    price, agent.learning = 0.1, True
    with eval_mode(network), torch.random.fork_rng(devices=[]):
        torch.manual_seed(method.seed)
        for step in range(method.agent_steps):
            agent.explore = max(0.1, 1 - 2 * step / method.agent_steps)
            chosen = torch.randint(0, len(lesson.data), (method.agent_batch,), generator=draw)
            with torch.no_grad():
                logits = network(lesson.data.images[chosen])
                lost = F.cross_entropy(logits, lesson.data.labels[chosen], reduction="none")
            loss = q_loss(agent, slow, -method.balance * lost, price, method.discount)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            follow_slowly(slow, agent, method.tau)
            with torch.no_grad():
                greedy = torch.stack([own.argmax(1) for own in agent.replay(agent.seen)])
            used = float((greedy + 1).float().mean()) / agent.groups
            price *= (used / lesson.density) ** 0.2  # too much is used: groups become dearer
            price = min(10.0, max(1e-4, price))
    agent.learning = False
    agent.requires_grad_(False)


def q_loss(agent: Agent, slow: Agent, last_reward: Tensor, price: float, discount: float) -> Tensor:
    """The temporal difference of the episodes in `agent.seen` and `agent.actions`.

    last_reward: (batch,), what the answer was worth; price: −p.
    """
    values = agent.replay(agent.seen)
    with torch.no_grad():
        later = [own.max(1).values for own in slow.replay(agent.seen)]
    loss = torch.zeros(())
    for place, (own, action) in enumerate(zip(values, agent.actions, strict=True)):
        reward = -price * action.float()  # action 0 is a = 1: the first group is free
        last = place == len(values) - 1
        target = reward + (last_reward if last else discount * later[place + 1])
        loss = loss + F.smooth_l1_loss(own.gather(1, action[:, None])[:, 0], target)
    return loss / len(values)
