"""Creates the steps of nodes whose operands are placed."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hexane.graph import Node, Value
from hexane.ops import LEAVES, OPS
from hexane.program import Step, View
from hexane.targets import Kernels, Target


class Operands(NamedTuple):
    """The views that a step reads and writes."""

    inputs: Sequence[View]
    outputs: Sequence[View]


class Copy(NamedTuple):
    """A copy of elements to a second place."""

    source: View
    target: View


def emit_steps(
    order: Sequence[Node],
    views: Mapping[Value, View],
    copies: Mapping[int, Sequence[Copy]],
    target: Target,
    operands: Mapping[int, Operands],
    done: Collection[int] = (),
) -> Iterator[Step]:
    """Yields the step of each node that computes something, followed by the node's copies. copies: by the id of a node.
    operands: by the id of a node, the views that it reads and writes instead of `views`. done: ids of nodes
    that need no step."""
    for node in order:
        if node.op not in (*LEAVES, "concat") and not OPS[node.op].view and id(node) not in done:
            elsewhere = operands.get(id(node))
            inputs = tuple(elsewhere.inputs if elsewhere else (None if v is None else views[v] for v in node.inputs))
            outputs = tuple(elsewhere.outputs if elsewhere else (views[v] for v in node.values))
            attrs = kernel_attrs(node, target.kernels)
            yield Step(OPS[node.op].kernel, node, inputs, outputs, attrs, target.arithmetic)
        for copy in copies.get(id(node), ()):
            yield Step("copy", node, (copy.source,), (copy.target,), {}, target.arithmetic)


def kernel_attrs(node: Node, kernels: Kernels) -> Mapping[str, Any]:
    """Returns the values for the kernel's attribute struct."""
    record = OPS[node.op]
    if record.kernel_attrs is not None:
        return record.kernel_attrs(node.inputs, node.attrs)
    names = [item.partition(":")[0] for item in kernels.layout(record.kernel).split()]
    return {name: node.attrs[name] for name in names}
