"""The inference of what was trained."""

from collections.abc import Mapping

from hexane.build import Tensor, graph
from hexane.graph import Graph, unique
from hexane.ops.valid_lengths import kept_lengths
from hexane.runtime import Model
from hexane.train.evaluating import evaluating


def trained(outputs: "Tensor | Mapping[str, Tensor]", net: Model) -> Graph:
    """The graph of these tensors outside training (`evaluating`), whose params have the contents that the model `net`
    holds now under their names. Params that `net` does not have stay as they are."""
    made = graph(evaluating(outputs))
    names = set(net.state_names)
    table = {
        node.values[0]: unique("param", name, node.types[0], net.read_state(name), node.sources)
        for node in made.nodes
        if node.op == "param" and (name := str(node.attrs["name"])) in names
    }
    return made.rewrite(kept_lengths, became=table) if table else made
