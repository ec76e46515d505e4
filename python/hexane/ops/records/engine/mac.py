"""Layers that multiply and accumulate: convolutions, products, attention."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hexane.dtypes import BOOL, FP32, DType
from hexane.errors import Error
from hexane.ops.attributes import flag, number
from hexane.ops.dtype_rules import floating
from hexane.ops.records.engine.convolution import (
    CONV,
    conv_attrs,
    conv_core,
    conv_ref,
    conv_shape,
    deconvolution,
    looked_up,
    weighted,
    weights_of_layer,
)
from hexane.ops.records.engine.form import HALVES, slotted
from hexane.ops.records.linear import matmul_shape
from hexane.ops.records.reduce import softmax
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op

Array = Any


# ---- products ----


def _matmul_core(b: Any, lhs: Any, rhs: Any, transpose_lhs: bool, transpose_rhs: bool) -> Any:
    return "matmul", [lhs, rhs], {"transpose_x": transpose_lhs, "transpose_y": transpose_rhs}


def _matmul_ref(lhs: Array, rhs: Array, transpose_lhs: bool, transpose_rhs: bool) -> Array:
    left, right = "ki" if transpose_lhs else "ik", "jk" if transpose_rhs else "kj"
    return np.einsum(f"...{left},...{right}->...ij", lhs, rhs)


def _linear_shape(x: Shape, weight: Shape, lut: Shape | None = None) -> Shape:
    if len(weight) != 2 or not 2 <= len(x) <= 4 or x[-1] != weight[1]:
        raise Error(
            f"got an input of shape {x} and a weight of shape {weight}, need (.., in) of rank 2 to 4 and (out, in)"
        )
    return (*x[:-1], weight[0])


def _linear_core(b: Any, x: Any, weight: Any, lut: Any = None) -> Any:
    return "matmul", [x, weights_of_layer(b, weight, lut)], {"transpose_x": False, "transpose_y": True}


# ---- attention ----


SDPA_OPERANDS = ("transpose_query", "transpose_key", "transpose_value")
SDPA_RESULT = "transpose_result"


def sdpa_core(attend: Callable[..., Any], *inputs: Any, turn: Callable[[Any], Any], **attrs: Any) -> Any:
    """Applies an attention function to plain operands: transposed operands are transposed back first, and the result at
    the end."""
    flags = [attrs.pop(name) for name in SDPA_OPERANDS]
    back = attrs.pop(SDPA_RESULT)
    operands = [turn(v) if flag else v for v, flag in zip(inputs[:3], flags, strict=True)]
    result = attend(*operands, *inputs[3:], **attrs)
    return turn(result) if back else result


def swapped_rows(b: Any, x: Any) -> Any:
    rank = len(x.shape)
    return b.transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _sdpa_shape(*inputs: Shape | None, **attrs: Any) -> Shape:
    def attended(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> Shape:
        return matmul_shape(matmul_shape(query, key, transpose_y=True), value)

    result: Shape = sdpa_core(attended, *inputs, turn=lambda v: (*v[:-2], v[-1], v[-2]), **attrs)
    return result


def _sdpa_dtype(query: DType, key: DType, value: DType, mask: DType | None, **_: Any) -> DType:
    if mask is BOOL:
        raise Error("got a mask of bool, need numbers that are added to the scores")
    return floating(query, key, value, mask)


def _sdpa_expand(b: Any, *inputs: Any, **attrs: Any) -> Any:
    return sdpa_core(partial(_sdpa_steps, b), *inputs, turn=partial(swapped_rows, b), **attrs)


def _sdpa_steps(b: Any, query: Any, key: Any, value: Any, mask: Any = None, *, scale: float, subtract_max: bool) -> Any:
    """Expands as the engine's compiler does: the key is transposed, then product, scale as a gain, mask, softmax,
    product."""
    store = query.dtype
    wide = FP32 if store in HALVES else store
    query, key, value, mask = (
        v if v is None or v.dtype is wide else b.cast(v, dtype=wide) for v in (query, key, value, mask)
    )
    scores = b.mul(b.matmul(query, key, transpose_y=True), scale)
    scores = scores if mask is None else b.add(scores, mask)
    result = b.matmul(_softmax(b, scores, len(scores.shape) - 1, subtract_max), value)
    return result if store is wide else b.cast(result, dtype=store)


def _sdpa_ref(*inputs: Array | None, **attrs: Any) -> Array:
    return sdpa_core(_sdpa_plain, *inputs, turn=lambda v: np.swapaxes(v, -1, -2), **attrs)


def _sdpa_plain(
    query: Array, key: Array, value: Array, mask: Array | None = None, *, scale: float, subtract_max: bool
) -> Array:
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) * scale + (0 if mask is None else mask)
    return np.matmul(softmax(scores, -1), value)


LOG2_E = 1.4426950408889634


def _softmax(b: Any, x: Any, axis: int, subtract_max: bool) -> Any:
    """Expands to maximum, subtraction, exp2 of x times log2(e), sum, reciprocal and product."""
    x = b.sub(x, b.reduce_max(x, axes=(axis,))) if subtract_max else x
    powers = b.exp2(b.mul(x, LOG2_E))
    return b.mul(powers, b.inverse(b.reduce_sum(powers, axes=(axis,))))


def softmax_expand(b: Any, x: Any, axis: int) -> Any:
    wide = FP32 if x.dtype in HALVES else x.dtype
    result = _softmax(b, x if wide is x.dtype else b.cast(x, dtype=wide), axis, subtract_max=True)
    return result if wide is x.dtype else b.cast(result, dtype=x.dtype)


def ops(user: Mapping[str, Op]) -> tuple[Op, ...]:
    return (
        slotted(
            conv_core, name="anec.convolution",
            doc="Convolution of x (N, C, H, W) with constant weights (out, C / groups, kernel...); lut: a table that the weights are "
                "indices of. explicit_padding: (begin, end) of every spatial axis.",
            layer="Conv", inputs=("x", "weight", "lut?"), attrs=CONV, shape=conv_shape, dtype=weighted, canonical=conv_attrs, ref=conv_ref,
            cases=(Case(((1, 3, 9, 8), (5, 3, 3, 3)), {"explicit_padding": (1, 1, 1, 1)}),
                   Case(((2, 4, 7, 7), (6, 2, 3, 2)), {"groups": 2, "strides": (2, 2), "padding_style": "tf_same"}),
                   Case(((1, 2, 4, 5, 6), (3, 2, 2, 3, 1)))),
        ),
        deconvolution(user["conv_transpose"]),
        slotted(
            lambda b, x, template, **a: conv_core(b, x, template, **a),
            name="anec.cross_correlation", doc="Convolution of x (N, C, H, W) with a template (out, C / groups, kernel...) that is computed.",
            layer="CrossCorrelation", inputs=("x", "template"),
            attrs={k: v for k, v in CONV.items() if k not in ("padding_style", "kernel_sizes", "weights_layout")},
            shape=lambda x, t, **a: conv_shape(x, t, None, **a), dtype=floating, ref=conv_ref,
            cases=(Case(((1, 3, 6, 7), (4, 3, 3, 3)), {"explicit_padding": (1, 1, 0, 0)}),),
        ),
        slotted(
            _matmul_core, name="anec.matmul", doc="Matrix product over the last two axes; each operand may be read transposed.",
            layer="MatrixMult", inputs=("lhs", "rhs"), attrs={"transpose_lhs": flag(False), "transpose_rhs": flag(False)},
            shape=lambda x, y, transpose_lhs, transpose_rhs: matmul_shape(x, y, None, transpose_lhs, transpose_rhs),
            dtype=floating, ref=_matmul_ref,
            cases=tuple(Case((a, c), {"transpose_lhs": s, "transpose_rhs": t})
                        for a, s in (((2, 7, 5), False), ((2, 5, 7), True)) for c, t in (((5, 3), False), ((2, 3, 5), True))),
        ),
        slotted(
            _linear_core, name="anec.linear", doc="x @ weight.T with constant weights (out, in); lut: a table that the weights are indices of.",
            layer="Linear", inputs=("x", "weight", "lut?"), shape=_linear_shape, dtype=weighted,
            ref=lambda x, weight, lut=None: np.einsum("...k,jk->...j", x, looked_up(weight, lut)),
            cases=(Case(((3, 7), (5, 7))), Case(((2, 3, 4), (6, 4)))),
        ),
        Op(
            name="anec.sdpa", doc="softmax(query @ key.T * scale + mask) @ value, over the last two axes; its products read operands, and write the result, transposed.", level="engine", layer="SDPA",
            inputs=("query", "key", "value", "mask?"), attrs={"scale": number(), "subtract_max": flag(True), **{name: flag(False) for name in (*SDPA_OPERANDS, SDPA_RESULT)}}, shape=_sdpa_shape,
            dtype=_sdpa_dtype, expand=_sdpa_expand, ref=_sdpa_ref,
            cases=(Case(((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)), {"scale": 0.35}),
                   Case(((2, 5, 8), (2, 6, 8), (2, 6, 8), (5, 6)), {"scale": 0.25}),
                   Case(((2, 8, 5), (2, 6, 8), (2, 4, 6), (5, 6)), {"scale": 0.5, "transpose_query": True, "transpose_value": True, "transpose_result": True}),
                   Case(((3, 5, 4), (3, 4, 6), (3, 6, 7)), {"scale": 0.5, "transpose_key": True})),
        ),
    )  # fmt: skip
