"""ONNX models for tests: built node by node, and what onnxruntime and onnx make of them."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, NotImplemented, RuntimeException

from hexane.graph import Graph
from hexane.ops.reference import run_reference


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def value_info(name: str, array: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    **parts: Any,
) -> onnx.ModelProto:
    """A model; inputs are value infos, or arrays of their shape and dtype."""
    infos = [v if isinstance(v, onnx.ValueInfoProto) else value_info(k, v) for k, v in inputs.items()]
    graph = helper.make_graph(
        nodes,
        "test",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **parts)


def run(graph: Graph, *arrays: Any) -> dict[str, Any]:
    return run_reference(graph, dict(zip(graph.input_names(), arrays, strict=True)))


AGED = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24)  # the newest for Python 3.10
TOO_OLD = f"onnxruntime {onnxruntime.__version__} does not compute it"


@contextmanager
def skipped_where_aged() -> Iterator[None]:
    """Skips the test where an onnxruntime before 1.24 refuses or fails to compute."""
    try:
        yield
    except (Fail, NotImplemented, RuntimeException):
        if AGED:
            pytest.skip(TOO_OLD)
        raise


def by_onnxruntime(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Its results. A test of an op that an onnxruntime before 1.24 does not compute is skipped."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with skipped_where_aged():
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, dict(feeds))


def by_onnx(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return ReferenceEvaluator(proto).run(None, dict(feeds))


@cache
def onnxruntime_saturates() -> bool:
    """Whether onnxruntime's products of uint8 and int8 are wrong on this CPU: on x86 without VNNI it adds pairs in
    int16."""
    arrays = {"a": np.full((1, 4), 255, np.uint8), "b": np.full((4, 1), 127, np.int8)}
    (found,) = by_onnxruntime(model([node("MatMulInteger", "a b", "y")], arrays, ["y"]), arrays)
    return int(found[0, 0]) != 4 * 255 * 127


def rand(*shape: int, dtype: Any = np.float32, low: float = -2.0, high: float = 2.0) -> Any:
    rng = np.random.default_rng(zlib.crc32(repr((shape, str(dtype))).encode()))
    return rng.uniform(low, high, shape).astype(dtype)


def ints(*values: Any) -> Any:
    return np.array(values, np.int64)


def image(size: int = 7, channels: int = 3) -> Any:
    return rand(2, channels, size, size + 1)
