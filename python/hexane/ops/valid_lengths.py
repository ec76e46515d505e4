"""Valid lengths: the valid part of a value whose extent depends on data, propagated from op to op while a graph is
built.

Ops such as non_zero have results of the largest possible size, and return the number of valid elements. Later ops use
only the valid part. An op that works on each element or slice separately propagates the length, a sum ignores invalid
elements, and an op that would mix them into its result is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hexane import ops
from hexane.errors import Error
from hexane.graph import AttrValue, Graph, Node, Port, Value
from hexane.ops import OPS, Op
from hexane.ops.length_rules import (
    RULES,
    Length,
    aligned_lengths,
    carried,
    described,
    elementwise,
    masked,
    places,
    zero_of,
)


def length_of(value: Value) -> Length | None:
    """Returns the length of a value; None if all of it is always valid."""
    node = value.node
    record = OPS.get(node.op)
    if record is not None and record.ragged is not None:
        axis = record.ragged(node.attrs)[value.output]
        return None if axis is None or value.shape[axis] == 0 else Length(axis, node.values[-1])
    lengths = carried.get(node)
    return lengths[value.output] if lengths else None


def apply(
    op: Op,
    inputs: Sequence[Value | None],
    attrs: Mapping[str, AttrValue],
    sources: tuple[str, ...] = (),
    aligned: bool = False,
) -> tuple[Value, ...]:
    """Like `ops.apply`, for inputs that may have lengths. aligned: in an elementwise op, operands without a length
    correspond, index by index, to an operand with a length. Raises Error if the op's result would depend on invalid
    elements."""
    lengths = [None if v is None else length_of(v) for v in inputs]
    if not any(lengths):
        return ops.apply(op, inputs, attrs, sources)
    values = ops.apply(op, inputs, attrs, sources)
    try:
        values = ops.apply(op, masked(values[0].node, lengths), attrs, sources)
        node = values[0].node
        rule = elementwise if op.elementwise else RULES.get(op.lengths)
        if rule is None:
            raise Error("this op is not supported for such an input, need a fixed length")
        lengths += [None] * (len(node.inputs) - len(lengths))
        carried[node] = rule(node, aligned_lengths(node, lengths) if aligned and op.elementwise else lengths)
    except Error as error:
        at, length = next((i, length) for i, length in enumerate(lengths) if length)
        where = " at ".join((op.name, *sources[:1]))
        value = inputs[at]
        assert value is not None
        raise Error(f"[{where}] input {at}: got {described(value.type, length)}; {error}") from None
    return values


def kept_lengths(node: Node, inputs: tuple[Value | None, ...]) -> Sequence[Value] | None:
    """Propagates lengths again for a node whose inputs have changed, for `Graph.rewrite`. Returns None if the node's
    inputs are unchanged or have no lengths."""
    if inputs == node.inputs or node not in carried:
        return None
    return apply(OPS[node.op], inputs, node.attrs, node.sources)


def with_lengths(graph: Graph) -> Graph:
    """Returns the graph with an additional output for each length of its outputs, named after the first output with
    that length ("y.length")."""
    taken = {p.name for p in graph.outputs} | set(graph.input_names())
    names: dict[Value, str] = {}
    ports = []
    for port in graph.outputs:
        length = length_of(port.value)
        if length is not None and not port.length:
            if length.value not in names:
                name = f"{port.name}.length"
                while name in taken:
                    name += "_"
                taken.add(name)
                names[length.value] = name
            port = port._replace(length=names[length.value], axis=length.axis)
        ports.append(port)
    if not names:
        return graph
    return replace(graph, outputs=(*ports, *(Port(name, value) for value, name in names.items())))


def whole(x: Value, sources: tuple[str, ...] = ()) -> Value:
    """Returns x with zeros after its valid part, as a value without a length."""
    length = length_of(x)
    if length is None:
        return x
    invalid, zero = ops.apply(OPS["greater_equal"], [places(x, length), length.value], {}, sources)[0], zero_of(x)
    return ops.apply(OPS["select"], [invalid, zero, x], {}, sources)[0]
