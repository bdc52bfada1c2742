"""How many channels of a value are computed: a channel expression in, a number out, by each convention.

executed   from the masks that occurred, image by image; a residual sum's channel is active where either
           summand's is
paper      MACs: ⌈d·C⌉ of a gated layer's channels, all channels of a residual sum (so the paper's 1.62×
           for ResNet-18 comes out) and of a flattened map (so its 5.23× for VGG-16 does)
expected   the paper's memory table: the share d of a gated layer's channels, 1 − (1−d)² of the sum of two,
           as if every image drew its channels at random
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from penstock.gating import winner_count
from penstock.surgery import Channels, Concat, Dense, Gate, Meet, Silent, Spread, Union


def paper_count(channels: Channels, densities: Mapping[str, float]) -> int:
    """Active channels by the paper's MAC count; densities: {gated layer: d}."""
    if isinstance(channels, Gate):
        return winner_count(densities[channels.layer], channels.count)
    if isinstance(channels, Silent):
        return 0
    if isinstance(channels, Concat):
        return sum(paper_count(part, densities) for part in channels.parts)
    if isinstance(channels, Meet):
        return min(paper_count(part, densities) for part in channels.parts)
    return channels.count


def expected_count(channels: Channels, densities: Mapping[str, float]) -> float:
    """Active channels on average, if every gate chose at random; densities: {gated layer: d}."""
    if isinstance(channels, Dense):
        return float(channels.count)
    if isinstance(channels, Silent):
        return 0.0
    if isinstance(channels, Gate):
        return densities[channels.layer] * channels.count
    if isinstance(channels, Spread):
        return expected_count(channels.source, densities) * channels.factor
    if isinstance(channels, Concat):
        return sum(expected_count(part, densities) for part in channels.parts)
    shares = [expected_count(part, densities) / part.count for part in channels.parts]
    if isinstance(channels, Union):
        return channels.count * (1 - prod(1 - share for share in shares))
    return channels.count * prod(shares)
