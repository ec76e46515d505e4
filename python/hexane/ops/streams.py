"""Advances the streams of random numbers in every call."""

from dataclasses import replace

import numpy as np

from hexane.errors import Error
from hexane.graph import Graph, Node, Value, constant
from hexane.ops import OPS, apply


def advance_streams(graph: Graph) -> Graph:
    """Returns the graph with a write that adds 1 to the call number of each stream that a random op reads. Streams that
    the graph writes itself are left as they are.

    Raises Error if two ops draw from one stream, because they would draw the same numbers. A dropout with `again`
    shares a stream intentionally.
    """
    readers: dict[Value, Node] = {}
    again: dict[Value, Node] = {}
    for node in graph.nodes:
        if node.op not in OPS or not node.inputs or OPS[node.op].inputs[-1] != "stream":
            continue
        stream = node.inputs[-1]
        assert stream is not None
        if stream.node.op == "state" and node.attrs.get("again"):
            again[stream] = node
        elif stream.node.op == "state" and readers.setdefault(stream, node) is not node:
            raise Error(f"[{node.where}] got the stream of {readers[stream].where}, need one of its own (hx.stream)")
    readers = {**again, **readers}
    if not readers:
        return graph
    written = {node.inputs[0] for node in graph.nodes if node.op == "write_state"}
    updates: list[Value] = []
    for stream, node in readers.items():
        if stream not in written:
            (after,) = apply(OPS["add"], [stream, constant(np.array([0, 1]))], {}, node.sources)
            updates += apply(OPS["write_state"], [stream, after, constant(np.array(0))], {}, node.sources)
    return replace(graph, updates=(*graph.updates, *updates))
