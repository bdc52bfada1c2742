"""Where every value lies: the padding around its planes, and its place in one arena.

A value's planes carry as much zero padding as the widest convolution that reads them asks for
(kernels/run/planes.h). Values that are never needed at the same time share memory; a step that may work in
place writes over its input when nobody reads that again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.engine.lanes import is_depthwise
from penstock.engine.steps import Affine, Conv, ListedConv, Network, Scale, Step, Value
from penstock.native import native

_VECTOR_SLACK = 32  # kernels/run/planes.h, kVectorSlack
_ALIGN = 16
_FEW_SETS = 512  # kernels/run/pixels.h, pixel_floats
_IMAGE_CHANNELS = 4  # kernels/int8/pixels.h, kImageChannels


@dataclass(frozen=True)
class Placement:
    """Offsets of values in the arena, in floats, and the arena's size."""

    offsets: dict[int, int]
    floats: int


def value_floats(value: Value) -> int:
    """Floats that a value takes, as kernels/run/planes.h counts them."""
    if not value.is_map:
        return _round(value.channels)
    pitch = value.width + value.halo
    if value.codes is not None:  # kernels/int8/pixels.h
        pixels = (value.height + 2 * value.halo) * pitch + value.halo + 4
        channels = value.channels if value.channels <= _IMAGE_CHANNELS else (value.channels + 7) // 8 * 8
        return _round((pixels * channels + 64 + 3) // 4)
    if value.in_pixels:  # kernels/run/pixels.h
        pixels = (value.height + 2 * value.halo) * pitch + value.halo
        return _round(pixels * _pixel_floats(value.channels) + _VECTOR_SLACK)
    used = (value.height + 2 * value.halo) * pitch + 2 * value.halo + _VECTOR_SLACK
    return _round(used) * value.channels


def _pixel_floats(channels: int) -> int:
    floats = _round(channels)
    return floats + _ALIGN if floats % _FEW_SETS == 0 else floats


def place(network: Network) -> Placement:
    """Choose halos (written into the values) and offsets.

    Scratch is not known here: the engine places it, together with the values, when it loads the program.
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
    rooms, end = _pack(lives, sizes)
    return Placement({value: rooms[room] for value, room in home.items()}, end)


def _choose_halos(network: Network) -> None:
    for step in network.steps:
        if isinstance(step, Conv | ListedConv):
            source = network.values[step.inputs[0]]
            # In pixels, depthwise convolutions look where the map ends.
            if not (isinstance(step, Conv) and source.in_pixels and is_depthwise(step, source.channels)):
                source.halo = max(source.halo, *step.padding)
    # A convolution that adds writes over its addend, so the two need the same halo. In a chain of residual
    # blocks the halo of the last block reaches the first, hence the pass from back to front.
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
        if source is not None and last_read[source] == number and _alike(network, source, step):
            home[step.output] = home[source]
    return home


def _overwrites(step: Step) -> int | None:
    """The input that the step may write over."""
    if (isinstance(step, Affine) and step.keeps_zero and len(step.inputs) == 1) or isinstance(step, Scale):
        return step.inputs[0]
    if isinstance(step, Conv) and len(step.inputs) == 2 and step.inputs[0] != step.inputs[1]:
        return step.inputs[1]
    return None


def _alike(network: Network, source: int, step: Step) -> bool:
    a, b = network.values[source], network.values[step.output]
    if a.codes is not None or b.codes is not None:
        return False
    if (a.in_pixels or b.in_pixels) and not isinstance(step, Conv):
        return False
    return (a.layout, a.halo, a.channels) == (b.layout, b.halo, b.channels)


def _pack(lives: dict[int, tuple[int, int]], sizes: dict[int, int]) -> tuple[dict[int, int], int]:
    """Offsets such that rooms alive at the same time do not overlap, and their end (kernels/run/rooms.h)."""
    rooms = np.array([(*lives[room], sizes[room]) for room in sizes], np.int64).reshape(-1, 3)
    offsets = np.empty(len(rooms), np.int64)
    end = native().place_rooms(rooms, offsets)
    return dict(zip(sizes, offsets.tolist(), strict=True)), int(end)


def _round(floats: int) -> int:
    return (floats + _ALIGN - 1) // _ALIGN * _ALIGN
