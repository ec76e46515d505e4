"""Computes values a second time if keeping them needs too much memory (rematerialisation).

    h = tanh(x)  ...  dx = f(dy, h)                 h is kept in between
    h = tanh(x)  ...  h0 = tanh(x);  dx = f(dy, h0)

A greedy search: of the values that wait for a later reader at the point with the most live bytes, it drops the value
that frees the most bytes for the cost of its copy. A dropped value is computed again before the later reader. Copies
may be dropped too.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import LEAVES, OPS
from hexane.ops.records.program import PROGRAM
from hexane.program.work import multiply_adds
from hexane.stages.bufferize.gradients import in_states
from hexane.stages.recompute.copies import barrier

MOST_TRIED = 12  # The most values tried in one step of the search. The search ends if none of them helps.
MOST_DROPPED = 4  # The most dropped values per node of the graph.
OPERATIONS_PER_BYTE = 16  # This many operations take about as long as moving a byte.
STEP = 0.97  # Each graph needs at most this share of the previous graph's bytes.


class Ref(NamedTuple):
    """An output of an entry."""

    entry: int
    output: int


Inputs = tuple[Ref | None, ...]


class Facts(NamedTuple):
    """Facts about an entry. is_view: its results are views. is_leaf: its results have their own memory, outside the
    arena. overwrites: its first result may overwrite an operand. sizes: arena bytes of each result. cost: its estimated
    time, in bytes that could be moved in this time."""

    node: Node
    is_view: bool
    is_leaf: bool
    overwrites: bool
    sizes: tuple[int, ...]
    cost: int


@dataclass(frozen=True)
class _Entries:
    """A graph in which nodes may be computed several times. An entry is one computation of a node. facts, inputs: by
    the number of the entry. order: entries without leaves, in execution order. origin: the original entry of each copy.
    roots: the values read at the end."""

    facts: dict[int, Facts]
    inputs: dict[int, Inputs]
    order: list[int]
    origin: dict[int, int]
    roots: list[Ref]

    @cached_property
    def position(self) -> dict[int, int]:
        return {entry: i for i, entry in enumerate(self.order)}

    @cached_property
    def base(self) -> dict[Ref, Ref]:
        """Maps each view to the value whose memory it is in."""
        result: dict[Ref, Ref] = {}
        for entry in self.order:
            if self.facts[entry].is_view:
                of = self.inputs[entry][0]
                assert of is not None
                result[Ref(entry, 0)] = result.get(of, of)
        return result

    @cached_property
    def uses(self) -> dict[Ref, list[int]]:
        """Maps each value that is no view to the positions where it is read, also through views. Roots are read at the
        position after the last entry."""
        result: dict[Ref, list[int]] = {}
        for i, entry in enumerate(self.order):
            if not self.facts[entry].is_view:
                for ref in self.inputs[entry]:
                    if ref is not None:
                        result.setdefault(self.base.get(ref, ref), []).append(i)
        for root in self.roots:
            result.setdefault(self.base.get(root, root), []).append(len(self.order))
        return result

    @cached_property
    def readers(self) -> dict[Ref, list[tuple[int, Ref]]]:
        """Maps each value that is no view to the entries that read it or a view of it, each with the value that it
        reads. Views count as entries."""
        result: dict[Ref, list[tuple[int, Ref]]] = {}
        for entry in self.order:
            for ref in self.inputs[entry]:
                if ref is not None:
                    result.setdefault(self.base.get(ref, ref), []).append((entry, ref))
        return result

    @cached_property
    def writes(self) -> dict[Ref, int]:
        """Maps each state, and each result of a write to a state, to the position where its memory is overwritten."""
        result: dict[Ref, int] = {}
        for i, entry in enumerate(self.order):
            state = self.inputs[entry][0] if self.facts[entry].node.op == "write_state" else None
            if state is not None:
                result[state] = i
        return result

    @cached_property
    def versions(self) -> dict[int, list[int]]:
        """Maps each original entry to its copies."""
        result: dict[int, list[int]] = {}
        for copy, entry in self.origin.items():
            result.setdefault(entry, []).append(copy)
        return result

    @cached_property
    def live(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Live arena bytes at each position. An elementwise result overwrites an operand without a later reader."""
        change, saved = [0] * (len(self.order) + 2), [0] * len(self.order)
        for i, entry in enumerate(self.order):
            facts = self.facts[entry]
            for output, size in enumerate(facts.sizes):
                if size:
                    change[i] += size
                    change[self.uses.get(Ref(entry, output), (i,))[-1] + 1] -= size
            if facts.overwrites and any(self._ends(ref, i, facts.sizes[0]) for ref in self.inputs[entry]):
                saved[i] = facts.sizes[0]
        return np.cumsum(change, dtype=np.int64)[: len(self.order)] - saved

    def _ends(self, ref: Ref | None, position: int, size: int) -> bool:
        base = None if ref is None else self.base.get(ref, ref)
        return base is not None and self.uses[base][-1] == position and self.size(base) == size

    def size(self, ref: Ref) -> int:
        return self.facts[ref.entry].sizes[ref.output]

    @cached_property
    def need(self) -> tuple[int, int]:
        """The largest number of live bytes, and at how many positions it occurs."""
        most = int(self.live.max(initial=0))
        return most, int(np.count_nonzero(self.live == most))

    def is_there(self, base: Ref, position: int) -> bool:
        """True if a value that is no view is kept until this position, or if a state is not overwritten before it."""
        if self.facts[base.entry].is_leaf:
            return self.writes.get(base, position) >= position
        return self.position.get(base.entry, position) < position <= self.uses.get(base, [-1])[-1]


