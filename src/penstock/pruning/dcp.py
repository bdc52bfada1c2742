"""Discrimination-aware Channel Pruning (Zhuang et al., NeurIPS 2018): what helps to tell classes apart stays.

    stages      auxiliary classifiers (norm → ReLU → mean → linear) divide the layers; the last stage ends in
                the network's own loss. Each stage first trains the whole network on both losses, the
                auxiliary one scaled by (L_k / L_K)², at least 0.01 and at most 1.
    L(W)      = MSE(output with the chosen inputs, output with all) + λ · cross entropy behind the stage
    greedily    none is chosen; add the inputs j of largest ‖∂L/∂W_j‖_F with their trained weights, then let
                a few steps of SGD adjust the weights of those chosen; again, until there are enough

The authors add one channel after a pass over all data; here a share of the layer (`portion`) is added at a
time, with gradients from some batches of the calibration images.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from penstock.pruning.cutting import cut_groups, find_channels
from penstock.pruning.groups import Group, need_groups, uniform_counts
from penstock.pruning.partial import Values, node_of, output_node, run_to, values_before, without_inplace
from penstock.pruning.protocol import Budget, Calibration, Pruned, need_images
from penstock.pruning.removable import Removable, mask_channels
from penstock.surgery.network import eval_mode

Places = dict[str, dict[int, list[int]]]
"""{reader: {channel: which of its inputs}}."""


@dataclass(frozen=True)
class DiscriminationAware:
    """`heads` auxiliary classifiers; each stage trains for `head_steps` steps at `learning_rate`.

    A choice looks at `batches` batches of `batch_size` images, as often as it takes to add `portion` of the
    layer's channels at a time. `balance` is λ.
    """

    images: int = 2048
    heads: int = 2
    head_steps: int = 400
    learning_rate: float = 0.01
    portion: float = 1 / 16
    batches: int = 8
    batch_size: int = 64
    balance: float = 1.0
    seed: int = 0
    name: str = "dcp"

    def prune(
        self, network: nn.Module, example: Tensor, budget: Budget, data: Calibration | None = None
    ) -> Pruned:
        """A copy with the channels that keep outputs and classes apart; it has been trained a little."""
        data = need_images(data, self.name, self.batch_size)
        found = find_channels(network, example)
        groups, left_alone = need_groups(found, network, tied=False)
        counts = uniform_counts(found, groups, budget)
        frozen = {name for name, p in found.traced.named_parameters() if not p.requires_grad}
        found.traced.requires_grad_(True)
        kept: list[list[int]] = []
        with torch.random.fork_rng(devices=[]), eval_mode(found.traced), without_inplace(found.traced):
            torch.manual_seed(self.seed)
            for stage in stages(len(groups), self.heads):
                last = stage[-1] == len(groups) - 1
                head = None if last else self._head(found, groups[stage[-1]], data)
                self._train(found.traced, head, data)
                before = deepcopy(found.traced)
                for place in stage:
                    batches = self._prepare(found.traced, before, groups[place], head, data)
                    kept.append(self._choose(found, groups[place], counts[place], batches))
        for name, parameter in found.traced.named_parameters():
            parameter.requires_grad_(name not in frozen)
        return cut_groups(found, groups, kept, example, left_alone)

    def _head(self, found: Removable, end: Group, data: Calibration) -> Head:
        layer = end.readers[-1]
        width = found.traced.get_submodule(layer).weight.shape[0]  # type: ignore[union-attr, index]
        return Head(layer, int(width), int(data.labels.max()) + 1).to(data.images)  # type: ignore[arg-type]

    def _train(self, network: fx.GraphModule, head: Head | None, data: Calibration) -> None:
        """Train the network on its own loss and, before the last stage, on that of the classifier too."""
        learned = [*network.parameters(), *([] if head is None else head.parameters())]
        optimiser = torch.optim.SGD(learned, lr=self.learning_rate, momentum=0.9, nesterov=True)
        ends = (
            [output_node(network)] if head is None else [node_of(network, head.layer), output_node(network)]
        )
        network.train()
        for x, labels in self._draw(data, self.head_steps, self.seed):
            values = run_to(network, x, ends)
            loss = F.cross_entropy(values[-1], labels)
            if head is not None:
                own = F.cross_entropy(head(values[0]), labels)
                loss = loss + head_scale(float(own.detach()), float(loss.detach())) * own
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        optimiser.zero_grad()
        network.eval()
        if head is not None:
            head.eval().requires_grad_(False)

    def _draw(self, data: Calibration, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        draw = torch.Generator().manual_seed(seed)
        for _ in range(count):
            chosen = torch.randint(0, len(data), (self.batch_size,), generator=draw)
            yield data.images[chosen], data.labels[chosen]

    def _prepare(
        self,
        network: fx.GraphModule,
        before: fx.GraphModule,
        group: Group,
        head: Head | None,
        data: Calibration,
    ) -> list[Prepared]:
        """What each batch looks like where the group is read, and what its readers made of it before."""
        readers = [node_of(network, name) for name in group.readers]
        ends = [output_node(network) if head is None else node_of(network, head.layer)]
        prepared = []
        for x, labels in self._draw(data, self.batches, self.seed + 1):
            with torch.no_grad():
                wanted = run_to(before, x, [node_of(before, name) for name in group.readers])
                start = values_before(network, x, readers[0])
            prepared.append(Prepared(network, start, readers + ends, wanted, labels, head, self.balance))
        return prepared

    def _choose(self, found: Removable, group: Group, count: int, batches: list[Prepared]) -> list[int]:
        """The roots that stay; their readers' weights are adjusted and the losers masked, in place."""
        weights = {name: _weight(found, name) for name in group.readers}
        trained = {name: weight.detach().clone() for name, weight in weights.items()}
        places: Places = {name: _places(found, group, name) for name in group.readers}
        step = max(1, round(self.portion * len(group.roots)))
        left, chosen = list(group.roots), list[int]()
        _copy(weights, {name: torch.zeros_like(weight) for name, weight in weights.items()}, places, left)
        while len(chosen) < count:
            scores = gradient_norms(weights, places, left, batches)
            order = sorted(left, key=lambda root: -scores[root])
            fresh = order[: min(step, count - len(chosen))]
            chosen += fresh
            left = [root for root in left if root not in fresh]
            _copy(weights, trained, places, fresh)
            self._adjust(weights, places, left, batches)
        mask_channels(found.traced, found.ties, left)
        return sorted(chosen)

    def _adjust(
        self, weights: dict[str, nn.Parameter], places: Places, off: list[int], batches: list[Prepared]
    ) -> None:
        """SGD on the weights of the chosen inputs, one step a batch."""
        optimiser = torch.optim.SGD(weights.values(), lr=self.learning_rate, momentum=0.9, nesterov=True)
        for batch in batches:
            gradients = torch.autograd.grad(batch.loss(), list(weights.values()))
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                gradient[:, [at for root in off for at in places[name].get(root, [])]] = 0
                weight.grad = gradient
            optimiser.step()
        optimiser.zero_grad()


