"""Writes ops that have no kernel of their own as other ops."""

from collections.abc import Callable
from typing import Any

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.ops import OPS, Op, apply


class Emit:
    """The `b` of an expansion: `b.add(x, y)` makes a value that comes from the expanded node's source."""

    def __init__(self, sources: tuple[str, ...]) -> None:
        self._sources = sources

    def const(self, array: Array) -> Value:
        return constant(array)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = OPS[name]
        return lambda *inputs, **attrs: self._apply(op, inputs, attrs)

    def _apply(self, op: Op, inputs: tuple[Value | None, ...], attrs: dict[str, Any]) -> Any:
        values = apply(op, inputs, attrs, self._sources)
        if op.expand is None:
            return values if len(values) > 1 else values[0]
        return op.expand(self, *values[0].node.inputs, **values[0].node.attrs)


def expand(graph: Graph) -> Graph:
    """%1 = linear(%x, %w, %b)  ->  %1 = matmul(%x, %w, %b) {transpose_y=True}

    Every op whose record has `expand`, until none is left. Keeps the graph's meaning.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        op = OPS.get(node.op)
        if op is None or op.expand is None:
            return None
        result = op.expand(Emit(node.sources), *inputs, **node.attrs)
        return (result,) if isinstance(result, Value) else tuple(result)

    return graph.rewrite(change)
