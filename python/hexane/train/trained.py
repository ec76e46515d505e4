"""Converts the graph of a training to one of inference with the trained params."""

from collections.abc import Mapping

from hexane.build import Tensor, graph
from hexane.errors import Error
from hexane.graph import Array, Graph, TensorType, unique
from hexane.ops.valid_lengths import kept_lengths
from hexane.runtime import Model
from hexane.train.evaluating import evaluating


def trained(outputs: "Tensor | Mapping[str, Tensor]", net: Model) -> Graph:
    """Returns the inference graph of these tensors (`evaluating`). The graph's params have the current contents of the
    states of `net` with the same names, converted to the graph's dtypes: a model for a chip holds fp16. Params without
    a state of their name stay unchanged.

    Raises Error if a param and the state of its name differ in shape.
    """
    forward = graph(evaluating(outputs))
    names = set(net.state_names)
    table = {
        node.values[0]: unique("param", name, node.types[0], _as(net.read_state(name), node.types[0]), node.sources)
        for node in forward.nodes
        if node.op == "param" and (name := str(node.attrs["name"])) in names
    }
    return forward.rewrite(kept_lengths, became=table) if table else forward


def _as(array: Array, kind: TensorType) -> Array:
    if array.shape != kind.shape:
        raise Error(f"[train.trained] got a state of shape {array.shape}, need {kind.shape}: a model of other params")
    return array.astype(kind.dtype.numpy, copy=False)
