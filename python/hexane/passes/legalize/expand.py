"""Writes ops that have no kernel of their own as other ops."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.compose import lift
from hexane.passes.legalize.legalize_dtypes import has_kernel
from hexane.targets import Kernels, Target


class Emit:
    """The `b` of an expansion: `b.add(x, 1.0)` makes a value that comes from the expanded node's source."""

    def __init__(self, sources: tuple[str, ...], kernels: Kernels | None = None) -> None:
        """Ops that these kernels do not take are expanded too; where none are given, those that have no kernel at all."""
        self._sources, self._kernels = sources, kernels

    def const(self, array: Array) -> Value:
        return constant(array)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self.apply, name)

    def apply(self, name: str, *inputs: Value | Array | float | None, **attrs: Any) -> Any:
        """The op's output, or a tuple where its record has several."""
        values = apply(OPS[name], lift(inputs, self._sources), attrs, self._sources)
        expanded = self.expanded(values[0].node, values[0].node.inputs)
        values = values if expanded is None else expanded
        return values if len(values) > 1 else values[0]

    def expanded(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        """What the node's record writes it as, unless a kernel takes it."""
        op = OPS[node.op]
        if op.expand is None:
            return None
        if has_kernel(node, self._kernels) if self._kernels is not None else op.kernel:
            return None
        result = op.expand(self, *inputs, **node.attrs)
        return (result,) if isinstance(result, Value) else tuple(result)


def expand(graph: Graph, target: Target) -> Graph:
    """%1 = linear(%x, %w, %b)  ->  %1 = matmul(%x, %w, %b) {transpose_y=True}

    Every op whose record says how and that no kernel takes in its dtypes or wider ones, until none is left. Keeps the graph's meaning.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        return Emit(node.sources, kernels).expanded(node, inputs) if OPS[node.op].expand is not None else None

    kernels = target.kernels
    return graph.rewrite(change)
