"""ONNX models become graphs that mean the same: each op against onnxruntime, or ONNX's own reference."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.onnx import SpecialisationNeeded, import_onnx, signature
from hexane.passes.expand import expand
from hexane.reference import run_reference

NEWEST = onnx.defs.onnx_opset_version()


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


def by_onnxruntime(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def by_onnx(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return ReferenceEvaluator(proto).run(None, dict(feeds))


def assert_matches(found: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted)
        return
    tolerance = {2: 2e-3, 4: 1e-5, 8: 1e-12}[wanted.dtype.itemsize]
    scale = max(np.abs(wanted[np.isfinite(wanted)]).max(initial=0), 1e-30)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale)


@dataclass(frozen=True)
class Case:
    """A node on arrays; the inputs whose places are in `constant` become initializers, None ones are left out."""

    op: str
    inputs: Sequence[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    constant: Sequence[int] = ()
    num_outputs: int = 1
    oracle: Any = by_onnxruntime

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}"


def rand(*shape: int, dtype: Any = np.float32, low: float = -2.0, high: float = 2.0) -> Any:
    rng = np.random.default_rng(zlib.crc32(repr((shape, str(dtype))).encode()))
    return rng.uniform(low, high, shape).astype(dtype)


def ints(*values: Any) -> Any:
    return np.array(values, np.int64)


def image(size: int = 7, channels: int = 3) -> Any:
    return rand(2, channels, size, size + 1)


F16 = np.float16
C = Case
CASES = [
    # Elementwise.
    C("Add", [rand(2, 3), rand(3)], opset=7),
    C("Sub", [rand(2, 1, 4), rand(3, 1)]),
    C("Div", [ints(-7, 7, -8, 9), ints(2, -2, 3, 4)]),
    C("Mul", [rand(2, 3, dtype=F16), rand(1, dtype=F16)]),
    C("Pow", [rand(4, low=0.1), rand(4)], opset=7),
    C("Pow", [rand(4), ints(0, 1, 2, 3)], opset=13),
    C("Pow", [ints(0, 1, 2, 3), ints(3, 2, 1, 0)], opset=13),
    C("Pow", [ints(1, 2, 3, 4), rand(4, low=0.0)], opset=15),
    C("Mod", [ints(-7, 7, -8, 9), ints(2, -2, 3, 4)]),
    C("Mod", [ints(-7, 7, -8, 9), ints(2, -2, 3, 4)], {"fmod": 1}),
    C("Mod", [rand(5), rand(5, low=0.5)], {"fmod": 1}),
    C("Max", [rand(2, 3), rand(3), rand(1)], opset=8),
    C("Min", [ints(1, 5, 3), ints(2, 2, 9)], opset=13),
    C("Sum", [rand(3), rand(3), rand(2, 3)], opset=8),
    C("Mean", [rand(3), rand(3), rand(2, 3)], opset=13),
    C("Clip", [rand(9)], {"min": -0.5, "max": 0.5}, opset=7),
    C("Clip", [rand(9), np.float32(-0.5), np.float32(0.5)], opset=11, constant=(1, 2)),
    C("Clip", [rand(9), None, np.float32(0.5)], opset=11, constant=(2,)),
    C("Clip", [rand(9), np.float32(0.5), np.float32(-0.5)], opset=13, constant=(1, 2)),
    C("Clip", [rand(9), np.float32(-0.5), np.float32(0.5)], opset=13),
    C("Clip", [ints(1, 5, 2**60 + 1), ints(2)[0], ints(2**60)[0]], opset=13, constant=(1, 2)),
    C("PRelu", [rand(2, 3, 4), rand(3, 1)], opset=9),
    C("LeakyRelu", [rand(9)], {"alpha": 0.2}),
    C("Elu", [rand(9)], {"alpha": 0.7}),
    C("Celu", [rand(9)], {"alpha": 0.7}),
    C("Selu", [rand(9)]),
    C("Selu", [rand(9)], {"alpha": 2.0, "gamma": 1.5}),
    C("HardSigmoid", [rand(9, low=-4, high=4)]),
    C("HardSwish", [rand(9, low=-4, high=4)]),
    C("Mish", [rand(9)], opset=18),
    C("Gelu", [rand(9)], opset=20),
    C("Gelu", [rand(9)], {"approximate": "tanh"}, opset=20),
    C("Swish", [rand(9)], {"alpha": 0.5}, opset=24, oracle=by_onnx),
    C("Shrink", [rand(9)], {"lambd": 0.5, "bias": 0.1}),
    C("Softplus", [rand(9)]),
    C("ThresholdedRelu", [rand(9)], {"alpha": 0.5}),
    C("Sign", [ints(-3, 0, 4)]),
    C("Round", [np.float32([-2.5, -1.5, 0.5, 1.5, 2.4])]),
    C("IsNaN", [np.float32([1, np.nan, np.inf])]),
    C("IsInf", [np.float32([1, np.nan, np.inf, -np.inf])]),
    C("IsInf", [np.float32([1, np.nan, np.inf, -np.inf])], {"detect_negative": 0}),
    C("Where", [rand(2, 3) > 0, rand(2, 3), rand(3)]),
    C("And", [rand(2, 3) > 0, rand(3) > 0]),
    C("Equal", [ints(1, 2, 3), ints(1, 5, 3)], opset=11),
    C("Cast", [rand(9, low=-9, high=9)], {"to": 6}),
    C("Cast", [rand(9)], {"to": 10}),
    C("Cast", [rand(9)], {"to": 9}, opset=9),
    C("Cast", [ints(-1, 0, 300)], {"to": 2}),
    C("CastLike", [rand(9), ints(1)], opset=15),
    C("Dropout", [rand(9)], {"ratio": 0.3}, opset=7),
    C("Dropout", [rand(9), np.float32(0.3), np.array(False)], opset=13, constant=(1, 2), num_outputs=2),
    # Products.
    C("MatMul", [rand(3, 4), rand(4, 5)]),
    C("MatMul", [rand(4), rand(2, 4, 5)]),
    C("MatMul", [rand(2, 3, 4), rand(4)]),
    C("MatMul", [rand(4), rand(4)]),
    C("Gemm", [rand(3, 4), rand(4, 5), rand(5)], opset=7),
    C("Gemm", [rand(4, 3), rand(5, 4), rand(3, 1)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    C("Gemm", [rand(3, 4), rand(4, 5)], {"alpha": 0.5}, opset=11),
    C("Gemm", [rand(3, 4), rand(4, 5), rand(1)[0]], {"beta": 0.5}),
    C("Einsum", [rand(2, 3, 4), rand(2, 4, 5)], {"equation": "bij,bjk->bik"}),
    C("Einsum", [rand(2, 5, 3, 4), rand(2, 6, 3, 4)], {"equation": "bqhd,bkhd->bhqk"}),
    C("Einsum", [rand(3, 4)], {"equation": "ij->ji"}),
    C("Einsum", [rand(3, 4), rand(4)], {"equation": "ij,j"}),
    C("Einsum", [rand(3, 4), rand(5)], {"equation": "ij,k->ki"}),
    C("Einsum", [rand(3, 4), rand(4, 5), rand(5, 2)], {"equation": "ij,jk,kl->il"}),
    # Shapes and slices.
    C("Reshape", [rand(2, 3, 4), ints(0, -1)], constant=(1,)),
    C("Reshape", [rand(0, 3), ints(3, 0)], {"allowzero": 1}, constant=(1,)),
    C("Transpose", [rand(2, 3, 4)]),
    C("Transpose", [rand(2, 3, 4)], {"perm": [2, 0, 1]}),
    C("Flatten", [rand(2, 3, 4)], {"axis": 2}, opset=9),
    C("Flatten", [rand(2, 3, 4)], {"axis": -1}, opset=11),
    C("Squeeze", [rand(1, 3, 1)], {"axes": [0]}, opset=7),
    C("Squeeze", [rand(1, 3, 1)]),
    C("Squeeze", [rand(1, 3, 1), ints(-1)], opset=13, constant=(1,)),
    C("Unsqueeze", [rand(3)], {"axes": [0, 2]}, opset=7),
    C("Unsqueeze", [rand(3), ints(2, 0)], opset=13, constant=(1,)),
    C("Slice", [rand(4, 9)], {"starts": [1, -8], "ends": [3, 99]}, opset=9),
    C("Slice", [rand(4, 9)], {"starts": [1], "ends": [-1], "axes": [1]}, opset=7),
    C("Slice", [rand(4, 9), ints(1), ints(8), ints(-1), ints(3)], opset=10, constant=(1, 2, 3, 4)),
    C("Slice", [rand(4, 9), ints(-1), ints(-(2**63)), ints(1), ints(-2)], opset=13, constant=(1, 2, 3, 4)),
    C("Slice", [rand(4, 9), ints(-99, 7), ints(99, 2), ints(0, 1), ints(1, -3)], constant=(1, 2, 3, 4)),
    C("Slice", [rand(4, 9), ints(5), ints(2)], constant=(1, 2)),
    C("Split", [rand(4, 9)], {"axis": 1}, opset=7, num_outputs=3),
    C("Split", [rand(4, 9)], {"axis": -1, "split": [2, 7]}, opset=11, num_outputs=2),
    C("Split", [rand(4, 9), ints(1, 3)], opset=13, constant=(1,), num_outputs=2),
    C("Split", [rand(4, 7)], {"axis": 1, "num_outputs": 3}, opset=18, num_outputs=3),
    C("Concat", [rand(2, 3), rand(2, 1)], {"axis": -1}),
    C("Expand", [rand(3, 1), ints(2, 1, 4)], constant=(1,)),
    C("Expand", [rand(2, 3, 4), ints(1, 1)], constant=(1,)),
    C("Tile", [rand(2, 3), ints(2, 3)], constant=(1,)),
    C("Pad", [rand(2, 3)], {"pads": [0, 1, 2, -1], "value": 1.5}, opset=7),
    C("Pad", [rand(2, 3), ints(0, 1, 2, 0), np.float32(1.5)], opset=11, constant=(1, 2)),
    C("Pad", [rand(4, 5), ints(1, 2, 2, 1)], {"mode": "reflect"}, opset=13, constant=(1,)),
    C("Pad", [rand(4, 5), ints(1, 2, 2, 1)], {"mode": "edge"}, opset=13, constant=(1,)),
    C("Pad", [rand(4, 5), ints(2, 1), None, ints(-1)], {"mode": "wrap"}, opset=19, constant=(1, 3)),
    C("DepthToSpace", [rand(1, 8, 2, 3)], {"blocksize": 2}, opset=7),
    C("DepthToSpace", [rand(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, opset=11),
    C("SpaceToDepth", [rand(1, 2, 4, 6)], {"blocksize": 2}),
    C("Shape", [rand(2, 3, 4)]),
    C("Shape", [rand(2, 3, 4)], {"start": 1, "end": -1}, opset=15),
    C("Size", [rand(2, 3, 4)]),
    C("ConstantOfShape", [ints(2, 3)], {"value": numpy_helper.from_array(ints(7))}, constant=(0,)),
    C("ConstantOfShape", [ints(2, 0)], constant=(0,)),
    C("Range", [ints(7)[0], ints(-2)[0], ints(-2)[0]], constant=(0, 1, 2)),
    C("Range", [np.float32(0), np.float32(1.1), np.float32(0.25)], constant=(0, 1, 2)),
    C("EyeLike", [rand(3, 4)], {"k": 1}),
    C("Trilu", [rand(2, 3, 4), ints(1)[0]], opset=14, constant=(1,)),
    C("Trilu", [rand(2, 3, 4)], {"upper": 0}, opset=14),
    # Reductions.
    *(C(f"Reduce{r}", [rand(2, 3, 4, low=0.1)], {"axes": [1]}, opset=11) for r in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")),
    *(C(f"Reduce{r}", [rand(2, 3, 4, low=0.1), ints(0, -1)], {"keepdims": 0}, opset=18, constant=(1,)) for r in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")),
    C("ReduceSum", [rand(2, 3), ints(1)], opset=13, constant=(1,)),
    C("ReduceSum", [rand(2, 3)], {"noop_with_empty_axes": 1}, opset=13),
    C("ReduceSum", [rand(2, 3)], {"keepdims": 0}, opset=13),
    C("ReduceMean", [rand(1)[0]], opset=13),
    C("ReduceMax", [ints(3, 9, 2)], opset=13),
    C("ReduceL1", [ints(3, -9, 2)], opset=13, oracle=by_onnx),
    C("ReduceSum", [rand(2, 0), ints(1)], opset=13, constant=(1,)),
    C("ReduceMax", [rand(2, 0), ints(1)], opset=20, constant=(1,), oracle=by_onnx),
    C("ReduceMax", [rand(2, 3) > 0, ints(1)], opset=20, constant=(1,), oracle=by_onnx),
    C("ArgMax", [rand(3, 4)], {"axis": 1}, opset=7),
    C("ArgMin", [rand(3, 4)], {"keepdims": 0}),
    C("ArgMax", [np.float32([[1, 2, 2, 1]])], {"axis": 1, "select_last_index": 1}),
    C("Softmax", [rand(2, 3, 4)], {"axis": 1}, opset=11),
    C("Softmax", [rand(2, 3, 4)], opset=7),
    C("Softmax", [rand(2, 3, 4)], {"axis": 1}, opset=13),
    C("Softmax", [rand(2, 3, 4)], opset=13),
    C("LogSoftmax", [rand(2, 3, 4)], {"axis": 0}, opset=11),
    C("LogSoftmax", [rand(2, 3, 4)], {"axis": 0}, opset=13),
    C("Hardmax", [rand(2, 3, 4)], opset=11),
    C("Hardmax", [np.float32([[1, 3, 3], [2, 2, 0]])], opset=13),
    C("CumSum", [rand(3, 4), ints(1)[0]], {"exclusive": 1, "reverse": 1}, constant=(1,)),
    # Windows.
    C("Conv", [image(), rand(4, 3, 3, 3), rand(4)], {"pads": [1, 0, 2, 1], "strides": [2, 1]}, opset=11),
    C("Conv", [image(), rand(6, 1, 3, 2)], {"group": 3, "dilations": [2, 1]}),
    C("Conv", [image(), rand(4, 3, 3, 2)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    C("Conv", [image(), rand(4, 3, 3, 2)], {"auto_pad": "SAME_LOWER", "strides": [2, 1], "dilations": [1, 1]}),
    C("Conv", [image(), rand(4, 3, 3, 2)], {"auto_pad": "VALID"}),
    C("Conv", [rand(1, 2, 9), rand(3, 2, 3)], {"pads": [2, 0]}),
    C("Conv", [rand(1, 2, 4, 5, 6), rand(3, 2, 3, 2, 3)], {"pads": [1, 1, 1, 0, 0, 0]}),
    C("ConvTranspose", [image(), rand(3, 4, 3, 3), rand(4)], {"strides": [2, 2]}, opset=11),
    C("ConvTranspose", [image(), rand(3, 2, 3, 3)], {"strides": [2, 3], "pads": [1, 0, 1, 2], "output_padding": [1, 1]}),
    C("ConvTranspose", [rand(1, 4, 5, 5), rand(4, 3, 3, 3)], {"group": 2, "dilations": [2, 1]}),
    C("ConvTranspose", [image(), rand(3, 2, 3, 3)], {"strides": [2, 2], "output_shape": [14, 16]}),
    C("ConvTranspose", [image(), rand(3, 2, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    C("ConvTranspose", [image(), rand(3, 2, 4, 4)], {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    C("MaxPool", [image()], {"kernel_shape": [2, 3]}, opset=7),
    C("MaxPool", [image()], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}, opset=10),
    C("MaxPool", [image()], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1, "dilations": [2, 1]}, opset=12),
    C("MaxPool", [image()], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    C("MaxPool", [image()], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "VALID"}),
    C("AveragePool", [image()], {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2]}, opset=7),
    C("AveragePool", [image()], {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "count_include_pad": 1}, opset=11),
    C("AveragePool", [image()], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, opset=19),
    C("AveragePool", [image()], {"kernel_shape": [2, 2], "dilations": [2, 2]}, opset=19),
    C("AveragePool", [image()], {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    C("GlobalAveragePool", [image()]),
    C("GlobalMaxPool", [image()]),
    C("GlobalLpPool", [image()], {"p": 3}),
    C("LpPool", [image()], {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 1]}),
    # Normalisation.
    C("BatchNormalization", [image(), *(rand(3, low=0.5) for _ in range(4))], {"epsilon": 1e-3}, opset=7),
    C("BatchNormalization", [image(), *(rand(3, low=0.5) for _ in range(4))], opset=15),
    C("InstanceNormalization", [image(), rand(3), rand(3)], {"epsilon": 1e-3}),
    C("LayerNormalization", [rand(2, 3, 8), rand(8), rand(8)], {"epsilon": 1e-3}),
    C("LayerNormalization", [rand(2, 3, 8), rand(3, 8)], {"axis": 1}, num_outputs=3),
    C("LayerNormalization", [rand(2, 3, 8), rand(1), rand(1)], oracle=by_onnx),
    C("GroupNormalization", [rand(2, 6, 4), rand(6), rand(6)], {"num_groups": 2}, opset=21, oracle=by_onnx),
    C("RMSNormalization", [rand(2, 3, 8), rand(8)], opset=23, oracle=by_onnx),
    C("LRN", [rand(2, 7, 3, 3)], {"size": 3, "alpha": 0.5, "bias": 2.0}),
    C("LpNormalization", [rand(3, 4)], {"axis": 1, "p": 1}),
    C("LpNormalization", [rand(3, 4)], {"axis": 0}),
    C("MeanVarianceNormalization", [rand(2, 3, 4, 4)]),
    C("RotaryEmbedding", [rand(1, 2, 4, 8), rand(1, 4, 4), rand(1, 4, 4)], opset=23, oracle=by_onnx),
    C("Attention", [rand(1, 2, 4, 8), rand(1, 2, 5, 8), rand(1, 2, 5, 8)], opset=23, oracle=by_onnx),
    # Indices.
    C("Gather", [rand(4, 3), ints([3, 0], [-1, 2])], opset=11),
    C("Gather", [rand(4, 3), np.int32([2])], {"axis": 1}),
    C("GatherElements", [rand(3, 4), ints([3, 0], [-1, 2])], {"axis": 1}),
    C("GatherND", [rand(2, 3, 4), ints([[0, 1]], [[1, 2]])], opset=11),
    C("GatherND", [rand(2, 3, 4), ints([1], [2])], {"batch_dims": 1}, opset=12),
    C("ScatterElements", [rand(3, 4), ints([3, 0], [-1, 2]), rand(2, 2)], {"axis": 1}, opset=11),
    C("ScatterElements", [rand(3, 4), ints([1, 1]), rand(1, 2)], {"axis": 1, "reduction": "add"}, opset=16),
    C("ScatterND", [rand(4, 2), ints([1], [3]), rand(2, 2)], opset=11),
    C("ScatterND", [rand(4, 2), ints([1], [1]), rand(2, 2)], {"reduction": "mul"}, opset=16),
    C("OneHot", [ints(0, 2, -1, 7), ints(3)[0], np.float32([0, 5])], opset=11, constant=(1, 2)),
    C("OneHot", [ints(0, 2), ints(3)[0], np.float32([0, 5])], {"axis": 0}, opset=11, constant=(1,)),
    C("OneHot", [ints(0, 2), ints(3)[0], ints(0, 2**62 + 1)], opset=11, constant=(1, 2)),
    C("TopK", [rand(3, 9)], {"k": 4}, opset=7, num_outputs=2),
    C("TopK", [rand(3, 9), ints(4)], opset=10, constant=(1,), num_outputs=2),
    C("TopK", [rand(9, 3), ints(2)], {"axis": 0, "largest": 0}, opset=11, constant=(1,), num_outputs=2),
    # Resizing.
    C("Upsample", [image()], {"scales": [1.0, 1.0, 2.0, 3.0]}, opset=7),
    C("Upsample", [image(), np.float32([1, 1, 2, 2])], {"mode": "linear"}, opset=9, constant=(1,)),
    C("Resize", [image(), np.float32([1, 1, 2, 2])], {"mode": "nearest"}, opset=10, constant=(1,)),
    C("Resize", [image(8), None, np.float32([1, 1, 0.5, 2])], opset=13, constant=(2,)),
    *(C("Resize", [image(), None, None, ints(2, 3, 11, 5)],
        {"mode": mode, "coordinate_transformation_mode": coordinates}, opset=13, constant=(3,))
      for mode in ("nearest", "linear", "cubic")
      for coordinates in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")),
    *(C("Resize", [image(), None, None, ints(2, 3, 11, 5)], {"nearest_mode": mode}, opset=13, constant=(3,))
      for mode in ("floor", "ceil", "round_prefer_ceil")),
    C("Resize", [image(), None, np.float32([1, 1, 2, 2])],
      {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}, opset=13, constant=(2,)),
    C("Resize", [image(), np.float32([0, 0, 0.2, 0.1, 1, 1, 1.2, 0.9]), None, ints(2, 3, 5, 6)],
      {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0},
      opset=13, constant=(1, 3)),
    C("Resize", [rand(2, 3, 9), None, np.float32([1, 1, 2])], {"mode": "linear"}, opset=13, constant=(2,)),
    # Bits and quantised tensors.
    C("BitShift", [np.uint8([200, 3, 255]), np.uint8([1, 7, 9])], {"direction": "RIGHT"}, opset=11),
    C("BitwiseNot", [np.int16([-5, 0, 7])], opset=18),
    C("QuantizeLinear", [rand(2, 3, 4, low=-40, high=40), np.float32([0.25, 0.5, 0.125]), np.int8([3, -4, 0])], opset=13),
    C("QuantizeLinear", [np.float32([0.5, 1.5, 2.5, -0.5, 1e9, -1e9]), np.float32(1)], opset=13),
    C("QuantizeLinear", [rand(4, 6), rand(4, 2, low=0.1), np.zeros((4, 2), np.int8)], {"block_size": 3, "axis": 1},
      opset=21),
    C("DequantizeLinear", [np.int8([[-128, 5], [127, 0]]), np.float32([0.5, 0.25]), np.int8([1, -2])], {"axis": 0},
      opset=13),
    C("DequantizeLinear", [np.int32([-70000, 5]), np.float32(0.5)], opset=13),
    C("DynamicQuantizeLinear", [rand(3, 5)], opset=11, num_outputs=3),
    C("MatMulInteger", [np.uint8(rand(3, 700, low=0, high=255)), np.int8(rand(700, 5, low=-128, high=127)), np.uint8(7)],
      opset=10),
    C("MatMulInteger", [np.uint8(rand(2, 3, 9, low=0, high=255)), np.uint8(rand(9, 5, low=0, high=255)), np.uint8(7),
                        np.uint8([1, 2, 3, 4, 5])], opset=10),
    C("QLinearMatMul", [np.uint8(rand(3, 9, low=0, high=255)), np.float32(0.02), np.uint8(110),
                        np.int8(rand(9, 4, low=-99, high=99)), np.float32(0.03), np.int8(2), np.float32(0.3), np.uint8(120)],
      opset=10),
    C("ConvInteger", [np.uint8(rand(1, 3, 6, 7, low=0, high=255)), np.int8(rand(4, 3, 3, 3, low=-99, high=99)), np.uint8(9)],
      {"pads": [1, 1, 1, 1], "strides": [2, 1]}, opset=10),
    C("QLinearConv", [np.uint8(rand(1, 4, 6, 7, low=0, high=255)), np.float32(0.02), np.uint8(110),
                      np.int8(rand(4, 2, 3, 3, low=-99, high=99)), np.float32([0.03, 0.02, 0.01, 0.04]), np.int8([0] * 4),
                      np.float32(0.2), np.uint8(120), np.int32([100, -5, 0, 7])],
      {"group": 2, "pads": [1, 1, 1, 1]}, opset=10, constant=(1, 2, 3, 4, 5, 6, 7)),
    C("ConvTranspose", [rand(1, 4, 3, 4, 2), rand(4, 3, 2, 3, 2), rand(6)],
      {"group": 2, "strides": [2, 1, 3], "pads": [0, 1, 1, 1, 0, 0], "output_padding": [1, 0, 2]}, opset=11),
    C("ConvTranspose", [rand(1, 2, 3, 3, 3), rand(2, 2, 2, 2, 2)], {"dilations": [2, 1, 1], "pads": [2, 1, 0, 1, 1, 0]},
      opset=11),
    # Recurrent.
    *(C(op, [rand(5, 2, 3), rand(num, gates * 4, 3), rand(num, gates * 4, 4), rand(num, 2 * gates * 4), lengths,
             rand(num, 2, 4)], {"hidden_size": 4, "direction": direction}, opset=14, num_outputs=2)
      for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
      for direction, num, lengths in (("forward", 1, np.int32([5, 3])), ("reverse", 1, None), ("bidirectional", 2, None))),
    C("GRU", [rand(5, 2, 3), rand(1, 12, 3), rand(1, 12, 4), rand(1, 24)], {"hidden_size": 4, "linear_before_reset": 1},
      opset=14, num_outputs=2),
    C("LSTM", [rand(5, 2, 3), rand(1, 16, 3), rand(1, 16, 4), rand(1, 32), None, rand(1, 2, 4), rand(1, 2, 4), rand(1, 12)],
      {"hidden_size": 4, "clip": 0.5}, opset=14, num_outputs=3),
    C("RNN", [rand(5, 2, 3), rand(1, 4, 3), rand(1, 4, 4)], {"hidden_size": 4, "activations": ["Relu"]}, opset=14,
      num_outputs=2),
    *(C(op, [rand(5, 3, 2), rand(num, gates * 4, 2), rand(num, gates * 4, 4), None, np.int32([5, 1, 3])],
        {"hidden_size": 4, "direction": way}, opset=14, num_outputs=2)
      for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)) for way, num in (("reverse", 1), ("bidirectional", 2))),
    C("LSTM", [rand(2, 5, 3), rand(2, 16, 3), rand(2, 16, 4)], {"hidden_size": 4, "layout": 1, "direction": "bidirectional"},
      opset=14, num_outputs=3, oracle=by_onnx),
    # Signals.
    *(C("DFT", [rand(2, 9, 4, parts)], attrs, opset=17)
      for parts, attrs in ((1, {}), (2, {}), (1, {"onesided": 1}), (2, {"inverse": 1}), (2, {"axis": 2}))),
    C("DFT", [rand(2, 9, 1), ints(12)[0]], opset=17, constant=(1,)),
    C("DFT", [rand(2, 9, 1), ints(4)[0]], opset=17, constant=(1,)),
    C("STFT", [rand(2, 30, 1), ints(4)[0], rand(8, low=0.1)], {"onesided": 1}, constant=(1,)),
    C("STFT", [rand(2, 30, 2), ints(5)[0], None, ints(10)[0]], {"onesided": 0}, constant=(1, 3), oracle=by_onnx),
    # Between elements.
    *(C("GridSample", [rand(2, 3, 5, 4), rand(2, 6, 7, 2, low=-1.6, high=1.6)],
        {"mode": mode, "padding_mode": padding, "align_corners": corners}, opset=16)
      for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection") for corners in (0, 1)
      if (mode, padding) != ("bicubic", "border")),
    C("GridSample", [rand(1, 2, 3, 4, 5), rand(1, 2, 3, 4, 3, low=-1.2, high=1.2)], {"mode": "linear"}, opset=20),
    *(C("RoiAlign", [rand(2, 3, 9, 8), np.float32([[0, 0, 7, 7], [-3, 1, 3.5, 20], [2, 2, 2.1, 2.1]]), ints(1, 0, 1)],
        {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5, "mode": mode,
         "coordinate_transformation_mode": half}, opset=16)
      for mode, half in (("avg", "half_pixel"), ("avg", "output_half_pixel"))),
    C("DeformConv", [rand(2, 4, 5, 6), rand(6, 2, 3, 3), rand(2, 36, 5, 6), rand(6), rand(2, 18, 5, 6)],
      {"group": 2, "offset_group": 2, "pads": [1, 1, 1, 1]}, opset=19),
    C("DeformConv", [rand(1, 2, 6, 6), rand(3, 2, 2, 2), rand(1, 8, 3, 2)],
      {"strides": [2, 2], "dilations": [1, 2]}, opset=19),
    # Elsewhere.
    C("ReverseSequence", [rand(4, 3, 2), ints(1, 4, 2)], opset=10),
    C("ReverseSequence", [rand(3, 4, 2), ints(1, 4, 2)], {"time_axis": 1, "batch_axis": 0}, opset=10),
    C("Col2Im", [rand(2, 12, 9), ints(4, 5), ints(2, 2)], {"dilations": [1, 2]}, opset=18, constant=(1, 2)),
    C("Compress", [rand(3, 4), np.array([True, False, True])], {"axis": 1}, opset=11, constant=(1,)),
    C("Compress", [rand(3, 4), np.array([True, False, True, True, True])], opset=11, constant=(1,)),
    C("MaxUnpool", [rand(1, 2, 2, 2), ints(1, 3, 8, 10, 17, 19, 24, 26).reshape(1, 2, 2, 2)],
      {"kernel_shape": [2, 2], "strides": [2, 2]}, opset=11),
    C("MaxPool", [rand(2, 3, 7, 8)], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, num_outputs=2),
    C("MaxPool", [rand(2, 3, 7, 8)], {"kernel_shape": [2, 2], "storage_order": 1}, num_outputs=2),
    C("MaxPool", [rand(2, 3, 17)], {"kernel_shape": [4], "dilations": [2], "ceil_mode": 1}, num_outputs=2),
    C("BatchNormalization", [image(), rand(3), rand(3), rand(3), rand(3, low=0.1)], {"training_mode": 1, "momentum": 0.7},
      opset=15, num_outputs=3, oracle=by_onnx),
    C("Det", [rand(2, 3, 3)], opset=11),
    C("Det", [rand(4, 4)], opset=11),
    C("CumProd", [rand(3, 7), ints(1)[0]], {"exclusive": 1, "reverse": 1}, opset=26, constant=(1,), oracle=by_onnx),
    C("Resize", [image(), None, None, ints(2, 3, 4, 5)], {"mode": "cubic", "antialias": 1}, opset=18, constant=(3,),
      oracle=by_onnx),
    C("Resize", [image(), None, None, ints(2, 3, 3, 11)], {"mode": "linear", "antialias": 1}, opset=18, constant=(3,),
      oracle=by_onnx),
]  # fmt: skip


def one_node(case: Case) -> tuple[onnx.ModelProto, dict[str, Any]]:
    names = ["" if a is None else f"i{k}" for k, a in enumerate(case.inputs)]
    outputs = [f"o{k}" for k in range(case.num_outputs)]
    node = helper.make_node(case.op, names, outputs, name="node", **case.attrs)
    arrays = {n: np.asarray(a) for n, a in zip(names, case.inputs, strict=True) if n}
    constants = {names[k]: arrays.pop(names[k]) for k in case.constant}
    return model([node], arrays, outputs, constants, case.opset), arrays


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_op_means_what_onnx_says(case):
    """As its record has it, and as the record expands."""
    proto, feeds = one_node(case)
    graph = import_onnx(proto)
    results = case.oracle(proto, feeds)
    for form in (graph, expand(graph)):
        found = run_reference(form, feeds)
        for name, wanted in zip(found, results, strict=True):
            assert_matches(found[name], wanted)


@pytest.mark.parametrize("case", [c for c in CASES if c.constant and c.op != "Compress"], ids=str)
def test_an_input_that_decides_shapes_is_asked_for_by_value(case):
    whole = Case(case.op, case.inputs, case.attrs, case.opset, (), case.num_outputs)
    proto, feeds = one_node(whole)
    wanted_proto, wanted_feeds = one_node(case)
    deciding = [i.name for i in signature(proto).specialisation]
    if deciding:
        with pytest.raises(SpecialisationNeeded) as error:
            import_onnx(proto)
        assert error.value.names == tuple(deciding)
    graph = import_onnx(proto, values={name: feeds[name] for name in deciding})
    found = run_reference(graph, {name: feeds[name] for name in graph.input_names()})
    wanted = run_reference(import_onnx(wanted_proto), wanted_feeds)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def free(name: str, *dims: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)


def test_free_dims_are_asked_for_all_at_once():
    proto = model([node("Add", "x y", "z")], {"x": free("x", "n", 3), "y": free("y", None, 3)}, ["z"])
    with pytest.raises(SpecialisationNeeded, match="--input-shape x:1x3") as error:
        import_onnx(proto)
    assert error.value.names == ("x", "y")
    assert run(import_onnx(proto, shapes={"x": (2, 3), "y": (1, 3)}), rand(2, 3), rand(1, 3))["z"].shape == (2, 3)


def test_dims_of_one_name_are_given_once():
    proto = model([node("Add", "x y", "z")], {"x": free("x", "n", 3), "y": free("y", "n", 3)}, ["z"])
    assert import_onnx(proto, shapes={"x": (5, 3)}).inputs[1].shape == (5, 3)
    with pytest.raises(Error, match=r"'y': got the shape \(4, 3\), need 5x3"):
        import_onnx(proto, shapes={"x": (5, 3), "y": (4, 3)})


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 1), (-1, 3)], ids=str)
def test_a_shape_that_contradicts_the_model_is_refused(shape):
    with pytest.raises(Error, match=r"\[import\] input 'x'"):
        import_onnx(model([node("Relu", "x", "y")], {"x": free("x", "n", 3)}, ["y"]), shapes={"x": shape})


def test_an_input_nobody_knows_is_refused():
    with pytest.raises(Error, match="got the input 'z', need one of x"):
        import_onnx(model([node("Relu", "x", "y")], {"x": rand(3)}, ["y"]), shapes={"z": (1,)})


def test_a_value_computed_from_an_input_asks_for_that_input():
    proto = model(
        [node("Cast", "n", "m", to=7), node("Concat", "m two", "shape", axis=0), node("Reshape", "x shape", "y")],
        {"x": rand(2, 3), "n": np.int32([3])},
        ["y"],
        {"two": ints(2)},
    )
    assert [(i.name, i.free, i.decides) for i in signature(proto).specialisation] == [("n", False, True)]
    graph = import_onnx(proto, values={"n": np.int32([3])})
    assert graph.input_names() == ["x"]
    assert run(graph, rand(2, 3))["y"].shape == (3, 2)


def test_shapes_computed_from_shapes_vanish():
    """The view(x.size(0), -1) of exporters: Shape, Gather, Unsqueeze, Concat, Reshape."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n zeros", "n1"),
        node("Concat", "n1 rest", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    proto = model(nodes, {"x": free("x", "n", 3, 4)}, ["y"], {"zero": np.int64(0), "zeros": ints(0), "rest": ints(-1)})
    graph = import_onnx(proto, shapes={"x": (2, 3, 4)})
    assert [n.op for n in graph.nodes] == ["input", "reshape"]


def test_int64_stays_int64():
    proto = model([node("Add", "x c", "y")], {"x": ints(1)}, ["y"], {"c": ints(2**40)})
    assert run(import_onnx(proto), ints(1))["y"].tolist() == [2**40 + 1]


def test_declared_inner_and_output_shapes_are_not_believed():
    proto = model([node("Relu", "x", "y")], {"x": rand(2, 3)}, ["y"])
    proto.graph.output[0].CopyFrom(free("y", 7, 7, 7))
    assert import_onnx(proto).outputs[0].value.shape == (2, 3)


def test_an_initializer_that_is_also_an_input_is_a_constant():
    proto = model([node("Add", "x c", "y")], {"x": rand(3), "c": rand(3)}, ["y"], {"c": rand(3)})
    assert import_onnx(proto).input_names() == ["x"]


def test_an_output_may_be_an_input_or_a_constant():
    found = run(import_onnx(model([], {"x": rand(2)}, ["x", "c"], {"c": np.arange(3.0)})), rand(2))
    np.testing.assert_array_equal(found["x"], rand(2))
    assert found["c"].tolist() == [0, 1, 2]


def test_nodes_may_come_in_any_order():
    proto = model([node("Neg", "y", "z"), node("Relu", "x", "y")], {"x": rand(5)}, ["z"])
    np.testing.assert_array_equal(run(import_onnx(proto), rand(5))["z"], -np.maximum(rand(5), 0))


def test_a_node_keeps_its_name_as_source():
    proto = model([node("Relu", "x", "y", name="first"), node("Neg", "y", "z")], {"x": rand(5)}, ["z"])
    assert [n.source for n in import_onnx(proto).nodes] == ["x", "first", "Neg#1"]


def test_unsupported_nodes_are_reported_all_at_once():
    nodes = [
        node(
            "TfIdfVectorizer",
            "x",
            "a",
            name="places",
            mode="TF",
            ngram_counts=[0],
            ngram_indexes=[0],
            max_gram_length=1,
            max_skip_count=0,
            min_gram_length=1,
        ),
        node("Neg", "a", "b"),
        node("Secret", "x", "c", domain="my.ops"),
        node("MaxPool", "x", "d indices", kernel_shape=[2], storage_order=1, name="pool"),
    ]
    with pytest.raises(Error) as error:
        import_onnx(model(nodes, {"x": rand(1, 3, 3)}, ["b", "c", "d", "indices"]))
    assert str(error.value).splitlines() == [
        "[import] 3 nodes cannot be imported:",
        "  places: TfIdfVectorizer (opset 17): Hexane has no such op yet",
        "  Secret#2: my.ops.Secret (opset ?): got an op of the domain 'my.ops', need standard ONNX ops",
        "  pool: MaxPool (opset 17): got the output Indices for fp32[1, 3, 3] with storage_order 1, need floats, of two axes for 1",
    ]


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition_chooses_its_branch(condition):
    """Branches see the names around them."""
    then_branch, else_branch = (
        helper.make_graph([node(op, "x", f"{op}_out")], op, [], [helper.make_empty_tensor_value_info(f"{op}_out")])
        for op in ("Neg", "Exp")
    )
    proto = model(
        [node("If", "c", "y", then_branch=then_branch, else_branch=else_branch)],
        {"x": rand(4)},
        ["y"],
        {"c": np.array(condition)},
    )
    assert_matches(run(import_onnx(proto), rand(4))["y"], -rand(4) if condition else np.exp(rand(4)))


def body(nodes: Sequence[onnx.NodeProto], inputs: str, outputs: str) -> onnx.GraphProto:
    ports = [[helper.make_empty_tensor_value_info(name) for name in names.split()] for names in (inputs, outputs)]
    return helper.make_graph(nodes, "body", *ports)


@pytest.mark.parametrize(("count", "most", "steps"), [(3, 9.0, 3), (9, 4.0, 4)])
def test_a_loop_of_known_length_is_unrolled(count: int, most: float, steps: int) -> None:
    """Until the trip count, or until a condition that is known says stop; the body sees the names around it."""
    inner = body(
        [node("Mul", "v scale", "w"), node("Add", "i one", "j"), node("Cast", "j", "k", to=1), node("Less", "k most", "on"),
         node("Identity", "w", "out")],
        "i go v", "on w out",
    )  # fmt: skip
    constants = {
        "n": ints(count),
        "go": np.array(True),
        "scale": np.float32(0.5),
        "one": np.int64(1),
        "most": np.float32(most),
    }
    proto = model([node("Loop", "n go x", "y ys", body=inner)], {"x": rand(3)}, ["y", "ys"], constants)
    found = run(import_onnx(proto), rand(3))
    assert_matches(found["y"], rand(3) * np.float32(0.5**steps))
    assert_matches(found["ys"], np.stack([rand(3) * np.float32(0.5 ** (i + 1)) for i in range(steps)]))


def test_a_loop_whose_condition_is_computed_is_refused():
    inner = body(
        [node("Identity", "v", "w"), node("ReduceSum", "v", "s", keepdims=0), node("Cast", "s", "on", to=9)],
        "i go v",
        "on w",
    )
    proto = model([node("Loop", " go x", "y", body=inner)], {"x": rand(3)}, ["y"], {"go": np.array(True)})
    proto.graph.node[0].input[:] = ["", "go", "x"]
    with pytest.raises(Error, match="a condition that is computed at run time"):
        import_onnx(proto)


def test_nested_loops_without_nodes_stay_finite():
    graph = body([], "i2 go2", "go2")
    for _ in range(3):
        graph = body([helper.make_node("Loop", ["n", "go"], [], body=graph)], "i go1", "go1")
    proto = model(
        [helper.make_node("Loop", ["n", "go"], [], body=graph)],
        {"x": rand(3)},
        ["x"],
        {"n": ints(4000), "go": np.array(True)},
    )
    with pytest.raises(Error, match="need fewer"):
        import_onnx(proto)


@pytest.mark.parametrize("back", [0, 1])
def test_scan_reads_slices_and_stacks_results(back: int) -> None:
    inner = body([node("Add", "s v", "t"), node("Mul", "t t", "out")], "s v", "t out")
    attrs = {
        "scan_input_axes": [1],
        "scan_input_directions": [back],
        "scan_output_axes": [1],
        "scan_output_directions": [back],
    }
    proto = model([node("Scan", "start x", "last ys", body=inner, num_scan_inputs=1, **attrs)], {"x": rand(3, 4)}, ["last", "ys"],
                  {"start": np.zeros(3, np.float32)})  # fmt: skip
    found = run(import_onnx(proto), rand(3, 4))
    x = rand(3, 4)[:, ::-1] if back else rand(3, 4)
    squares = np.cumsum(x, 1) ** 2
    assert_matches(found["last"], rand(3, 4).sum(1))
    assert_matches(found["ys"], squares[:, ::-1] if back else squares)


@pytest.mark.parametrize(
    ("shape", "axis", "aligned"), [((3,), 1, (3, 1)), ((4,), None, (4,)), ((2, 3), 0, (2, 3, 1))], ids=str
)
def test_opset_6_broadcasts_from_an_axis(shape, axis, aligned):
    attrs = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
    proto = model([node("Add", "x y", "z", **attrs)], {"x": rand(2, 3, 4), "y": rand(*shape)}, ["z"], opset=6)
    found = run(import_onnx(proto), rand(2, 3, 4), rand(*shape))
    np.testing.assert_array_equal(found["z"], rand(2, 3, 4) + rand(*shape).reshape(aligned))


@pytest.mark.parametrize(
    ("op", "attrs", "inputs", "message"),
    [
        ("Add", {}, [rand(2, 3), rand(3)], "without broadcast, need equal ones"),
        ("Add", {"broadcast": 1}, [rand(3), rand(2, 3)], "need the second inside the first"),
        ("Dropout", {}, [rand(2, 3)], "is_test: got 0, need inference"),
        ("AveragePool", {"kernel_shape": [2], "pads": [1, 1]}, [rand(1, 1, 5)], "does not say how to count"),
        ("PRelu", {}, [rand(1, 2, 3), rand(3)], "need one for each channel"),
        ("LSTM", {}, [rand(2, 1, 3), rand(1, 8, 3), rand(1, 8, 2)], "need opset 7 or newer"),
    ],
)  # fmt: skip
def test_opset_6_is_refused_where_it_is_vague(op, attrs, inputs, message):
    feeds = {f"i{k}": array for k, array in enumerate(inputs)}
    proto = model([node(op, " ".join(feeds), "y", **attrs)], feeds, ["y"], opset=6)
    with pytest.raises(Error, match=message):
        import_onnx(proto)


def affine(alpha: float | None, calls: Sequence[onnx.NodeProto] = ()) -> onnx.FunctionProto:
    """y = alpha * x + 1, alpha an attribute (5 unless given)."""
    constant = helper.make_node("Constant", [], ["a"])
    constant.attribute.append(
        onnx.AttributeProto(name="value_float", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    )
    one = node("Constant", "", "one", value_float=1.0)
    return helper.make_function(
        "mine", "affine", ["x"], ["y"], [constant, one, node("Mul", "x a", "ax"), node("Add", "ax one", "y"), *calls],
        [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
        attribute_protos=[helper.make_attribute("alpha", 5.0)],
    )  # fmt: skip


@pytest.mark.parametrize("attrs", [{}, {"alpha": 2.0}], ids=str)
def test_functions_of_the_model_are_inlined(attrs):
    proto = model([node("affine", "x", "y", domain="mine", **attrs)], {"x": rand(4)}, ["y"], functions=[affine(None)])
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert_matches(run(import_onnx(proto), rand(4))["y"], rand(4) * np.float32(attrs.get("alpha", 5.0)) + 1)


def test_a_function_that_calls_itself_is_refused():
    function = affine(None, [node("affine", "y", "again", domain="mine")])
    proto = model([node("affine", "x", "y", domain="mine")], {"x": rand(4)}, ["y"], functions=[function])
    with pytest.raises(Error, match="calls itself"):
        import_onnx(proto)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e4m3fn", "int4", "uint4", "bool", "uint16", "float64"]
)
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_initializers_of_every_dtype_keep_their_bits(dtype, raw):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    array = np.array([0, 1, 1, 0, 1], np.int8).astype(kind)
    code = helper.np_dtype_to_tensor_dtype(kind)
    if raw:
        tensor = numpy_helper.from_array(array, "c")
    else:
        tensor = helper.make_tensor("c", code, array.shape, array.astype(np.float32).tolist())
    proto = model([], {"x": rand(1)}, ["c"])
    proto.graph.initializer.append(tensor)
    (port,) = import_onnx(proto).outputs
    assert port.value.node.data.tobytes() == array.tobytes()


def test_a_broadcast_scalar_is_not_materialised():
    proto = model(
        [node("ConstantOfShape", "s", "c"), node("Add", "x c", "y")], {"x": rand(1)}, ["y"], {"s": ints(1 << 26)}
    )
    assert "broadcast_to" in [n.op for n in import_onnx(proto).nodes]


@pytest.mark.parametrize("opset", [5, NEWEST + 1])
def test_an_opset_outside_the_supported_range_is_refused(opset):
    with pytest.raises(Error, match=f"got opset {opset}, need 6 to {NEWEST}"):
        import_onnx(model([], {"x": rand(1)}, ["x"], opset=opset))


def test_an_attribute_that_nothing_reads_is_refused():
    proto = model([node("Transpose", "x", "y", perm=[0], sideways=1)], {"x": rand(1)}, ["y"])
    with pytest.raises(Error, match="got the attribute 'sideways', need one of perm"):
        import_onnx(proto)


@pytest.mark.parametrize(
    "name",
    ["autoencoder", "ds_cnn", "mobilenet_v1_025_96", "mobilenet_v2_035_96", "randwire", "resnet8", "resnet8_bn",
     "transformer", "unet_128", "yolo_160"],
)  # fmt: skip
def test_benchmark_networks_match_onnxruntime(name, model_file):
    proto = onnx.load(model_file(name))
    graph = import_onnx(proto)
    feeds = {str(v.node.attrs["name"]): rand(*v.shape) for v in graph.inputs}
    found = run_reference(graph, feeds)
    for output, wanted in zip(found.values(), by_onnxruntime(proto, feeds), strict=True):
        assert_matches(output, wanted)


def small_networks() -> dict[str, onnx.ModelProto]:
    """A few layers of each kind of network, at several opsets."""
    weights = {
        "w1": rand(8, 3, 3, 3), "b1": rand(8), "w2": rand(8, 1, 3, 3), "w3": rand(16, 8, 1, 1), "w4": rand(8, 4, 2, 2),
        **{k: rand(8, low=0.5) for k in ("g", "b", "m", "v")}, "wq": rand(8, 24), "wo": rand(8, 8),
        "split": ints(8, 8), "scales": np.float32([1, 1, 2, 2]), "zero": np.float32(0), "six": np.float32(6),
    }  # fmt: skip
    mobile = [
        node("Conv", "x w1 b1", "a", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", "a g b m v", "c"),
        node("Clip", "c zero six", "d"),
        node("Conv", "d w2", "e", group=8, auto_pad="SAME_UPPER"),
        node("Add", "e d", "f"),
        node("Conv", "f w3", "h"),
        node("Sigmoid", "h", "i"),
        node("Mul", "h i", "j"),
        node("Split", "j split", "k1 k2", axis=1),
        node(
            "Resize",
            "k1  scales",
            "up",
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        node("ConvTranspose", "k2 w4", "t", strides=[2, 2]),
        node("Concat", "up t", "u", axis=1),
        node("MaxPool", "u", "p", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
        node("GlobalAveragePool", "p", "gap"),
        node("Flatten", "gap", "out1"),
        node("Softmax", "out1", "y"),
    ]
    mobile[9].input[:] = ["k1", "", "scales"]
    encoder = [
        node("LayerNormalization", "x g b", "n", axis=-1),
        node("MatMul", "n wq", "qkv"),
        node("Reshape", "qkv heads", "r"),
        node("Transpose", "r", "t", perm=[2, 0, 3, 1, 4]),
        *(node("Gather", f"t {i}", f"{i}_1", axis=0) for i in "qkv"),
        *(node("Reshape", f"{i}_1 square", f"{i}_2") for i in "qkv"),
        node("Transpose", "k_2", "k_3", perm=[0, 1, 3, 2]),
        node("MatMul", "q_2 k_3", "scores"),
        node("Mul", "scores scale", "scaled"),
        node("Softmax", "scaled", "weights", axis=-1),
        node("MatMul", "weights v_2", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back flat", "joined"),
        node("MatMul", "joined wo", "o"),
        node("Add", "x o", "y"),
    ]
    sizes = {"heads": ints(1, 5, 3, 2, 4), "square": ints(1, 2, 5, 4), "flat": ints(1, 5, 8), "scale": np.float32(0.5)}
    attention = {**weights, **sizes, **{name: ints(place) for place, name in enumerate("qkv")}}
    result = {f"convolutions-{o}": model(mobile, {"x": rand(1, 3, 9, 8)}, ["y"], weights, o) for o in (13, 17)}
    result["encoder-17"] = model(encoder, {"x": rand(1, 5, 8)}, ["y"], attention)
    return result


@pytest.mark.parametrize(("name", "proto"), small_networks().items(), ids=lambda v: v if isinstance(v, str) else "")
def test_small_networks_match_onnxruntime(name, proto):
    graph = import_onnx(proto)
    feeds = {str(v.node.attrs["name"]): rand(*v.shape) for v in graph.inputs}
    assert_matches(run_reference(graph, feeds)["y"], by_onnxruntime(proto, feeds)[0])
