"""Turns a param that its program writes into a state, which lasts from call to call and which `Model.update` can still
replace."""

from hexane.graph import Graph, Node, unique
from hexane.ops.valid_lengths import kept_lengths


def written_params_as_states(graph: Graph) -> Graph:
    """write_state(param w, ..)  ->  write_state(state w, ..), with the same w for all readers"""
    if "write_state" not in graph.ops or "param" not in graph.ops:
        return graph
    written = [base for node in graph.nodes if node.op == "write_state" and (base := _base(node)).op == "param"]
    table = {
        node.values[0]: unique("state", str(node.attrs["name"]), node.types[0], node.data, node.sources)
        for node in dict.fromkeys(written)
    }
    return graph.rewrite(kept_lengths, became=table) if table else graph


def _base(node: Node) -> Node:
    """Returns the start of a chain of writes."""
    while node.op == "write_state":
        assert node.inputs[0] is not None
        node = node.inputs[0].node
    return node