def rematerialized(graph: Graph, order: Sequence[Node], limit: int) -> Iterator[tuple[Graph, list[Value]]]:
    """Yields graphs in which values are computed again, so that at most about `limit` bytes are live. Each yielded
    graph comes with the values of its nodes in execution order. The graph with the fewest copies comes first; each
    later graph needs less memory. Yields nothing if no copy helps.

    order: the nodes of the graph, in topological order.
    """
    entries = _entries(graph, order)
    given = len(entries.facts)
    for _ in range(MOST_DROPPED * len(entries.order)):
        better = _with_one_dropped(entries)
        if better is None:
            break
        entries = better
        if entries.need[0] <= limit:
            given = len(entries.facts)
            yield _graph(graph, entries)
            limit = int(entries.need[0] * STEP)
    if len(entries.facts) > given:
        yield _graph(graph, entries)


def _entries(graph: Graph, order: Sequence[Node]) -> _Entries:
    number = {id(node): i for i, node in enumerate(order)}

    def ref(value: Value) -> Ref:
        return Ref(number[id(value.node)], value.output)

    written = frozenset(in_states(graph))
    return _Entries(
        {i: _facts(node, written) for i, node in enumerate(order)},
        {i: tuple([None if v is None else ref(v) for v in node.inputs]) for i, node in enumerate(order)},
        [i for i, node in enumerate(order) if node.op not in LEAVES],
        {},
        [ref(v) for v in graph.roots],
    )


def _facts(node: Node, written: frozenset[Value]) -> Facts:
    """Returns the facts of a node. written: values that are computed in the memory of a state."""
    if node.op in LEAVES or node.op == "write_state":
        return Facts(node, False, True, False, (0,) * len(node.types), 0)
    op = OPS[node.op]
    if op.view:
        return Facts(node, True, False, False, (0,), 0)
    sizes = tuple([0 if value in written else value.type.bytes for value in node.values])
    moved = sum([v.type.bytes for v in node.inputs if v is not None]) + sum([t.bytes for t in node.types])
    cost = moved + 2 * multiply_adds(node) // OPERATIONS_PER_BYTE
    return Facts(node, False, False, op.elementwise and sizes[0] > 0, sizes, cost)


def _with_one_dropped(entries: _Entries) -> _Entries | None:
    """Returns the entries with one more value dropped, so that the peak of live bytes is lower, or occurs at fewer
    positions. Returns None if no value helps."""
    peak, end = int(entries.live.argmax()), len(entries.order)
    candidates: list[tuple[float, Ref, int]] = []
    for ref, uses in entries.uses.items():
        size, at = entries.size(ref), entries.position.get(ref.entry, end)
        k = bisect_left(uses, peak)
        if size and at < peak and k < len(uses) and uses[k] not in (peak, end):
            candidates.append((size / (1 + entries.facts[ref.entry].cost), ref, uses[k]))
    candidates.sort(key=lambda one: -one[0])
    tried: list[tuple[float, _Copies]] = []
    for _, ref, position in candidates[: 2 * MOST_TRIED]:
        copies = _Copies(entries, ref, position)
        if copies.are_possible:
            tried.append((entries.size(ref) / (1 + copies.cost), copies))
    tried.sort(key=lambda one: -one[0])
    for _, copies in tried[:MOST_TRIED]:
        if (less := copies.added()).need < entries.need:
            return less
    return None


