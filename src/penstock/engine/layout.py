"""Where every value lies: the padding around its planes, and its place in one arena.

A value's planes carry as much zero padding as the widest convolution that reads them asks for
(kernels/planes.h). Values that are never needed at the same time share memory; a step that may work in place
writes over its input when nobody reads that again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.engine.steps import Affine, Conv, Network, Scale, Step, Value

_VECTOR_SLACK = 32  # kernels/planes.h, kVectorSlack
_ALIGN = 16


@dataclass(frozen=True)
class Placement:
    """Offsets of values in the arena, in floats, and the arena's size."""

    offsets: dict[int, int]
    floats: int


def value_floats(value: Value) -> int:
    """Floats that a value takes, as kernels/planes.h counts them."""
    if not value.planes:
        return _round(value.channels)
    pitch = value.width + value.halo
    used = (value.height + 2 * value.halo) * pitch + 2 * value.halo + _VECTOR_SLACK
    return _round(used) * value.channels


def place(network: Network, scratch: Sequence[int] = ()) -> Placement:
    """Choose halos (written into the values) and offsets.

    scratch: floats that each step needs besides its values; room is kept for them.
    """
    _choose_halos(network)
    last_read = {value: number for number, step in enumerate(network.steps) for value in step.inputs}
    home = _share(network, last_read)
    lives: dict[int, tuple[int, int]] = {}
    sizes: dict[int, int] = {}
    for number, step in enumerate(network.steps):
        if step.output < 0:
            continue
        room = home[step.output]
        end = last_read.get(step.output, number)
        begin, before = lives.get(room, (number, end))
        lives[room] = (begin, max(end, before))
        sizes[room] = max(sizes.get(room, 0), value_floats(network.values[step.output]))
    for number, floats in enumerate(scratch):
        if floats:
            lives[-1 - number], sizes[-1 - number] = (number, number), _round(floats)
    rooms = _pack(lives, sizes)
    offsets = {value: rooms[room] for value, room in home.items()}
    return Placement(offsets, max(rooms[room] + size for room, size in sizes.items()))


def _choose_halos(network: Network) -> None:
    for step in network.steps:
        if isinstance(step, Conv):
            source = network.values[step.inputs[0]]
            source.halo = max(source.halo, *step.padding)
    # A convolution that adds works in the memory of its addend, so both must lie alike; chains of blocks need
    # this from the last to the first.
    for step in [*reversed(network.steps), *network.steps]:
        if isinstance(step, Conv) and len(step.inputs) == 2:
            skip, result = network.values[step.inputs[1]], network.values[step.output]
            skip.halo = result.halo = max(skip.halo, result.halo)


def _share(network: Network, last_read: dict[int, int]) -> dict[int, int]:
    """{value: the value whose memory it uses}."""
    home: dict[int, int] = {}
    for number, step in enumerate(network.steps):
        if step.output < 0:
            continue
        home[step.output] = step.output
        source = _overwrites(step)
        if source is not None and last_read[source] == number and _alike(network, source, step.output):
            home[step.output] = home[source]
    return home


def _overwrites(step: Step) -> int | None:
    """The input that the step may write over."""
    if (isinstance(step, Affine) and step.keeps_zero) or isinstance(step, Scale):
        return step.inputs[0]
    if isinstance(step, Conv) and len(step.inputs) == 2 and step.inputs[0] != step.inputs[1]:
        return step.inputs[1]
    return None


def _alike(network: Network, first: int, second: int) -> bool:
    a, b = network.values[first], network.values[second]
    return (a.planes, a.halo, a.channels) == (b.planes, b.halo, b.channels)


def _pack(lives: dict[int, tuple[int, int]], sizes: dict[int, int]) -> dict[int, int]:
    """Offsets such that rooms alive at the same time do not overlap; of a few orders of placing, the best."""
    load: dict[int, int] = {}
    for room, (first, last) in lives.items():
        for number in range(first, last + 1):
            load[number] = load.get(number, 0) + sizes[room]
    busiest = {room: max(load[n] for n in range(first, last + 1)) for room, (first, last) in lives.items()}
    orders = (
        sorted(sizes, key=lambda r: (-sizes[r], lives[r])),
        sorted(sizes, key=lambda r: (-busiest[r], -sizes[r], lives[r])),
        sorted(sizes, key=lambda r: (-busiest[r], sizes[r], lives[r])),
        sorted(sizes, key=lambda r: (-busiest[r], lives[r])),
        sorted(sizes, key=lambda r: (lives[r], -sizes[r])),
    )
    found = [_place_in_order(order, lives, sizes) for order in orders]
    return min(found, key=lambda offsets: max(offsets[room] + sizes[room] for room in sizes))


def _place_in_order(
    order: list[int], lives: dict[int, tuple[int, int]], sizes: dict[int, int]
) -> dict[int, int]:
    """Each room as low as it fits beside those that were placed before it."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first step, last step
    offsets: dict[int, int] = {}
    for room in order:
        first, last = lives[room]
        offset = 0
        for low, high, begin, end in sorted(placed):
            if end < first or begin > last:
                continue
            if offset + sizes[room] <= low:
                break
            offset = max(offset, high)
        offsets[room] = offset
        placed.append((offset, offset + sizes[room], first, last))
    return offsets


def _round(floats: int) -> int:
    return (floats + _ALIGN - 1) // _ALIGN * _ALIGN
