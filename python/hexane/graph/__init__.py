"""The graph: types, nodes and values, and the program that they form, with a file for each."""

from hexane.graph.attributes import AttrValue, EpilogueSlot
from hexane.graph.graph import Graph, Port
from hexane.graph.node import Node, Value, constant, make_node, unique
from hexane.graph.tensor_type import Array, TensorType, tensor_type
from hexane.graph.topological import topological

__all__ = ["Array", "AttrValue", "EpilogueSlot", "Graph", "Node", "Port", "TensorType", "Value"]
__all__ += ["constant", "make_node", "tensor_type", "topological", "unique"]
