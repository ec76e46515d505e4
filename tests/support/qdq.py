"""A small quantiser for tests: QuantizeLinear and DequantizeLinear around every tensor, by the range it takes for one
input."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = Any
FUSED = ("Relu", "Clip")  # what comes before these alone is not rounded
# The axis of a weight that has a scale for each index.
CHANNELS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0, "MatMul": 1}


def quantized_model(
    model: onnx.ModelProto, feeds: dict[str, Array], kind: str = "int8", weights: str = "int8"
) -> bytes:
    """The model with 8-bit activations of one scale, and weights of one for each output channel: symmetric if they are
    int8."""
    ranges = _ranges(model, feeds)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    readers = Counter(name for node in graph.node for name in node.input)
    outputs = {o.name for o in graph.output}
    fused = {n.input[0] for n in graph.node if n.op_type in FUSED and readers[n.input[0]] == 1} - outputs
    nodes: list[onnx.NodeProto] = []
    rounded: dict[str, str] = {}  # the name that replaces a tensor once it is rounded

    def pair(name: str, scale: Array, zero: Array, source: str = "", target: str = "", axis: int = 0) -> str:
        target = target or f"{name}_dq"
        for suffix, array in (("scale", scale), ("zero", zero)):
            graph.initializer.append(numpy_helper.from_array(array, f"{name}_{suffix}"))
        operands = [f"{name}_scale", f"{name}_zero"]
        if source:
            nodes.append(helper.make_node("QuantizeLinear", [source, *operands], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *operands], [target], axis=axis))
        return target

    def activation(name: str, source: str, target: str = "") -> None:
        low, high = ranges[name]
        rounded[name] = pair(name, *grid(low, high, kind), source, target)

    def weight(name: str, axis: int) -> None:
        array = arrays[name]
        others = tuple(i for i in range(array.ndim) if i != axis)
        low, high = array.min(axis=others), array.max(axis=others)
        if weights == "int8":
            low, high = -np.maximum(-low, high), np.maximum(-low, high)
        scale, zero = grid(low, high, weights)
        shape = [-1 if i == axis else 1 for i in range(array.ndim)]
        info = np.iinfo(zero.dtype)
        steps = np.rint(array / scale.reshape(shape)) + zero.reshape(shape)
        whole = np.clip(steps, info.min, info.max).astype(zero.dtype)
        graph.initializer.append(numpy_helper.from_array(whole, f"{name}_q"))
        rounded[name] = pair(name, scale, zero, axis=axis)

    for port in graph.input:
        activation(port.name, port.name)
    for node in model.graph.node:
        new = onnx.NodeProto()
        new.CopyFrom(node)
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        for i, name in enumerate(node.input):
            if i == 1 and node.op_type in CHANNELS and name in arrays and name not in rounded:
                weight(name, 1 if node.op_type == "Gemm" and not transposed else CHANNELS[node.op_type])
            new.input[i] = rounded.get(name, name)
        nodes.append(new)
        for i, name in enumerate(node.output):
            if name in ranges and name not in fused:
                new.output[i] = f"{name}_raw"
                activation(name, f"{name}_raw", name if name in outputs else "")
    del graph.node[:]
    graph.node.extend(nodes)
    return result.SerializeToString()  # type: ignore[no-any-return]


def grid(low: Array, high: Array, kind: str) -> tuple[Array, Array]:
    """The scales and zero points under which [low, high] and 0 fit into the dtype."""
    info = np.iinfo(kind)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scale = (np.maximum(high - low, 1e-6) / 255).astype(np.float32)
    return scale, np.asarray(np.clip(np.rint(info.min - low / scale), info.min, info.max)).astype(kind)


def _ranges(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, tuple[float, float]]:
    """The least and largest element of every fp32 tensor that is computed."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output]
    del shown.graph.output[:]
    shown.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(shown.SerializeToString(), providers=["CPUExecutionProvider"])
    found = {**feeds, **dict(zip(names, session.run(None, feeds), strict=True))}
    assert helper.np_dtype_to_tensor_dtype(np.dtype(np.float32)) == TensorProto.FLOAT
    return {k: (float(v.min()), float(v.max())) for k, v in found.items() if v.dtype == np.float32}
