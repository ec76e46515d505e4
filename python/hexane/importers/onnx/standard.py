"""Translates ops of other domains by the translations of standard ONNX ops."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hexane.graph import Value
from hexane.importers.onnx.node import Attributes, Builder, OnnxNode
from hexane.importers.onnx.registry import ONNX_OPS
from hexane.importers.onnx.schema import schema

OPSET = 21


def standard(b: Builder, n: OnnxNode, op: str, *inputs: Value | None, **attrs: Any) -> Value:
    """Returns the first output of a standard op. Attributes that are None are omitted."""
    return several(b, replace(n, outputs=("y",)), op, *inputs, **attrs)[0]


def several(b: Builder, n: OnnxNode, op: str, *inputs: Value | None, **attrs: Any) -> list[Value]:
    """Returns the outputs of a standard op, at least as many as the node names."""
    signature = schema(op, OPSET)
    assert signature is not None
    given = Attributes({name: value for name, value in attrs.items() if value is not None}, signature.defaults)
    node = replace(n, op=op, version=signature.version, inputs=inputs, attrs=given, _inputs_read=set())
    result = ONNX_OPS[op].translate(b, node)
    node.check_read(ONNX_OPS[op].ignores)
    return [result] if isinstance(result, Value) else list(result)


def given(n: OnnxNode, names: Sequence[str]) -> dict[str, Any]:
    """Returns the named attributes that the node has."""
    return {name: n.attrs[name] for name in names if name in n.attrs}
