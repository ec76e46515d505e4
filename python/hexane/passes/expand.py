"""Writes ops that have no kernel of their own as other ops."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.compose import lift


class Emit:
    """The `b` of an expansion: `b.add(x, 1.0)` makes a value that comes from the expanded node's source."""

    def __init__(self, sources: tuple[str, ...]) -> None:
        self._sources = sources

    def const(self, array: Array) -> Value:
        return constant(array)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self.apply, name)

    def apply(self, name: str, *inputs: Value | Array | float | None, **attrs: Any) -> Any:
        """The op's output, or a tuple where its record has several."""
        op = OPS[name]
        values = apply(op, lift(inputs, self._sources), attrs, self._sources)
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
