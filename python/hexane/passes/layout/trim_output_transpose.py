"""Returns outputs in the layout in which they were computed."""

from dataclasses import replace

from hexane.graph import Graph, Port
from hexane.ops.match import made_by
from hexane.targets import Target


def trim_output_transpose(graph: Graph, target: Target) -> Graph:
    """return y=transpose(%0)  ->  return y=%0

    Off by default, because it changes the shapes of outputs. Removes all transposes at outputs: the model's own, and
    the transposes that channels_last has added.
    """
    return replace(graph, outputs=tuple(map(_trimmed, graph.outputs)))


def _trimmed(port: Port) -> Port:
    while (node := made_by(port.value, "transpose")) is not None and node.inputs[0] is not None:
        port = port._replace(value=node.inputs[0], axis=node.attrs["perm"][port.axis] if port.length else 0)
    return port
