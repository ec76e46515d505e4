"""A program: nodes between inputs and named outputs."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hexane.errors import Error
from hexane.graph import printer
from hexane.graph.decisions import Decision
from hexane.graph.node import Node, Value, make_node
from hexane.graph.tensor_type import Array
from hexane.graph.topological import topological


class Port(NamedTuple):
    """A named output. If its extent along an axis depends on data, its shape has the largest possible extent, and
    `length` names the output that has the number of valid elements."""

    name: str
    value: Value
    length: str = ""
    axis: int = 0


@dataclass(frozen=True)
class Graph:
    """A program: inputs in the order of its signature, named outputs, and the states that it updates.

    `updates` are results of write_state nodes that must run although no output depends on them. `decisions` are the
    choices of passes so far; comparisons of graphs ignore them. A pass that builds a graph with new ports uses
    `dataclasses.replace` to keep the decisions. `taps` are values that can still be found after the passes. Taps keep
    nothing alive in the graph and prevent no fusion, so a tap may later name a node outside the graph. `takes` tells
    which nodes passes may add; a change that would add any other node is left out. None: passes may add all nodes.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Port, ...]
    updates: tuple[Value, ...] = ()
    name: str = "graph"
    decisions: tuple[Decision, ...] = field(default=(), repr=False, compare=False)
    taps: tuple[Port, ...] = field(default=(), repr=False, compare=False)
    takes: Callable[[Node], bool] | None = field(default=None, repr=False, compare=False)
    # Caches, each stored only when complete. If two threads compute a cache at once, the first result stays.
    _order: list[list[Node]] = field(default_factory=list, init=False, repr=False, compare=False)
    _ops: list[frozenset[str]] = field(default_factory=list, init=False, repr=False, compare=False)
    _counts: list[Counter[Value]] = field(default_factory=list, init=False, repr=False, compare=False)
    _users: list[Mapping[Value, Sequence[Node]]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def roots(self) -> tuple[Value, ...]:
        return (*(port.value for port in self.outputs), *self.updates)

    @property
    def nodes(self) -> list[Node]:
        """All nodes, operands first, in the depth-first order that uses values soon."""
        if not self._order:
            self._order.append(topological((*self.inputs, *self.roots)))
        return self._order[0]

    @property
    def ops(self) -> frozenset[str]:
        """The names of all ops in the graph."""
        if not self._ops:
            self._ops.append(frozenset([node.op for node in self.nodes]))
        return self._ops[0]

    def input_names(self) -> list[str]:
        return [str(value.node.attrs["name"]) for value in self.inputs]

    def constants(self) -> dict[str, Array]:
        """The arrays of consts, params and states by their printed digests, bodies included."""
        result = {printer.digest(node.data): node.data for node in self.nodes if node.data is not None}
        for _, body in printer.bodies(self):
            result.update(body.constants())
        return result

    def users(self) -> Mapping[Value, Sequence[Node]]:
        """Returns the readers of each value; a node that reads it twice is listed twice. Outputs are not listed."""
        if not self._users:
            table: dict[Value, list[Node]] = {}
            for node in self.nodes:
                for value in node.inputs:
                    if value is not None:
                        table.setdefault(value, []).append(node)
            self._users.append(table)
        return self._users[0]

    def use_counts(self) -> Counter[Value]:
        """How often each value is read, by outputs and updates too."""
        if not self._counts:
            counts = Counter(self.roots)
            counts.update(value for node in self.nodes for value in node.inputs if value is not None)
            self._counts.append(counts)
        return self._counts[0]

    def readers(self, value: Value) -> tuple[Node, ...]:
        return tuple(self.users().get(value, ()))

    def rewrite(
        self,
        change: Callable[[Node, tuple[Value | None, ...]], Sequence[Value] | None],
        only: Container[str] | None = None,
        became: dict[Value, Value] | None = None,
    ) -> "Graph":
        """A new graph in which `change(node, new_inputs)` replaces each node that has inputs, operands first.

        `change` returns the values that replace the node's outputs, or None to keep the node (with its new inputs). If
        `only` is given, `change` is called only for these ops. `became` receives each replaced value with its new
        value, and may already have new values of inputs. Raises Error if a value would be replaced by one of another
        type, since the types of its readers would be wrong.
        """
        table = {} if became is None else became
        if only is not None and not table and not any(op in only for op in self.ops):
            return self
        known = set(self.nodes) if self.takes is not None else None
        for node in self.nodes:
            if not node.inputs:
                continue
            inputs = tuple([None if v is None else table.get(v, v) for v in node.inputs]) if table else node.inputs
            new = change(node, inputs) if only is None or node.op in only else None
            if known is not None and new is not None and not self._takes_all(new, known):
                new = None
            if new is None:
                if inputs == node.inputs:
                    continue
                new = node.with_inputs(inputs).values
                if known is not None:
                    known.add(new[0].node)
            for old, value in zip(node.values, new, strict=True):
                if value.type is not old.type and value.type != old.type:
                    raise Error(f"[{node.where}] rewritten as {value.node.op}: got {value.type}, need {old.type}")
                table[old] = value
        return self.replace(table) if table else self

    def _takes_all(self, values: Sequence[Value], known: set[Node]) -> bool:
        """True if `takes` permits all new nodes that the values depend on. They become known."""
        assert self.takes is not None
        fresh: dict[Node, None] = {}
        stack = [value.node for value in values]
        while stack:
            node = stack.pop()
            if node in known or node in fresh:
                continue
            if not self.takes(node):
                return False
            fresh[node] = None
            stack += [v.node for v in node.inputs if v is not None]
        known.update(fresh)
        return True

    def replace(self, table: Mapping[Value, Value]) -> "Graph":
        """The graph with its inputs, roots and taps replaced as in `table`."""
        return replace(
            self,
            taps=self.tapped(lambda value: table.get(value, value)),
            inputs=tuple(table.get(v, v) for v in self.inputs),
            outputs=tuple(p._replace(value=table.get(p.value, p.value)) for p in self.outputs),
            updates=tuple(table.get(v, v) for v in self.updates),
        )

    def tapped(self, became: Callable[[Value], Value]) -> tuple[Port, ...]:
        """The taps of this graph in a new one; `became` gives the new value of each value of this graph.

        A tap outside this graph is rebuilt from the new values of its operands, so that a reshape that a pass has
        bypassed is still found. `became` is only called with values of this graph.
        """
        live = {id(node) for node in self.nodes} if self.taps else ()
        now: dict[Value, Value] = {}

        def stands_for(value: Value) -> Value:
            if value not in now:
                now[value] = became(value)
            return now[value]

        for node in topological(port.value for port in self.taps if id(port.value.node) not in live):
            if id(node) not in live:
                inputs = [None if v is None else stands_for(v) for v in node.inputs]
                new = node if tuple(inputs) == node.inputs else make_node(node.op, inputs, node.attrs, node.types)
                now.update(zip(node.values, new.values, strict=True))
        return tuple(port._replace(value=stands_for(port.value)) for port in self.taps)

    def annotated(self, **notes: Any) -> "Graph":
        """This graph with other decisions, taps, `takes` or name, and the same caches about nodes."""
        copy = replace(self, **notes)
        for remembered in ("_order", "_ops", "_counts", "_users"):
            object.__setattr__(copy, remembered, getattr(self, remembered))
        return copy

    def decided(self, *decisions: Decision) -> "Graph":
        """Returns this graph with the decisions appended. Decisions that the graph already has are not repeated.

        Equal new decisions, which may be about two nodes of one line, are all appended.
        """
        if not decisions:
            return self
        known = set(self.decisions)
        new = tuple([decision for decision in decisions if decision not in known])
        return self.annotated(decisions=(*self.decisions, *new)) if new else self

    def __str__(self) -> str:
        return printer.print_graph(self)

    def _repr_html_(self) -> str:
        return printer.graph_svg(self)
