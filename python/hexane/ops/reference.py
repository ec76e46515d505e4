"""The reference interpreter: runs every op by its record's definition, in fp64 with one rounding for each node."""

from collections import Counter
from collections.abc import Mapping, MutableMapping

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Value
from hexane.graph.array_bits import truths
from hexane.ops import evaluate


def run_reference(
    graph: Graph, feeds: Mapping[str, Array], states: MutableMapping[str, Array] | None = None
) -> dict[str, Array]:
    """Returns the graph's outputs by name, for inputs by name.

    states: the contents of states by name, which are updated. Without `states`, states start as declared, and are
    dropped. Raises Error if an input is missing, unknown, or of another dtype or shape.
    """
    if unknown := feeds.keys() - set(graph.input_names()):
        raise Error(f"[run] got the input {min(unknown)!r}, need {', '.join(graph.input_names()) or 'none'}")
    uses = Counter(v for node in graph.nodes for v in node.inputs if v is not None)
    uses.update(graph.roots)
    memory: dict[Value, Array] = {}
    for node in graph.nodes:
        if node.op in ("input", "state", "param", "const"):
            results = [_leaf(node, feeds, states or {})]
        else:
            results = evaluate(node, [None if v is None else memory[v] for v in node.inputs])
        memory.update(zip(node.values, results, strict=True))
        if node.op == "write_state" and states is not None:
            states[_state_name(node)] = results[0]
        for value in node.inputs:
            if value is not None:
                uses[value] -= 1
                if not uses[value]:
                    memory.pop(value, None)
    return {port.name: memory[port.value] for port in graph.outputs}


def _leaf(node: Node, feeds: Mapping[str, Array], states: Mapping[str, Array]) -> Array:
    kind, name = node.types[0], str(node.attrs.get("name", ""))
    if node.op == "input":
        if name not in feeds:
            raise Error(f"[run] input {name!r} is missing: need {kind}")
        array = np.asarray(feeds[name])
        if array.shape != kind.shape or array.dtype != kind.dtype.numpy:
            raise Error(f"[run] input {name!r}: got {array.dtype}{list(array.shape)}, need {kind}")
        return truths(array)
    if node.op == "state" and name in states:
        return states[name]
    return node.data if node.data is not None else np.zeros(kind.shape, kind.dtype.numpy)


def _state_name(node: Node) -> str:
    """Returns the name of the state at the start of a chain of writes."""
    while node.op == "write_state":
        source = node.inputs[0]
        assert source is not None
        node = source.node
    return str(node.attrs["name"])
