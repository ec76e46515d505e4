"""Inlines the functions of a model, so that it can be split at a node of a function."""

import onnx
from onnx import TensorProto
from onnx.inliner import inline_local_functions

from hexane.importers.onnx.load import ModelFile


def inlined(file: ModelFile) -> ModelFile:
    """Returns the model with the nodes of its functions in the graph. Every call gives the nodes the same names."""
    old = file.proto
    graph = onnx.GraphProto(name=old.graph.name, node=file.nodes, input=old.graph.input, output=old.graph.output)
    # The inliner avoids the names of initializers, and does not need the data of initializers.
    graph.initializer.extend(TensorProto(name=tensor.name) for tensor, _ in file.initializers())
    proto = onnx.ModelProto(
        ir_version=old.ir_version, opset_import=old.opset_import, functions=old.functions, graph=graph
    )
    proto = inline_local_functions(proto)
    del proto.graph.initializer[:]
    return ModelFile(proto, tuple(proto.graph.node), file.initializers, file.folder)
