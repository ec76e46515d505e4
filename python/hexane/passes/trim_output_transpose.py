"""Leaves the layout of outputs to whoever reads them."""

from hexane.graph import Graph, Port, Value
from hexane.match import made_by


def trim_output_transpose(graph: Graph) -> Graph:
    """return y=transpose(%0)  ->  return y=%0

    Off unless it is asked for: outputs change their shape. The model's own transposes at its outputs go, and those that
    channels_last put there.
    """
    return Graph(graph.inputs, tuple(Port(p.name, _trimmed(p.value)) for p in graph.outputs), graph.updates, graph.name)


def _trimmed(value: Value) -> Value:
    while (node := made_by(value, "transpose")) is not None and node.inputs[0] is not None:
        value = node.inputs[0]
    return value