class _Copies:
    """Copies of a dropped value and of the operands that no longer exist, inserted at a position for all later readers.
    made: maps each original entry to its copy."""

    def __init__(self, entries: _Entries, dropped: Ref, position: int) -> None:
        self._entries, self._dropped, self._at = entries, dropped, position
        self._inputs: dict[int, Inputs] = {}  # Inputs of the copies, in execution order.
        self._changed: dict[int, Inputs] = {}  # New inputs of the readers.
        self.made: dict[int, int] = {}
        self.are_possible = True
        place = entries.position
        late = {
            reader: None for reader, ref in entries.readers[dropped] if place[reader] >= position > place[ref.entry]
        }
        for reader in late:
            self._changed[reader] = tuple([self._for_reader(ref) for ref in entries.inputs[reader]])

    def _for_reader(self, ref: Ref | None) -> Ref | None:
        if ref is None or self._entries.base.get(ref, ref) != self._dropped:
            return ref
        return ref if self._entries.position[ref.entry] >= self._at else self._again(ref)

    def _again(self, ref: Ref) -> Ref:
        """Returns the value as it exists at the position: the kept value if there is one, else a copy."""
        entries, (entry, output) = self._entries, ref
        if entry in self.made:
            return Ref(self.made[entry], output)
        base = entries.base.get(ref, ref)
        for one in (base, *[Ref(other, base.output) for other in self._others(base.entry)]):
            if one != self._dropped and entries.is_there(one, self._at):
                if one == base or ref == base:
                    return ref if one == base else one
                break  # the value exists only as a view of another copy
        if entries.facts[entry].is_leaf or entries.facts[entry].node.op == PROGRAM:
            self.are_possible = False
        if not self.are_possible:
            return ref
        inputs = tuple([None if v is None else self._again(v) for v in entries.inputs[entry]])
        copy = self.made[entry] = len(entries.facts) + len(self.made)
        self._inputs[copy] = inputs
        return Ref(copy, output)

    def _others(self, entry: int) -> list[int]:
        origin = self._entries.origin.get(entry, entry)
        return [other for other in (origin, *self._entries.versions.get(origin, ())) if other != entry]

    @property
    def cost(self) -> int:
        """The cost of the copies. A copy is free if it replaces the original, which then has no earlier reader."""
        entry = self._dropped.entry
        is_moved = all(at >= self._at for at in self._entries.uses[self._dropped])
        facts = self._entries.facts
        return sum([facts[copied].cost for copied in self.made]) - (facts[entry].cost if is_moved else 0)

    def added(self) -> _Entries:
        entries = self._entries
        inputs = {**entries.inputs, **self._changed, **self._inputs}
        order = [*entries.order[: self._at], *self._inputs, *entries.order[self._at :]]
        return replace(
            entries,
            facts=entries.facts | {copy: entries.facts[entry] for entry, copy in self.made.items()},
            inputs=inputs,
            order=_read(order, inputs, entries.roots),
            origin=entries.origin | {copy: entries.origin.get(entry, entry) for entry, copy in self.made.items()},
        )


def _read(order: list[int], inputs: dict[int, Inputs], roots: list[Ref]) -> list[int]:
    """Returns the order without entries that have no reader."""
    read = {ref.entry for ref in roots}
    for entry in reversed(order):
        if entry in read:
            read.update([ref.entry for ref in inputs[entry] if ref is not None])
    return [entry for entry in order if entry in read]


def _graph(graph: Graph, entries: _Entries) -> tuple[Graph, list[Value]]:
    """Builds the graph of the entries. Copies read their operands through barriers."""
    nodes = {i: facts.node for i, facts in entries.facts.items() if facts.node.op in LEAVES}
    seen: set[int] = set()
    order: list[Value] = []
    for i, entry in enumerate(entries.order):
        inputs = tuple([None if r is None else Value(nodes[r.entry], r.output) for r in entries.inputs[entry]])
        node = entries.facts[entry].node.with_inputs(inputs)
        there = _there(entries, nodes, i)
        while id(node) in seen and (after := next(there, None)) is not None:  # None: nothing to wait for
            node = node.with_inputs(tuple([None if v is None else barrier(v, after) for v in inputs]))
        seen.add(id(node))
        nodes[entry] = node
        order += node.values
    now = {old: Value(nodes[ref.entry], ref.output) for old, ref in zip(graph.roots, entries.roots, strict=True)}
    counts = Counter([entries.origin.get(entry, entry) for entry in entries.order])
    decided = [
        Decision("rematerialize", entries.facts[entry].node.where, f"computed {count} times", "to keep less")
        for entry, count in counts.items()
        if count > 1 and not entries.facts[entry].is_view
    ]
    return replace(graph.replace(now), taps=()).decided(*decided), order


def _there(entries: _Entries, nodes: dict[int, Node], position: int) -> Iterator[Value]:
    """Yields the values that a barrier may wait for, the latest first: values that are computed before the position and
    read later."""
    for entry in reversed(entries.order[:position]):
        facts = entries.facts[entry]
        if not facts.is_view and not facts.is_leaf and entries.is_there(Ref(entry, 0), position):
            yield Value(nodes[entry], 0)
