"""Writes ops that have no kernel of their own as other ops."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.ops import OPS, Op, apply
from hexane.ops.compose import lift
from hexane.targets import Target


def has_kernel(node: Node) -> bool:
    return bool(OPS[node.op].kernel)


class Emit:
    """The `b` of an expansion: `b.add(x, 1.0)` makes a value that comes from the expanded node's source."""

    def __init__(self, sources: tuple[str, ...], runs: Callable[[Node], bool] = has_kernel) -> None:
        self._sources, self._runs = sources, runs

    def const(self, array: Array) -> Value:
        return constant(array)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self.apply, name)

    def apply(self, name: str, *inputs: Value | Array | float | None, **attrs: Any) -> Any:
        """The op's output, or a tuple where its record has several."""
        op = OPS[name]
        values = apply(op, lift(inputs, self._sources), attrs, self._sources)
        if op.expand is None or self._runs(values[0].node):
            return values if len(values) > 1 else values[0]
        return op.expand(self, *values[0].node.inputs, **values[0].node.attrs)


def expand(graph: Graph, target: Target) -> Graph:
    """%1 = linear(%x, %w, %b)  ->  %1 = matmul(%x, %w, %b) {transpose_y=True}

    Every op whose record has `expand` and no kernel, until none is left. Keeps the graph's meaning.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        op = OPS.get(node.op)
        return None if op is None or op.kernel or op.expand is None else expanded(op, node, inputs)

    return graph.rewrite(change)


def expanded(
    op: Op, node: Node, inputs: tuple[Value | None, ...], runs: Callable[[Node], bool] = has_kernel
) -> tuple[Value, ...]:
    """What the node's record writes it as, with ops that `runs` holds for."""
    assert op.expand is not None
    result = op.expand(Emit(node.sources, runs), *inputs, **node.attrs)
    return (result,) if isinstance(result, Value) else tuple(result)
