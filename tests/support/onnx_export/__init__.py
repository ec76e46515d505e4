"""Graphs as ONNX models, for the oracles: an op by the name its record gives, by forms.py or quantized.py, or by what
it expands to.

A value that ONNX cannot express becomes an input of the model, filled from the reference. So all other ops are still
compared.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from hexane.dtypes import DType
from hexane.graph import Array, Graph, Node, Value
from hexane.ops import OPS, evaluate
from hexane.passes.legalize.expand import kernel_ops
from onnx_models import AGED, TOO_OLD

OPSET = 26  # the newest that onnxruntime takes
IR_VERSION = 11


@dataclass
class Model:
    """`given`: inputs in place of values that are not computed."""

    proto: onnx.ModelProto
    given: dict[str, Value]


@dataclass
class Exporter:
    """Writes nodes; tensors are their names, "" one that is left out."""

    cut: Callable[[Node], bool]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    names: dict[Value, str] = field(default_factory=dict)
    given: dict[str, Value] = field(default_factory=dict)
    _count: int = 0

    def name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def const(self, array: Any, dtype: Any = None) -> str:
        name = self.name()
        self.initializers.append(onnx.numpy_helper.from_array(np.array(array, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def emit(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        return self.several(op_type, 1, *inputs, **attrs)[0]

    def several(self, op_type: str, count: int, *inputs: str, **attrs: Any) -> list[str]:
        """The outputs of a node that has `count` of them."""
        outputs = [self.name() for _ in range(count)]
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        self.nodes.append(helper.make_node(op_type, inputs, outputs, **attrs))
        return outputs

    def value(self, value: Value) -> str:
        if value not in self.names:
            self.names.update(zip(value.node.values, self.node(value.node), strict=True))
        return self.names[value]

    def node(self, node: Node) -> list[str]:
        if node.op in ("const", "param"):
            return [self.const(node.data)]
        inputs = ["" if v is None else self.value(v) for v in node.inputs]
        written = None if self.cut(node) else self.form(node, inputs)
        if written is None:
            written = [f"given{len(self.given) + i}" for i in range(len(node.types))]
            self.given.update(zip(written, node.values, strict=True))
        return [written] if isinstance(written, str) else written

    def form(self, node: Node, inputs: list[str]) -> str | list[str] | None:
        from onnx_export import forms, quantized

        op = OPS[node.op]
        form = forms.FORMS.get(node.op) or quantized.FORMS.get(node.op)
        if form is not None:
            return form(self, node, *inputs)
        if op.onnx:
            return self.emit(op.onnx[0], *inputs, **{k: plain(v) for k, v in node.attrs.items() if k != "epilogue"})
        if op.expand is None or (op.kernel and not (op.updates or op.name in _BY_EXPANSION)):
            return None
        result = op.expand(kernel_ops(), *node.inputs, **node.attrs)
        return self.value(result) if isinstance(result, Value) else [self.value(v) for v in result]


# With updates of params: ops with a kernel that ONNX has as the ops they are written as.
_BY_EXPANSION = ("conv_weight_gradient", "max_pool_gradient")


def plain(value: Any) -> Any:
    return element_type(value) if isinstance(value, DType) else value


def element_type(dtype: DType) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype.numpy))


def export(graph: Graph, cut: Callable[[Node], bool] = lambda node: False) -> Model:
    """The model of a graph without states. `cut`: nodes whose results are to be given. A test is skipped where
    onnxruntime is too old for the opset."""
    if AGED:
        pytest.skip(TOO_OLD)
    e = Exporter(cut)
    e.names.update({v: str(v.node.attrs["name"]) for v in graph.inputs})
    for port in graph.outputs:
        e.nodes.append(helper.make_node("Identity", [e.value(port.value)], [port.name]))

    def declared(name: str, value: Value) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, element_type(value.dtype), value.shape)

    inputs = [declared(name, v) for name, v in zip(graph.input_names(), graph.inputs, strict=True)]
    inputs += [declared(name, v) for name, v in e.given.items()]
    outputs = [declared(port.name, port.value) for port in graph.outputs]
    body = helper.make_graph(e.nodes, "graph", inputs, outputs, e.initializers)
    opsets = [helper.make_opsetid("", OPSET)]
    return Model(helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION), e.given)


def feeds_of(model: Model, graph_feeds: dict[str, Array], known: dict[Value, Array]) -> dict[str, Array]:
    """What the model's inputs are: the graph's own, and what is given, from `known`: the graph's values, and what they
    make."""

    def array(value: Value) -> Array:
        if value not in known:
            node = value.node
            inputs = [None if v is None else array(v) for v in node.inputs]
            results = [node.data] if node.data is not None else evaluate(node, inputs)
            known.update(zip(node.values, results, strict=True))
        return known[value]

    return {**graph_feeds, **{name: array(value) for name, value in model.given.items()}}
