"""Each ONNX op means what onnxruntime, or ONNX's own reference, makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compare import assert_matches
from hexane.errors import Error
from hexane.importers.onnx import SpecialisationNeeded, import_onnx, signature
from hexane.ops.reference import run_reference
from hexane.passes.legalize.expand import expand
from hexane.targets import load_target
from onnx_models import AGED, by_onnx, by_onnxruntime, image, ints, model, onnxruntime_saturates, rand


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
    C("ThresholdedRelu", [np.float32([np.nan, 2, 0])], {"alpha": 0.5}),
    C("Pow", [np.float32([-np.inf, 4, np.inf]), np.float32(0.5)], opset=15, constant=(0, 1)),
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
    C("MatMul", [ints([[2**40, -3, 5]]), ints([[7], [2**20], [-1]])]),
    C("MatMul", [rand(2, 1, 3, 4, dtype=np.int32, low=-9, high=9), rand(5, 4, 2, dtype=np.int32, low=-9, high=9)]),
    C("MatMul", [np.int32([1, 2, 3]), rand(2, 3, 4, dtype=np.int32, low=-9, high=9)]),
    C("Gemm", [rand(3, 4), rand(4, 5), rand(5)], opset=7),
    C("Gemm", [rand(4, 3), rand(5, 4), rand(3, 1)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    C("Gemm", [rand(3, 4), rand(4, 5)], {"alpha": 0.5}, opset=11),
    C("Gemm", [rand(3, 4), rand(4, 5), rand(1)[0]], {"beta": 0.5}),
    C("Gemm", [rand(3, 4), rand(4, 5), np.float32([np.nan])], {"beta": 0.0}),
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
    # Pads that cut, as speech models have them for the number before each one.
    C("Pad", [rand(2, 9), ints(0, 1, 0, -1)], {"mode": "edge"}, opset=17, constant=(1,)),
    C("Pad", [rand(2, 3, 9), ints(-1, 0, 3, 0, 0, -2)], {"mode": "reflect"}, opset=17, constant=(1,)),
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
    C("ReduceSum", [rand(2, 3)], {"noop_with_empty_axes": 1, "keepdims": 0}, opset=13),
    C("ReduceSum", [rand(2, 3)], {"keepdims": 0}, opset=13),
    C("ReduceMean", [ints([[-7, 2, 0], [5, 5, 1]]), ints(1)], opset=18, constant=(1,)),
    C("ReduceMean", [np.int32([[-7, 2, 0], [5, 5, 1]])], {"keepdims": 0}, opset=13),
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
    *(C(op, [rand(1, 2, 8, 13), *more], {"strides": [4, 5], "auto_pad": auto, **attrs})
      for auto in ("SAME_UPPER", "SAME_LOWER")
      for op, more, attrs in (
          ("MaxPool", [], {"kernel_shape": [1, 2], "dilations": [2, 1]}), ("LpPool", [], {"kernel_shape": [2, 1]}),
          ("Conv", [rand(3, 2, 1, 2)], {}))),
    *(C("AveragePool", [rand(1, 2, 8, 13)], {"strides": [4, 5], "kernel_shape": [1, 2], "dilations": [2, 1], "auto_pad": auto,
                                             "count_include_pad": count}, opset=19)
      for auto in ("SAME_UPPER", "SAME_LOWER") for count in (0, 1)),
    *(C("MaxPool", [np.uint8(rand(1, 2, 8, 13, low=0, high=255))], {"strides": [4, 5], "kernel_shape": [1, 2], "auto_pad": auto},
        opset=12)
      for auto in ("SAME_UPPER", "SAME_LOWER")),
    *(C("ConvInteger", [np.uint8(rand(1, 2, 8, 13, low=0, high=255)), np.int8(rand(3, 2, 1, 2, low=-99, high=99)), zero],
        {"strides": [4, 5], "auto_pad": auto}, opset=10)
      for auto in ("SAME_UPPER", "SAME_LOWER") for zero in (np.uint8(9), np.uint8(0))),
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
    C("LayerNormalization", [np.float16(rand(2, 40, low=-900, high=900)), np.ones(40, np.float16)], num_outputs=3),
    C("LayerNormalization", [rand(2, 40).astype(np.float64), np.ones(40)], num_outputs=3),
    *(C("Slice", [rand(4, 6), ints(start), ints(end), ints(1), ints(step)], opset=13, constant=(1, 2, 3, 4))
      for start, step in ((-1, -1), (2, -2), (0, -1), (100, -3))
      for end in (2**31 - 1, 2**63 - 1, 2**31 - 2, -(2**63))),
    C("GroupNormalization", [rand(2, 6, 4), rand(2), rand(2)], {"num_groups": 2}, opset=18),
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
    C("LSTM", [rand(5, 2, 3), rand(1, 16, 3), rand(1, 16, 4)], {"hidden_size": 4, "activations": ["HardSigmoid", "Tanh", "Tanh"],
      "activation_alpha": [0.2], "activation_beta": [0.5]}, opset=14, num_outputs=3),
    C("GRU", [rand(5, 2, 3), rand(1, 12, 3), rand(1, 12, 4)], {"hidden_size": 4, "activations": ["HardSigmoid", "Tanh"]},
      opset=14, num_outputs=2),
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
    C("STFT", [rand(2, 30), ints(4)[0], rand(8, low=0.1)], {"onesided": 1}, constant=(1,)),
    C("STFT", [rand(2, 30, 2), ints(5)[0], None, ints(10)[0]], {"onesided": 0}, constant=(1, 3), oracle=by_onnx),
    # Between elements.
    *(C("GridSample", [rand(2, 3, 5, 4), rand(2, 6, 7, 2, low=-1.6, high=1.6)],
        {"mode": mode, "padding_mode": padding, "align_corners": corners}, opset=16)
      for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection") for corners in (0, 1)
      if (mode, padding) != ("bicubic", "border")),
    C("GridSample", [rand(1, 2, 3, 4, 5), rand(1, 2, 3, 4, 3, low=-1.2, high=1.2)], {"mode": "linear"}, opset=20),
    *(C("RoiAlign", [rand(2, 3, 9, 8), np.float32([[0, 0, 7, 7], [-3, 1, 3.5, 20], [2, 2, 2.1, 2.1]]), ints(1, 0, 1)],
        {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.5, "mode": mode,
         "coordinate_transformation_mode": half}, opset=16)
      for mode, half, ratio in (("avg", "half_pixel", 2), ("avg", "output_half_pixel", 2), ("avg", "output_half_pixel", 0),
                                ("avg", "half_pixel", 0))),
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

INTEGER_PRODUCTS = ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")

# Attributes and inputs that change nothing where they stand.
POOLED = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
LEARNED = {"activations": ["Sigmoid", "Tanh"], "activation_alpha": [0.7, 0.1], "activation_beta": [0.3, 0.1]}
HARMLESS = [
    *(C("ConvTranspose", [image(6), rand(3, 2, 3, 3)], {"strides": [2, 2], "output_shape": [12, 11], "pads": pads})
      for pads in ([5, 5, 5, 5], [0, 1, 0, 1])),
    *(C(op, [rand(2, 3, 6, 8)], {**POOLED, **attrs}, opset=22)
      for op in ("MaxPool", "AveragePool")
      for attrs in ({}, {"auto_pad": "VALID"}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER", "strides": [1, 2]})),
    C("MaxPool", [image()], {**POOLED, "kernel_shape": [1, 1], "dilations": [3, 2], "auto_pad": "SAME_UPPER"}, opset=12),
    C("MaxPool", [rand(1, 2, 9)], {"kernel_shape": [3], "storage_order": 1}, opset=12, num_outputs=2),
    C("LpPool", [rand(2, 3, 6, 8)], POOLED, opset=18),
    *(C("Resize", [image(), None, None, ints(2, 3, 7, 8)], {"mode": mode, "antialias": 1, **attrs}, opset=18, constant=(3,))
      for mode, attrs in (("linear", {}), ("cubic", {"exclude_outside": 1, "cubic_coeff_a": -0.5}))),
    *(C(op, [rand(2, 3, 4, low=0.5), axes], {"noop_with_empty_axes": 1, "keepdims": keep}, opset=18, constant=(1,))
      for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum")
      for axes, keep in ((ints(1), 1), (ints(0, -1), 0))),
    *(C("QuantizeLinear", [rand(3, 4), np.float32(0.02), zero], {"saturate": 0}, opset=21)
      for zero in (np.int8(3), np.uint8(100), np.int16(-7), np.uint16(1000))),
    C("GRU", [rand(5, 2, 3), rand(1, 12, 3), rand(1, 12, 4)], {"hidden_size": 4, **LEARNED}, opset=14, num_outputs=2),
    C("Range", [np.int64(2), np.int64(9), np.int64(3)], {"stash_type": 10}, opset=27, constant=(0, 1, 2), oracle=by_onnx),
]  # fmt: skip


def one_node(case: Case) -> tuple[onnx.ModelProto, dict[str, Any]]:
    names = ["" if a is None else f"i{k}" for k, a in enumerate(case.inputs)]
    outputs = [f"o{k}" for k in range(case.num_outputs)]
    node = helper.make_node(case.op, names, outputs, name="node", **case.attrs)
    arrays = {n: np.asarray(a) for n, a in zip(names, case.inputs, strict=True) if n}
    constants = {names[k]: arrays.pop(names[k]) for k in case.constant}
    return model([node], arrays, outputs, constants, case.opset), arrays


def empty_shapes(feeds: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs without elements, whose dims of 0 are free."""
    return {name: array.shape for name, array in feeds.items() if array.size == 0}


