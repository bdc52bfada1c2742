"""Layers whose channels go together, and how many each keeps: removable channels in, groups and counts out.

A group is the channels of one layer, or those of all layers that a residual sum ties together. Methods that
choose within a layer rank the channels of one group; the budget gives every group the same share r to keep:

    kept = ⌈r · channels⌉, r the largest that saves enough MACs
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from torch import nn

from penstock.errors import PruningError
from penstock.pruning.protocol import Budget, nothing_left
from penstock.pruning.removable import Removable

TIED = "its channels meet those of other layers in a sum; the method removes only what one layer makes"


@dataclass(frozen=True)
class Group:
    """`writers`: layers that make these channels; `readers`: those that read them; `roots`: the channels, by
    their root in `Removable.ties`."""

    writers: tuple[str, ...]
    readers: tuple[str, ...]
    roots: tuple[int, ...]


def find_groups(found: Removable, tied: bool = True) -> tuple[list[Group], dict[str, str]]:
    """The groups in the order in which they run, and {layer: why it is left alone}.

    tied: whether channels that several layers make together may go.
    """
    owners: dict[int, set[int]] = {}  # root → the layers (by place) that write it
    names = list(found.ties.writes)
    for place, name in enumerate(names):
        for slot in found.ties.writes[name]:
            owners.setdefault(found.ties.root(slot), set()).add(place)
    home = list(range(len(names)))
    for places in owners.values():
        first = min(home[place] for place in places)
        merged = {home[place] for place in places}
        home = [first if place in merged else place for place in home]
    groups, left_alone = [], dict(found.left_alone)
    for first in sorted(set(home)):
        writers = tuple(name for place, name in enumerate(names) if home[place] == first)
        slots = [slot for name in writers for slot in found.ties.writes[name]]
        roots = tuple(dict.fromkeys(root for root in map(found.ties.root, slots) if root in found.roots))
        if roots and len(writers) > 1 and not tied:
            left_alone |= dict.fromkeys(writers, TIED)
        elif roots:
            own = set(roots)
            readers = tuple(
                name for name, read in found.ties.reads.items() if own & {found.ties.root(s) for s in read}
            )
            groups.append(Group(writers, readers, roots))
    return groups, left_alone


def need_groups(
    found: Removable, network: nn.Module, tied: bool = True
) -> tuple[list[Group], dict[str, str]]:
    """As `find_groups`, but a network without any group is refused, with the reasons."""
    groups, left_alone = find_groups(found, tied)
    if not groups:
        raise nothing_left("channel to remove", network, left_alone)
    return groups, left_alone


def written(found: Removable, groups: Sequence[Group]) -> int:
    """How many output channels of layers the groups hold, tied ones once for each layer."""
    own = {root for group in groups for root in group.roots}
    slots = [slot for slots in found.ties.writes.values() for slot in slots]
    return sum(found.ties.root(slot) in own for slot in slots)


def share_counts(groups: Sequence[Group], share: float) -> list[int]:
    """How many channels each group keeps at one share for all; at least one."""
    return [max(1, ceil(share * len(group.roots) - 1e-9)) for group in groups]


def uniform_counts(found: Removable, groups: Sequence[Group], budget: Budget) -> list[int]:
    """How many channels each group keeps so that the budget is met with the largest share kept."""
    if budget.ratio is not None:
        most = 1 - len(groups) / sum(len(group.roots) for group in groups)
        if budget.ratio > most + 1e-9:
            raise PruningError(
                f"ratio {budget.ratio:g} would remove a whole layer: at least one channel of each stays, "
                f"so at most {most:.4g} of them can go"
            )
        return share_counts(groups, 1 - budget.ratio)
    assert budget.saving is not None
    costs = Costs(found, groups)
    shares = sorted({k / len(group.roots) for group in groups for k in range(1, len(group.roots) + 1)})
    shares.reverse()
    place = bisect_left(shares, budget.saving - 1e-9, key=lambda r: costs.saving(share_counts(groups, r)))
    if place == len(shares):
        nearest = costs.saving([1] * len(groups))
        raise PruningError(
            f"saving {budget.saving:g}: with one channel left in each layer that can be cut, {nearest:.4g} "
            "is the most that can be had"
        )
    return share_counts(groups, shares[place])


class Costs:
    """MACs of the network from counts alone: quick enough to be asked thousands of times."""

    def __init__(self, found: Removable, groups: Sequence[Group]) -> None:
        home = {root: place for place, group in enumerate(groups) for root in group.roots}
        sizes = [len(group.roots) for group in groups]
        self._layers = []
        for layer in found.layers:
            product = layer.product
            sides = []
            for slots, width in (
                (found.ties.reads.get(layer.name, []), product.inputs // product.groups),
                (found.outputs(layer.name), product.outputs),
            ):
                places = [home[root] for root in map(found.ties.root, slots) if root in home]
                each = {place: places.count(place) / sizes[place] for place in set(places)}
                sides.append(((len(slots) or width) - len(places), each))
            self._layers.append((product.positions * product.taps, sides))
        self.dense = self.macs(sizes)

    def macs(self, counts: Sequence[int]) -> float:
        """MACs of one image when group i keeps counts[i] channels."""
        return sum(
            work
            * prod(
                fixed + sum(counts[place] * share for place, share in each.items()) for fixed, each in sides
            )
            for work, sides in self._layers
        )

    def saving(self, counts: Sequence[int]) -> float:
        return self.dense / self.macs(counts)
