"""Splits convolutions and products that onnxruntime's optimiser has fused with an activation into ONNX's own ops, so
that their weights are found."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hexane.errors import Error
from hexane.importers.onnx.foreign import MICROSOFT, NCHWC
from hexane.importers.onnx.handlers.microsoft_fused import PARAMETERS

_PLAIN = {"FusedConv": "Conv", "FusedGemm": "Gemm"}
_ACTIVATION = ("activation", "activation_params", "activation_alpha", "activation_beta", "activation_gamma")


def unfused(nodes: Iterable[onnx.NodeProto], command: str) -> tuple[list[onnx.NodeProto], list[TensorProto]]:
    """The nodes with FusedConv and FusedGemm taken apart, and the constants that the parts need. Other nodes stay.

    Raises Error for images in blocks of channels: the order of their weights depends on the machine.
    """
    result: list[onnx.NodeProto] = []
    tensors: list[TensorProto] = []
    for node in nodes:
        if node.domain == NCHWC:
            raise Error(
                f"[{command}] node {node.name!r}: got an op of {NCHWC}, whose weights are in the order of one machine's"
                " kernels; give the model before onnxruntime optimised it, or optimised with ORT_ENABLE_EXTENDED"
            )
        if node.domain == MICROSOFT and node.op_type in _PLAIN:
            parts = list(_parts(node, tensors, command))
            parts[-1].output[:] = node.output
            result += parts
        else:
            result.append(node)
    return result, tensors


def _parts(node: onnx.NodeProto, tensors: list[TensorProto], command: str) -> Iterator[onnx.NodeProto]:
    """Yields the product, the sum with a fourth input, and the activation. The caller names the output of the last
    node."""
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    plain.op_type, plain.domain = _PLAIN[node.op_type], ""
    del plain.attribute[:]
    plain.attribute.extend(a for a in node.attribute if a.name not in _ACTIVATION)
    del plain.input[3:]
    last = plain.output[0] = f"{node.output[0]}/{plain.op_type}"
    yield plain
    if len(node.input) > 3 and node.input[3]:
        yield helper.make_node("Add", [last, node.input[3]], [f"{node.output[0]}/Add"], f"{node.name}/Add")
        last = f"{node.output[0]}/Add"
    own = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name in _ACTIVATION}
    op = own.pop("activation", b"").decode()
    values = [float(v) for v in own.pop("activation_params", own.values())]
    if op == "Clip" and len(values) == 2:
        bounds = [f"{node.output[0]}/{name}" for name in ("min", "max")]
        tensors += [
            numpy_helper.from_array(np.array(v, np.float32), name) for v, name in zip(values, bounds, strict=True)
        ]
        yield helper.make_node("Clip", [last, *bounds], [f"{node.output[0]}/Clip"], f"{node.name}/Clip")
    elif op in PARAMETERS and len(values) <= len(PARAMETERS[op]):
        given: dict[str, Any] = dict(zip(PARAMETERS[op], values, strict=False))
        yield helper.make_node(op, [last], [f"{node.output[0]}/{op}"], f"{node.name}/{op}", **given)
    elif op:
        raise Error(
            f"[{command}] node {node.name!r}: got the activation {op!r} with {len(values)} parameters, need one of"
            " ONNX; give the model before onnxruntime optimised it"
        )
