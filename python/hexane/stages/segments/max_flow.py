"""Minimum cuts of a flow network."""

from collections import deque


class Network:
    """A flow network: node 0 is the source, node 1 the sink, and others are added with `node`. Edges are directed."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._out: list[list[int]] = [[], []]  # node -> its outgoing edges; edge e ^ 1 is the reverse of e
        self._head: list[int] = []
        self._left: list[int] = []  # remaining capacity

    def node(self) -> int:
        self._out.append([])
        return len(self._out) - 1

    def edge(self, tail: int, head: int, capacity: int, back: int = 0) -> None:
        """Adds an edge, and its reverse with the capacity `back`."""
        for a, b, c in ((tail, head, capacity), (head, tail, back)):
            self._out[a].append(len(self._head))
            self._head.append(b)
            self._left.append(c)

    def source_side(self) -> set[int]:
        """Returns the smallest set of nodes on the source's side of a minimum cut.

        Dinic's algorithm: saturates shortest paths first, until no path is left.
        """
        while self.SINK in (level := self._levels()):
            at = [0] * len(self._out)
            while self._push(level, at):
                pass
        return set(level)

    def _levels(self) -> dict[int, int]:
        """Returns the distance of each reachable node from the source, in edges with remaining capacity."""
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
        """Saturates one path from source to sink along the levels. Returns False if there is no such path. at: for each
        node, how many of its first edges are known to lead to no path."""
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
