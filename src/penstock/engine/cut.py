"""Minimum cuts: which of two ways each step of a network takes when all costs together are least."""

from __future__ import annotations

from collections import deque
from itertools import pairwise


class Graph:
    """Capacities between nodes; `cut` finds the side of the source in a minimum cut (Edmonds and Karp)."""

    def __init__(self, nodes: int) -> None:
        self.left: list[dict[int, float]] = [{} for _ in range(nodes)]

    def add(self, a: int, b: int, capacity: float) -> None:
        self.left[a][b] = self.left[a].get(b, 0.0) + capacity
        self.left[b].setdefault(a, 0.0)

    def cut(self, source: int, sink: int) -> set[int]:
        while True:
            before = self._search(source)
            if sink not in before:
                return set(before)
            path = [sink]
            while path[-1] != source:
                path.append(before[path[-1]])
            path.reverse()
            flow = min(self.left[a][b] for a, b in pairwise(path))
            for a, b in pairwise(path):
                self.left[a][b] -= flow
                self.left[b][a] += flow

    def _search(self, source: int) -> dict[int, int]:
        """Nodes that flow can reach, each with the one it comes from."""
        before = {source: source}
        open_ = deque([source])
        while open_:
            node = open_.popleft()
            for other, capacity in self.left[node].items():
                if capacity > 1e-6 and other not in before:
                    before[other] = node
                    open_.append(other)
        return before
