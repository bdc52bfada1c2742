"""Memory: what is needed at the same time does not overlap, and little of it is left empty."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.native import native

# The first step that needs a room, how many more do, and its size in cache lines.
_ROOMS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 9)), max_size=24)


def _place(rooms: list[tuple[int, int, int]]) -> tuple[np.ndarray, int]:
    offsets = np.full(len(rooms), -1, np.int64)
    end = native().place_rooms(np.array(rooms, np.int64).reshape(-1, 3), offsets)
    return offsets, end


@given(_ROOMS)
def test_rooms_needed_at_the_same_time_lie_apart(drawn: list[tuple[int, int, int]]) -> None:
    rooms = [(first, first + more, 16 * lines) for first, more, lines in drawn]
    offsets, end = _place(rooms)
    used: dict[int, set[int]] = {}
    for (first, last, floats), offset in zip(rooms, offsets.tolist(), strict=True):
        assert offset % 16 == 0
        assert 0 <= offset <= offset + floats <= end
        lines = set(range(offset // 16, (offset + floats) // 16))
        for step in range(first, last + 1):
            assert not used.setdefault(step, set()) & lines
            used[step] |= lines
    assert end == max((int(o) + r[2] for o, r in zip(offsets, rooms, strict=True)), default=0)
    busiest = max((16 * len(lines) for lines in used.values()), default=0)
    assert busiest <= end <= sum(floats for _, _, floats in rooms)


def test_a_chain_of_maps_takes_no_more_than_two_neighbours() -> None:
    sizes = [64, 512, 128, 256, 256, 32, 480]
    _, end = _place([(step, step + 1, size) for step, size in enumerate(sizes)])
    assert end == max(a + b for a, b in pairwise(sizes))


def test_very_many_rooms_are_placed_one_after_the_other_in_time() -> None:
    rooms = [(step, step + 1, 16 * (1 + step % 3)) for step in range(5000)]
    offsets, end = _place(rooms)
    ends = offsets + np.array([floats for _, _, floats in rooms])
    for step in range(len(rooms) - 1):
        assert ends[step] <= offsets[step + 1] or ends[step + 1] <= offsets[step]
    assert end <= 16 * 8


@pytest.mark.parametrize("room", [(-1, 0, 16), (2, 1, 16), (0, 1 << 40, 16), (0, 0, -16), (0, 0, 1 << 50)])
def test_a_room_that_makes_no_sense_is_refused(room: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="rooms: expected"):
        _place([room])
