"""Minimum cuts: which nodes stay with the source when a network is cut in two as cheaply as can be."""

from collections import deque


class Network:
    """Nodes 0 (the source), 1 (the sink) and the nodes added with `node`, with directed edges that have a capacity."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._out: list[list[int]] = [[], []]  # edges by the node they leave; edge e ^ 1 is e backwards
        self._head: list[int] = []
        self._left: list[int] = []  # capacity

    def node(self) -> int:
        self._out.append([])
        return len(self._out) - 1

    def edge(self, tail: int, head: int, capacity: int, back: int = 0) -> None:
        """An edge, and one the other way with the capacity `back`."""
        for a, b, c in ((tail, head, capacity), (head, tail, back)):
            self._out[a].append(len(self._head))
            self._head.append(b)
            self._left.append(c)

    def source_side(self) -> set[int]:
        """The smallest set of nodes that a minimum cut leaves with the source.

        Dinic's algorithm: paths of fewest edges first, until none is left.
        """
        while self.SINK in (level := self._levels()):
            at = [0] * len(self._out)
            while self._push(level, at):
                pass
        return set(level)

    def _levels(self) -> dict[int, int]:
        """How many edges with capacity left lead from the source to each node that it reaches."""
        level = {self.SOURCE: 0}
        queue = deque([self.SOURCE])
        while queue:
            node = queue.popleft()
            for e in self._out[node]:
                if self._left[e] and self._head[e] not in level:
                    level[self._head[e]] = level[node] + 1
                    queue.append(self._head[e])
        return level

    def _push(self, level: dict[int, int], at: list[int]) -> bool:
        """Fills one path from source to sink along the levels; `at`: the edges that lead nowhere any more are before
        it."""
        path: list[int] = []
        node = self.SOURCE
        while node != self.SINK:
            if at[node] < len(self._out[node]):
                e = self._out[node][at[node]]
                if self._left[e] and level.get(self._head[e]) == level[node] + 1:
                    path.append(e)
                    node = self._head[e]
                else:
                    at[node] += 1
            elif path:
                node = self._head[path.pop() ^ 1]
                at[node] += 1
            else:
                return False
        flow = min(self._left[e] for e in path)
        for e in path:
            self._left[e] -= flow
            self._left[e ^ 1] += flow
        return True
