"""The gradient of a root-mean-square norm on this CPU, in one pass over each row."""

import numpy as np

from hexane.dtypes import FP32, DType
from hexane.errors import Error
from hexane.graph import Array
from hexane.ops.attributes import number
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Op

RMS_NORM_GRADIENT = "rms_norm_gradient"


def _shape(x: Shape, gradient: Shape, gamma: Shape, **_: object) -> list[Shape]:
    if x != gradient or gamma != x[-1:] or not x:
        raise Error(f"got {x}, {gradient} and {gamma}, need one shape for x and the gradient, and one gamma per column")
    return [x, x]


def _dtype(x: DType, gradient: DType, gamma: DType, **_: object) -> DType:
    if {x, gradient, gamma} != {FP32}:
        raise Error(f"got {x}, {gradient} and {gamma}, need fp32")
    return FP32


def _gradients(x: Array, gradient: Array, gamma: Array, epsilon: float) -> list[Array]:
    over = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + epsilon)
    normal, scaled = x * over, gradient * gamma
    result = (scaled - normal * np.mean(scaled * normal, axis=-1, keepdims=True)) * over
    return [np.asarray(a, x.dtype) for a in (result, gradient * normal)]


OPS = (
    Op(
        name=RMS_NORM_GRADIENT,
        doc="The gradient of x (.., C) in rms_norm(x, gamma) over the last axis, and `share`: the result's gradient "
            "times x / root, whose sum over the rows is the gradient of gamma.",
        inputs=("x", "gradient", "gamma"), outputs=("x", "share"), attrs={"epsilon": number(1e-5)}, shape=_shape,
        dtype=_dtype, kernel=RMS_NORM_GRADIENT, level="kernel", ref=_gradients, cases=(),
    ),
)  # fmt: skip
