"""Chooses the layout of the layers between convolutions, so that fewer transposes and reshapes are needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hexane.graph import Graph, Node, Value, constant, tensor_type, unique
from hexane.graph.decisions import Decision
from hexane.ops.records.engine.planar import WITH_SLOTS, WITHOUT
from hexane.passes.engine.chain import ALIKE, slots_of, takes
from hexane.passes.engine.fuse.layouts import back, is_number, laid_shape, laid_type, operands_of_axes, relaid, there
from hexane.passes.engine.legalize.check_layers import refusal
from hexane.passes.engine.moves import (
    MOVES,
    RANK,
    Shape,
    Step,
    four_axes,
    is_layer,
    layers_of,
    reads,
    shape_behind,
    step_of,
    written,
)
from hexane.passes.engine.ways import traced, ways
from hexane.targets import Chip

STAGE = "channels_first"
SOURCE = "hexane, exact"
CHANNELS_FIRST = (0, 3, 1, 2)  # (batch, rows, tokens, channels) -> (batch, channels, rows, tokens)
ROWS_AS_COLUMNS = (0, 1, 3, 2)  # (batch, heads, tokens, channels) -> (batch, heads, channels, tokens)
LAYOUTS = (CHANNELS_FIRST, ROWS_AS_COLUMNS)
SWEEPS = 3  # rounds over all groups: the cost of a group depends on the layouts of its neighbours

_EACH = frozenset((*(f"anec.{name}" for name in (*WITH_SLOTS, *WITHOUT)), "anec.neuron", "anec.cast"))
_AXIS = frozenset(("anec.concat", "anec.input_view", "anec.gain_offset_control"))
_AXES = frozenset(("anec.layer_norm", "anec.reduction", "anec.l2_norm", "anec.reverse"))


def channels_first(graph: Graph, chip: Chip) -> Graph:
    """anec.convolution(transpose(layer_norm(transpose(anec.convolution(%x, %v)) : [1, 1, 32, 64])), %w)
      ->  anec.convolution(layer_norm(anec.convolution(%x, %v) : [1, 64, 1, 32]) {axes=(1)}, %w)

    Elementwise layers, and layers that work along one axis, give the same result in any layout. A group is a set of
    layers with a free layout, connected by their values. A group changes its layout if this leaves fewer transposes and
    reshapes around it and the chip accepts every layer. Leading axes of extent 1 first pad each shape to four axes
    (batch, rows, tokens, channels). The new layout moves the channels to the second axis, or exchanges the last two
    axes. Constants are transposed at compile time. No result changes.
    """
    if graph.ops.isdisjoint(MOVES) or not 0 < chip.extents.rank >= RANK:
        return graph
    plan = _Plan(graph, chip)
    plan.choose()
    return plan.applied() if any(group.layout for group in plan.groups) else graph


@dataclass(slots=True, eq=False)
class _Group:
    nodes: list[Node] = field(default_factory=list)
    layout: Shape | None = None
    refused: set[Shape] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Edge:
    """A chain of moves between two layers; the chain may be empty. group: the group that consumes its result, or None.
    for_product: only matrix products consume its result."""

    source: Value
    steps: tuple[Step, ...]
    group: _Group | None
    for_product: bool


# ---- layers that run in any layout ----


def _flexible(node: Node) -> bool:
    """True if the layer gives the same values in another layout."""
    if max((t.rank for t in node.types), default=0) > RANK or len(node.types) != 1:
        return False
    if not any(v is not None and v.node.op != "const" for v in node.inputs):
        return False
    if node.op == "anec.reshape":
        x = node.inputs[0]
        return x is not None and x.type.rank <= RANK and four_axes(x.shape) == four_axes(node.types[0].shape)
    if any(s.op not in ("gain_offset", "pre_activation", "post_activation") for s in slots_of(node)):
        return False
    if node.op == "anec.reduction":
        return bool(node.attrs["keep_dims"])
    if node.op == "anec.layer_norm":
        return len(node.attrs["axes"]) == 1
    return node.op in _EACH or node.op in _AXIS or node.op in _AXES


# ---- the choice ----


class _Plan:
    def __init__(self, graph: Graph, chip: Chip) -> None:
        self.graph, self.chip = graph, chip
        self.users = graph.users()
        self.counts = graph.use_counts()
        self.roots = frozenset(graph.roots)
        self.group_of: dict[Node, _Group] = {}
        self.groups = self._grouped()
        self.edges: dict[_Group, list[_Edge]] = {group: [] for group in self.groups}
        self._find_edges()

    def _grouped(self) -> list[_Group]:
        """Returns the groups: flexible layers connected by their values or by a common input of the segment."""
        parent: dict[Node, Node] = {}

        def root(node: Node) -> Node:
            while parent[node] is not node:
                parent[node] = parent[parent[node]]
                node = parent[node]
            return node

        first: dict[Value, Node] = {}
        for node in self.graph.nodes:
            if not _flexible(node) or self._joins_a_product(node):
                continue
            parent[node] = node
            for value in node.inputs:
                if value is None:
                    continue
                if value.node in parent:
                    parent[root(value.node)] = root(node)
                elif not value.node.inputs and value.node.op != "const":  # readers of one input of the segment
                    parent[root(first.setdefault(value, node))] = root(node)
        groups: dict[Node, _Group] = {}
        for node in parent:
            group = groups.setdefault(root(node), _Group())
            group.nodes.append(node)
            self.group_of[node] = group
        # A group of reshapes alone computes nothing.
        result = [group for group in groups.values() if any(node.op not in MOVES for node in group.nodes)]
        self.group_of = {node: group for group in result for node in group.nodes}
        return result

    def _joins_a_product(self, node: Node) -> bool:
        """True if the layer that makes the node's operand has a fixed layout and a free slot for the node."""
        x = node.inputs[0]
        if x is None or node.op not in ALIKE or self.counts[x] != 1 or _flexible(x.node):
            return False
        return takes(x.node, "post_activation" if node.op == "anec.neuron" else "gain_offset")

    def _find_edges(self) -> None:
        edges = dict[_Edge, None]()
        for value, readers in self._values():
            of = self.group_of.get(value.node)
            groups: dict[_Group | None, list[Node]] = {}
            for reader in readers:
                group = self.group_of.get(reader)
                if group is not None and group is of:
                    continue  # within the group
                if group is None and reader.op in MOVES:
                    continue  # inside a chain
                groups.setdefault(group, []).append(reader)
            if value in self.roots:
                groups.setdefault(None, [])
            if not groups:
                continue
            source, steps = self._chain(value)
            for group, nodes in groups.items():
                for_product = value not in self.roots and reads(nodes, value)
                edges[_Edge(source, tuple(steps), group, for_product)] = None
        for edge in edges:
            for group in {self.group_of.get(edge.source.node), edge.group}:
                if group is not None:
                    self.edges[group].append(edge)

    def _values(self) -> Iterator[tuple[Value, Sequence[Node]]]:
        for node in self.graph.nodes:
            if node.op != "const":
                for value in node.values:
                    yield value, self.users.get(value, [])

    def _chain(self, value: Value) -> tuple[Value, list[Step]]:
        """Returns the moves that make the value, and their source: the result of a layer or of a member of a group."""
        steps: list[Step] = []
        at = value
        while at.node.op in MOVES and at.node not in self.group_of and at.node.inputs[0] is not None:
            steps.insert(0, step_of(at.node))
            at = at.node.inputs[0]
        return at, steps

    def choose(self) -> None:
        """Gives each group in turn the layout with the fewest moves around it. Stops when no group changes, or after
        SWEEPS rounds."""
        for _ in range(SWEEPS):
            changed = False
            for group in self.groups:
                changed |= self._choose(group)
            if not changed:
                return

    def _choose(self, group: _Group) -> bool:
        was = group.layout
        least = self._cost(group)
        if least == 0 and was is None:
            return False
        best = was
        for layout in (None, *LAYOUTS):
            if layout in (was, *group.refused):
                continue
            group.layout = layout
            cost = self._cost(group)
            if cost < least and (layout is None or self._is_taken(group, layout)):
                least, best = cost, layout
        group.layout = best
        return best != was

    def _cost(self, group: _Group) -> float:
        """Returns the number of moves around the group. In the original layout the group's own reshapes count too."""
        inner = (
            0
            if group.layout is not None
            else sum(is_layer(step_of(node), _shape(node.inputs[0])) for node in group.nodes if node.op in MOVES)
        )
        return inner + sum(self._layers(edge) for edge in self.edges[group])

    def _layers(self, edge: _Edge) -> float:
        """Returns the number of layers that the chain needs with the layouts chosen so far."""
        source, steps = edge.source.type, list(edge.steps)
        of = self.group_of.get(edge.source.node)
        if of is not None and of.layout is not None:
            steps = [*back(edge.source.type, of.layout), *steps]
            source = tensor_type(source.dtype, laid_shape(edge.source.shape, of.layout))
        if edge.group is not None and edge.group.layout is not None:
            shape = shape_behind(tuple(source.shape), steps)
            if len(shape) > RANK:
                return float("inf")
            steps += there(shape, edge.group.layout)
        if not steps:
            return 0
        candidates = ways(source, steps, self.chip)
        if not candidates:
            changed = len(steps) != len(edge.steps)
            return float("inf") if changed else len(steps)
        alone = edge.source.node if self.counts[edge.source] == 1 else None
        return min(layers_of(way, tuple(source.shape), alone, edge.for_product) for way in candidates)

    def _is_taken(self, group: _Group, layout: Shape) -> bool:
        """True if the chip accepts every layer of the group in the layout."""
        for node in group.nodes:
            if node.op in MOVES:
                continue
            given = [
                v if v is None or is_number(v) else unique("input", "x", laid_type(v, layout))
                for v in node.inputs[: operands_of_axes(node)]
            ]
            if refusal(relaid(node, given, layout).node, self.chip) is not None:
                group.refused.add(layout)
                return False
        return True

    # ---- the graph ----

    def applied(self) -> Graph:
        laid: dict[Value, Value] = {}
        decisions: list[Decision] = []

        def operand(old: Value | None, new: Value | None, layout: Shape, node: Node) -> Value | None:
            if old is None or new is None:
                return None
            if old in laid and self.group_of.get(old.node) is self.group_of[node]:
                return laid[old]
            if new.node.op == "const" and new.node.data is not None:
                data = new.node.data
                moved = data if is_number(new) else data.reshape(four_axes(data.shape)).transpose(layout)
                return constant(np.ascontiguousarray(moved), new.node.sources, new.dtype)
            source, steps = traced(new, there(new.shape, layout))
            candidates = ways(source.type, steps, self.chip)
            way = candidates[0] if candidates else tuple(there(new.shape, layout))
            return written(source if candidates else new, way, node.sources)

        def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
            group = self.group_of.get(node)
            if group is None or group.layout is None:
                return None
            count = 1 if node.op in MOVES else operands_of_axes(node)
            operands = [
                operand(old, new, group.layout, node)
                for old, new in zip(node.inputs[:count], inputs[:count], strict=True)
            ]
            if node.op in MOVES:
                (result,) = operands
                assert result is not None
            else:
                result = relaid(node.with_inputs(inputs), operands, group.layout)
                decisions.append(
                    Decision(STAGE, node.where, "rewritten", f"in the order {group.layout} of its axes", SOURCE)
                )
            laid[node.values[0]] = result
            return (written(result, tuple(back(node.types[0], group.layout)), node.sources),)

        return self.graph.rewrite(change).decided(*decisions)


def _shape(value: Value | None) -> Shape:
    return () if value is None else tuple(value.shape)
