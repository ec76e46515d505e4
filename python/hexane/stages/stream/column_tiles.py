"""Rewrites parts of a graph in stripes of columns, for images so wide that a few rows do not fit in memory.

    y = conv(conv(x))  ->  y = concat(conv(conv(x[:, :, :9])), conv(conv(x[:, :, 7:])))

A stripe is finished before the next one begins, so all tensors inside the part are as narrow as a stripe. Columns that
two stripes need are computed twice. Padding is added at the ends of the image only, not between stripes. So every
element is the sum of the same terms in the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import LEAVES, OPS, apply

COLUMNS = 2  # The axis of columns in a channels-last image.
OF_FIRST = ("lookup", "quantize", "dequantize")  # Ops whose only image is their first operand.


class Columns(NamedTuple):
    """The half-open column range of each stripe, along an axis of a value."""

    axis: int
    first: NDArray[np.int64]
    stop: NDArray[np.int64]

    @property
    def widest(self) -> int:
        return int((self.stop - self.first).max())

    @property
    def sum(self) -> int:
        return int((self.stop - self.first).sum())

    def joined(self, other: "Columns") -> "Columns":
        return Columns(self.axis, np.minimum(self.first, other.first), np.maximum(self.stop, other.stop))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a graph computed in stripes. columns: the columns of each value in it, in execution order. results: the
    values that are read outside the part, with the columns that each stripe contributes."""

    columns: Mapping[Value, Columns]
    results: Mapping[Value, Columns]
    stripes: int

    def share(self, value: Value) -> float:
        """Returns the share of a value's columns in its widest stripe."""
        columns = self.columns.get(value)
        return 1.0 if columns is None else columns.widest / max(1, value.shape[columns.axis])

    @property
    def repeated(self) -> int:
        """The number of additional multiply-accumulates, for columns that several stripes compute."""
        return sum(
            _multiply_adds(value) // value.shape[columns.axis] * (columns.sum - value.shape[columns.axis])
            for value, columns in self.columns.items()
        )


def _multiply_adds(value: Value) -> int:
    node = value.node
    weight = node.inputs[1] if is_window(node) and len(node.inputs) > 1 else None
    return 0 if weight is None else value.type.size * prod(weight.shape[1:])


class TileParts:
    """Finds the columns that a part of a graph needs in stripes. order: the nodes in execution order."""

    def __init__(self, graph: Graph, order: Sequence[Node]) -> None:
        self._place = {node: i for i, node in enumerate(order)}
        self._users = graph.users()
        self._roots = set(graph.roots)
        self._read_until: dict[Value, float] = {}
        self._axes: dict[Value, int] = {}

    def find(self, nodes: Sequence[Node], stripes: int) -> Part | None:
        """Returns these consecutive nodes as a part in stripes, or None if that is impossible."""
        inside = set(nodes)
        if not all(is_striped(node) or passes_on(node) for node in inside):
            return None
        last = max(self._place[node] for node in inside)
        results = [v for node in nodes for v in node.values if not passes_on(node) and self.read_until(v) > last]
        results = list(dict.fromkeys(results))
        if not results or any(v.type.rank != 4 or v.shape[self._axis(v)] < 2 * stripes for v in results):
            return None
        columns: dict[Value, Columns] = {}
        queue: list[tuple[int, Value]] = []

        def need(value: Value, more: Columns) -> bool:
            if value in columns:
                if columns[value].axis != more.axis:
                    return False
                columns[value] = columns[value].joined(more)
            else:
                columns[value] = more
                heappush(queue, (-self._place[value.node], value))
            return True

        given = {value: _divided(value, self._axis(value), stripes) for value in results}
        if not all(need(value, edges) for value, edges in given.items()):
            return None
        while queue:
            _, value = heappop(queue)
            needed = needs(value.node, columns[value])
            if needed is None:
                return None
            for i, more in needed.items():
                operand = value.node.inputs[i]
                assert operand is not None
                if operand.node in inside or self._is_between(operand.node, inside):
                    if not need(operand, more):
                        return None
                elif self._hangs_on(operand.node, inside):
                    return None
        columns = {value: columns[value] for value in sorted(columns, key=lambda value: self._place[value.node])}
        return Part(columns, given, stripes)

    def read_until(self, value: Value) -> float:
        """Returns the position of the last node that reads the value, also through views and concatenations. The
        position is infinite for a root."""
        if value not in self._read_until:
            readers = [
                self.read_until(seen) if passes_on(node) else self._place[node]
                for node in self._users.get(value, ())
                for seen in node.values
            ]
            self._read_until[value] = inf if value in self._roots else max(readers, default=-1)
        return self._read_until[value]

    def _is_between(self, node: Node, inside: set[Node]) -> bool:
        """True if the node only moves results of nodes inside the part, or an input of the model."""
        if not passes_on(node):
            return False
        sources = [v.node for v in node.inputs if v is not None]
        if node.op != "concat":
            return sources[0].op == "input" or sources[0] in inside or self._is_between(sources[0], inside)
        return any(source in inside or self._is_between(source, inside) for source in sources)

    def _hangs_on(self, node: Node, inside: set[Node]) -> bool:
        """True if the node is a view, or a view of a view, of a result that a node inside the part computes."""
        while node.op not in LEAVES and OPS[node.op].view and node.inputs[0] is not None:
            node = node.inputs[0].node
            if node in inside:
                return True
        return False

    def _axis(self, value: Value) -> int:
        """Returns the axis of a value that holds the columns of the image."""
        if value not in self._axes:
            node, axis = value.node, COLUMNS
            if node.op not in LEAVES and not is_window(node) and node.inputs and node.inputs[0] is not None:
                operands = [v for v in node.inputs if v is not None and v.type.rank == 4]
                axis = self._axis(operands[0]) if operands else COLUMNS
                if node.op == "transpose":
                    axis = node.attrs["perm"].index(axis)
            self._axes[value] = axis
        return self._axes[value]


