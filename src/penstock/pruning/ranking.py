"""Methods that need nothing but a number for every channel: rank, cut, and that is all.

Enters: a network and a budget; leaves: the network with the best-scored channels of every layer.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from penstock.pruning.cutting import cut_groups, find_channels
from penstock.pruning.groups import Group, need_groups, uniform_counts
from penstock.pruning.protocol import Budget, Pruned
from penstock.pruning.removable import Removable

Scores = Callable[[Removable, Group], dict[int, float]]
"""{root: what the channel is worth} of one group."""


def best(scores: dict[int, float], count: int) -> list[int]:
    """The `count` roots with the highest scores; of equal ones the first."""
    order = sorted(range(len(scores)), key=lambda place: (-list(scores.values())[place], place))
    roots = list(scores)
    return sorted(roots[place] for place in order[:count])


def prune_by_scores(
    network: nn.Module, example: Tensor, budget: Budget, scores: Scores, tied: bool = False
) -> Pruned:
    """Every group keeps the same share of its channels, the best by `scores`."""
    found = find_channels(network, example)
    groups, left_alone = need_groups(found, network, tied)
    counts = uniform_counts(found, groups, budget)
    ranked = [scores(found, group) for group in groups]
    kept = [best(scored, count) for scored, count in zip(ranked, counts, strict=True)]
    least = min(scored[root] for scored, roots in zip(ranked, kept, strict=True) for root in roots)
    return cut_groups(found, groups, kept, example, left_alone, threshold=least)


def filter_scores(
    found: Removable, group: Group, measure: Callable[[str, Tensor], Tensor]
) -> dict[int, float]:
    """Σ over the layers that make a channel of `measure(layer, filters)`.

    measure: a layer's name and its filters (output channel, …) → one number for each.
    """
    scores = dict.fromkeys(group.roots, 0.0)
    for name in group.writers:
        layer = found.traced.get_submodule(name)
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        values = measure(name, layer.weight.detach().flatten(1))
        for slot, value in zip(found.ties.writes[name], values.tolist(), strict=True):
            root = found.ties.root(slot)
            if root in scores:
                scores[root] += value
    return scores