@pytest.mark.parametrize("case", HARMLESS, ids=str)
def test_an_attribute_is_only_refused_where_it_changes_the_result(case):
    test_an_op_means_what_onnx_says(case)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (C("MaxPool", [image()], {**POOLED, "auto_pad": "VALID"}, opset=12), "ceil_mode with auto_pad VALID"),
        (C("MaxPool", [image()], {**POOLED, "dilations": [2, 1], "auto_pad": "SAME_UPPER"}, opset=12), "need pads"),
        (C("LpPool", [image()], POOLED, opset=18), "makes a window more"),
        (
            C("Resize", [image(), None, None, ints(1, 3, 4, 4)], {"antialias": 1}, opset=18, constant=(3,)),
            "'antialias'",
        ),
        (
            C("ConvTranspose", [image(), rand(3, 2, 3, 3)], {"auto_pad": "SAME_UPPER", "pads": [1, 1, 1, 1]}),
            "one or the",
        ),
        (C("ReduceL1", [rand(2, 3)], {"noop_with_empty_axes": 1}, opset=18), "differs between opsets"),
    ],
    ids=str,
)
def test_an_attribute_that_would_change_the_result_is_refused(case, message):
    with pytest.raises(Error, match=message):
        import_onnx(one_node(case)[0])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_op_means_what_onnx_says(case):
    """In both forms: as imported, and expanded into ops with kernels."""
    proto, feeds = one_node(case)
    if AGED and case.op == "LayerNormalization" and case.num_outputs > 1:
        pytest.skip("this onnxruntime rounds the mean and the deviation to fp16")
    graph = import_onnx(proto, shapes=empty_shapes(feeds))
    saturates = case.op in INTEGER_PRODUCTS and onnxruntime_saturates()
    results = (by_onnx if saturates else case.oracle)(proto, feeds)
    for form in (graph, expand(graph, load_target("host"))):
        found = run_reference(form, feeds)
        for name, wanted in zip(found, results, strict=True):
            assert_matches(found[name], wanted)


@pytest.mark.parametrize("case", [c for c in CASES if c.constant and c.op != "Compress"], ids=str)
def test_an_input_that_decides_shapes_is_asked_for_by_value(case):
    whole = Case(case.op, case.inputs, case.attrs, case.opset, (), case.num_outputs)
    proto, feeds = one_node(whole)
    wanted_proto, wanted_feeds = one_node(case)
    empty = empty_shapes(feeds)
    shape_inputs = [i.name for i in signature(proto).specialisation if i.name not in empty]
    if shape_inputs:
        with pytest.raises(SpecialisationNeeded) as error:
            import_onnx(proto, shapes=empty)
        assert error.value.names == tuple(shape_inputs)
    graph = import_onnx(proto, shapes=empty, values={name: feeds[name] for name in shape_inputs})
    found = run_reference(graph, {name: feeds[name] for name in graph.input_names()})
    wanted = run_reference(import_onnx(wanted_proto, shapes=empty_shapes(wanted_feeds)), wanted_feeds)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])