def _divided(value: Value, axis: int, stripes: int) -> Columns:
    edges = np.arange(stripes + 1, dtype=np.int64) * value.shape[axis] // stripes
    return Columns(axis, edges[:-1], edges[1:])


class Striped(NamedTuple):
    """A graph in stripes. order: its values in execution order, one stripe after another. stripe_of: the number of each
    node's stripe."""

    graph: Graph
    order: tuple[Value, ...]
    stripe_of: Mapping[Node, int]


def in_stripes(graph: Graph, order: Sequence[Node], parts: Sequence[Part]) -> Striped:
    """Returns the graph with these disjoint parts in stripes. order: the nodes of the graph, in execution order."""
    writer = _Writer(parts)
    for node in order:
        writer.write(node)
    decisions = tuple(
        Decision(
            "stripes", tuple(part.results)[-1].node.where, "tiled",
            f"{part.stripes} stripes of columns, {part.repeated} multiply-accumulates done more than once",
        )
        for part in parts
    )  # fmt: skip
    result = replace(graph.replace(writer.now), decisions=(*graph.decisions, *decisions))
    alive = set(result.nodes)  # removes views that are no longer read
    return Striped(result, tuple(value for value in writer.order if value.node in alive), writer.stripe_of)


class _Writer:
    """Writes nodes in execution order. At the first node of a part, `_Writer` writes all stripes of the part."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._part = {value.node: part for part in parts for value in part.columns}
        self.now: dict[Value, Value] = {}  # old value -> new value
        self.order: list[Value] = []
        self.stripe_of: dict[Node, int] = {}
        self._stripes = 0

    def write(self, node: Node) -> None:
        part = self._part.get(node)
        if part is not None and next(iter(part.results)) not in self.now:
            self._write_part(part)
        unknown = any(v is not None and v.node in self._part and v not in self.now for v in node.inputs)
        if part is None and not unknown:  # only nodes of the part read a node that is left out
            values = node.with_inputs(tuple(map(self._whole, node.inputs))).values
            self.now |= {old: new for old, new in zip(node.values, values, strict=True) if old != new}
            self.order += values

    def _write_part(self, part: Part) -> None:
        pieces = [self._write_stripe(part, i) for i in range(part.stripes)]
        for value in part.results:
            joined = [values[value] for values in pieces]
            (self.now[value],) = apply(OPS["concat"], joined, {"axis": part.columns[value].axis}, value.node.sources)
            assert self.now[value].type == value.type
            self.order.append(self.now[value])

    def _write_stripe(self, part: Part, i: int) -> dict[Value, Value]:
        """Writes stripe i of a part, and returns this stripe of each result."""
        stripes: dict[Value, Value] = {}
        for value, columns in part.columns.items():
            node = value.node
            operands = list(map(self._whole, node.inputs))
            for k, more in (needs(node, columns) or {}).items():
                operand = node.inputs[k]
                assert operand is not None
                first, stop = int(more.first[i]), int(more.stop[i])
                if operand in stripes:
                    begin = int(part.columns[operand].first[i])
                    operands[k] = self._cut(stripes[operand], more.axis, first - begin, stop - begin, node)
                else:
                    operands[k] = self._cut(self._whole(operand), more.axis, first, stop, node)
            (stripes[value],) = apply(OPS[node.op], operands, _attrs(node, columns, i), node.sources)
            self.stripe_of[stripes[value].node] = self._stripes
            self.order.append(stripes[value])
        given = {}
        for value, edges in part.results.items():
            begin = int(part.columns[value].first[i])
            first, stop = int(edges.first[i]), int(edges.stop[i])
            given[value] = self._cut(stripes[value], edges.axis, first - begin, stop - begin, value.node)
        self._stripes += 1
        return given

    def _whole(self, value: Value | None) -> Value | None:
        return None if value is None else self.now.get(value, value)

    def _cut(self, value: Value | None, axis: int, first: int, stop: int, node: Node) -> Value:
        assert value is not None
        if (first, stop) == (0, value.shape[axis]):
            return value
        begin, end = [0] * value.type.rank, list(value.shape)
        begin[axis], end[axis] = first, stop
        attrs = {"begin": tuple(begin), "end": tuple(end), "stride": (1,) * value.type.rank}
        (piece,) = apply(OPS["slice_by_index"], (value,), attrs, node.sources)
        self.stripe_of[piece.node] = self._stripes
        return piece


def is_window(node: Node) -> bool:
    """True if the node is a convolution or a pool of a channels-last image."""
    a = node.attrs
    known = "strides" in a and "dilations" in a and "pad" in a and a.get("layout") == "nhwc"
    return known and node.types[0].rank == 4 and "output_padding" not in a and not a.get("ceil_mode")


def passes_on(node: Node) -> bool:
    """True if the node only moves elements and its result can be computed in stripes of columns."""
    return node.op in ("concat", "transpose", "slice_by_index") and node.types[0].rank == 4


def is_striped(node: Node) -> bool:
    if len(node.types) != 1 or node.types[0].rank != 4:
        return False
    return is_window(node) or node.op in OF_FIRST or (node.op in OPS and OPS[node.op].elementwise)


def needs(node: Node, columns: Columns) -> dict[int, Columns] | None:
    """Returns the columns of each operand that these columns of the result need. Operands without columns are omitted.
    Returns None if stripes are impossible."""
    axis, (_, first, stop) = columns.axis, columns
    x = node.inputs[0]
    assert x is not None
    if is_window(node):
        return _windows(node, columns)
    if node.op == "transpose":
        return {0: Columns(node.attrs["perm"][axis], first, stop)}
    if node.op == "slice_by_index":
        if node.attrs["stride"][axis] != 1:
            return None
        begin = node.attrs["begin"][axis]
        return {0: Columns(axis, first + begin, stop + begin)}
    if node.op == "concat" and node.attrs["axis"] == axis:
        return None
    if node.op in OF_FIRST:
        rank = max((v.type.rank for v in node.inputs[1:] if v is not None), default=0)
        return None if rank > 1 or (rank == 1 and node.attrs.get("axis") == axis) else {0: columns}
    result = {}
    for i, operand in enumerate(node.inputs):
        if operand is None:
            continue
        own = axis - node.types[0].rank + operand.type.rank
        if own >= 0 and operand.shape[own] != 1:
            result[i] = Columns(own, first, stop)
    return result


def _windows(node: Node, columns: Columns) -> dict[int, Columns] | None:
    x = node.inputs[0]
    assert x is not None
    if columns.axis != COLUMNS:
        return None
    start, stop = _reach(node, columns)
    first, stop = np.maximum(start, 0), np.minimum(stop, x.shape[COLUMNS])
    if (first >= stop).any():  # a window reads padding only
        return None
    result = {0: Columns(COLUMNS, first, stop)}
    for i in range(len(OPS[node.op].inputs), len(node.inputs)):  # the epilogue's operands
        result[i] = columns
    return result


def _reach(node: Node, columns: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the half-open range of the operand's columns that the windows read, including padding."""
    a = node.attrs
    weight = node.inputs[1] if "kernel_sizes" not in a else None
    kernel = a["kernel_sizes"][1] if weight is None else weight.shape[3]
    start = columns.first * a["strides"][1] - a["pad"][2]
    stop = (columns.stop - 1) * a["strides"][1] - a["pad"][2] + a["dilations"][1] * (kernel - 1) + 1
    return start, stop


def _attrs(node: Node, columns: Columns, i: int) -> Mapping[str, object]:
    """Returns the node's attributes for stripe i."""
    a = dict(node.attrs)
    if is_window(node):
        x = node.inputs[0]
        assert x is not None
        start, stop = _reach(node, columns)
        before, after = max(0, -int(start[i])), max(0, int(stop[i]) - x.shape[COLUMNS])
        a["pad"] = (*a["pad"][:2], before, after)
    elif node.op == "slice_by_index":
        width = int(columns.stop[i] - columns.first[i])
        at = columns.axis
        a["begin"] = tuple(0 if k == at else v for k, v in enumerate(a["begin"]))
        a["end"] = tuple(width if k == at else v for k, v in enumerate(a["end"]))
    return a