class Head(nn.Module):
    """An auxiliary classifier behind `layer`: x (batch, channel[, height, width]) → (batch, class)."""

    def __init__(self, layer: str, channels: int, classes: int) -> None:
        super().__init__()
        self.layer = layer
        self.norm = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        maps = x if x.dim() == 4 else x[:, :, None, None]
        logits: Tensor = self.fc(torch.relu(self.norm(maps)).mean((2, 3)))
        return logits


@dataclass(frozen=True)
class Prepared:
    """A batch that has run up to the layer in question. nodes: its readers, then where the stage ends."""

    network: fx.GraphModule
    start: Values
    nodes: list[fx.Node]
    wanted: list[Tensor]
    labels: Tensor
    head: Head | None
    balance: float

    def loss(self) -> Tensor:
        *made, end = run_to(self.network, None, self.nodes, self.start)
        logits = end if self.head is None else self.head(end)
        loss = self.balance * F.cross_entropy(logits, self.labels)
        for one, other in zip(made, self.wanted, strict=True):
            loss = loss + F.mse_loss(one, other)
        return loss


def stages(layers: int, heads: int) -> list[list[int]]:
    """The layers' places, divided evenly by the auxiliary classifiers; the last stage has none.

    >>> stages(5, 1)
    [[0, 1, 2], [3, 4]]
    """
    parts = torch.arange(layers).tensor_split(min(heads + 1, layers))
    return [part.tolist() for part in parts]


def head_scale(own: float, final: float) -> float:
    """How much an auxiliary loss L_k counts beside the final one L_K: (L_k / L_K)², from 0.01 to 1.

    The authors have no upper bound. Their losses fall together from the start; here a new classifier meets a
    trained network whose own loss is small, and a scale of several hundred would wreck it in a few steps.

    >>> head_scale(own=1.0, final=2.0), head_scale(own=2.3, final=0.1)
    (0.25, 1.0)
    """
    return min(1.0, max(0.01, (own / max(final, 1e-6)) ** 2))


def gradient_norms(
    weights: dict[str, nn.Parameter], places: Places, roots: list[int], batches: list[Prepared]
) -> dict[int, float]:
    """{channel: ‖∂L/∂W_j‖_F}, L averaged over the batches; one norm over all that read the channel."""
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for batch in batches:
        gradients = torch.autograd.grad(batch.loss(), list(weights.values()))
        for name, gradient in zip(weights, gradients, strict=True):
            total[name] += gradient / len(batches)
    return {
        root: sum(float(total[name][:, own.get(root, [])].square().sum()) for name, own in places.items())
        ** 0.5
        for root in roots
    }


def _weight(found: Removable, layer: str) -> nn.Parameter:
    module = found.traced.get_submodule(layer)
    assert isinstance(module, nn.Conv2d | nn.Linear)
    return cast(nn.Parameter, module.weight)


def _places(found: Removable, group: Group, reader: str) -> dict[int, list[int]]:
    own: dict[int, list[int]] = {root: [] for root in group.roots}
    for place, slot in enumerate(found.ties.reads[reader]):
        if found.ties.root(slot) in own:
            own[found.ties.root(slot)].append(place)
    return own


@torch.no_grad()
def _copy(
    weights: dict[str, nn.Parameter], source: dict[str, Tensor], places: Places, roots: list[int]
) -> None:
    for name, weight in weights.items():
        at = [place for root in roots for place in places[name].get(root, [])]
        weight[:, at] = source[name][:, at]
