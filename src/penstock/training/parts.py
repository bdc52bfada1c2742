"""Which part of a batch is whose: batches divide over processes, and each process's part into forwards."""

from __future__ import annotations

from itertools import pairwise

from penstock.errors import TrainingError


def divide(count: int, parts: int) -> list[slice]:
    """`count` things in `parts` neighbouring slices, the first ones longer by one where it does not divide.

    >>> divide(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    if count < parts:
        raise TrainingError(
            f"a batch of {count} images cannot be divided into {parts} parts (processes × accumulate); "
            "use a larger batch size, fewer parts, or another number of images"
        )
    each, longer = divmod(count, parts)
    edges = [index * each + min(index, longer) for index in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


class Portions:
    """The parts of one process among several."""

    def __init__(self, process: int, processes: int, accumulate: int) -> None:
        self.first = process * accumulate
        self.accumulate = accumulate
        self.parts = processes * accumulate

    def own(self, count: int) -> slice:
        """What this process needs of a batch of `count` images."""
        slices = self._slices(count)
        return slice(slices[0].start, slices[-1].stop)

    def forwards(self, count: int, skipped: int = 0) -> list[slice]:
        """The same in single forwards, counted from the start of the own part, without `skipped` ones."""
        if skipped:
            own = self.own(count)
            return divide(own.stop - own.start - skipped, self.accumulate)
        slices = self._slices(count)
        start = slices[0].start
        return [slice(one.start - start, one.stop - start) for one in slices]

    def _slices(self, count: int) -> list[slice]:
        return divide(count, self.parts)[self.first : self.first + self.accumulate]
