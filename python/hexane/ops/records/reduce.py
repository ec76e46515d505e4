"""Reductions, softmax, cumulative sums and products."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import FP32, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.ops.attributes import element_type, flag, integer, integers, typed
from hexane.ops.compose import Builder, cast
from hexane.ops.dtype_rules import floating, numeric
from hexane.ops.gradients import reduce as grads
from hexane.ops.gradients.rule import Rule, zero
from hexane.ops.index_functions import check_found
from hexane.ops.shape_rules import Shape, axis_index, axis_indices, one_axis, reduced, resolve_reduced_axes, same
from hexane.ops.spec import Case, Op

Array = Any


def _axes(x: Array, axes: tuple[int, ...]) -> tuple[int, ...]:
    return axis_indices(axes, x.ndim) or tuple(range(x.ndim))


def mean(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Returns the mean, or NaN for no elements, where np.mean would warn."""
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims)) / prod(x.shape[a] for a in axis)


def _max(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Returns the maximum, or the dtype's lowest value for no elements."""
    lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    return np.max(x, axis=axis, keepdims=keepdims, initial=lowest)


def _min(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Returns the minimum, or the dtype's highest value for no elements."""
    highest = np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).max
    return np.min(x, axis=axis, keepdims=keepdims, initial=highest)


def _log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis)


def _reduce(
    name: str,
    doc: str,
    ref: Callable[..., Any],
    dtype: Callable[..., Any],
    onnx: str,
    low: float = -2.0,
    grad: Rule | None = None,
) -> Op:
    def run(x: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
        return ref(x, axis=_axes(x, axes), keepdims=keep_dims)

    return Op(
        name=name, doc=doc, inputs=("x",), attrs={"axes": integers(()), "keep_dims": typed(flag(True))}, shape=reduced,
        dtype=dtype, kernel=name, canonical=resolve_reduced_axes, layout="reduce", lengths="sum" if name == "reduce_sum" else "reduce", ref=run, onnx=(onnx,), grad=grad,
        cases=(Case(((2, 3, 17),), {"axes": (-1,)}, low=low), Case(((2, 5, 4),), {"axes": (0, 1), "keep_dims": False}, low=low),
               Case(((3, 4),), {"keep_dims": False}, low=low)),
    )  # fmt: skip


def _arg(name: str, doc: str, ref: Callable[..., Any]) -> Op:
    def shape(x: Shape, axis: int, keep_dims: bool, dtype: Any) -> Shape:
        if x[axis_index(axis, len(x))] == 0:
            raise Error(f"got the shape {x}, need at least one element along axis {axis}")
        check_found(dtype, x[axis_index(axis, len(x))])
        return reduced(x, (axis,), keep_dims)

    def index_dtype(x: Any, **attrs: Any) -> Any:
        numeric(x)
        return attrs["dtype"]

    def run(x: Array, axis: int, keep_dims: bool, dtype: Any) -> Array:
        places = ref(x, axis=axis).astype(dtype.numpy)
        return np.expand_dims(places, axis) if keep_dims else places

    return Op(
        name=name, doc=doc, inputs=("x",),
        attrs={"axis": integer(-1), "keep_dims": typed(flag(False)), "dtype": element_type("int32")},
        shape=shape, dtype=index_dtype, kernel=name,
        canonical=one_axis,
        kernel_attrs=lambda types, attrs: {"axis": attrs["axis"], "keep_dims": attrs["keep_dims"]},
        ref=run, cases=(Case(((3, 17),), {"axis": -1}), Case(((3, 4, 5),), {"axis": 1, "keep_dims": True})),
    )  # fmt: skip


def softmax(x: Array, axis: int) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    e = np.exp(x - top)
    return e / np.sum(e, axis=axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return x - top - np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True))


def _expand_softmax(b: Builder, x: Value, axis: int) -> Value:
    e = b.exp(b.sub(x, b.reduce_max(x, axes=(axis,))))
    return b.real_div(e, b.reduce_sum(e, axes=(axis,)))


def _expand_log_softmax(b: Builder, x: Value, axis: int) -> Value:
    rest = b.sub(x, b.reduce_max(x, axes=(axis,)))
    return b.sub(rest, b.log(b.reduce_sum(b.exp(rest), axes=(axis,))))


def in_range(types: Any, attrs: Any) -> None:
    """Raises Error if the first input has no axis `axis`."""
    axis_index(attrs["axis"], types[0].rank)


def _cumsum(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    y = np.flip(x, axis) if reverse else x
    if exclusive:
        y = np.insert(y, 0, 0, axis).take(range(x.shape[axis]), axis)
    total = np.cumsum(y, axis=axis, dtype=x.dtype)
    return np.flip(total, axis) if reverse else total


def _expand_cumprod(b: Builder, x: Value, axis: int, exclusive: bool, reverse: bool) -> Value:
    """Expands to log2(extent) products, by the elements 1, 2, 4, ... places earlier."""
    extent = x.shape[axis]

    def shifted(v: Any, count: int) -> Any:
        ahead = [count if i == axis else 0 for i in range(len(v.shape))]
        return b.pad(v, begin=ahead, end=[-c for c in ahead], mode="constant", value=1.0)

    y = b.reverse(x, axes=(axis,)) if reverse else x
    if exclusive and extent:
        y = shifted(y, 1)
    count = 1
    while count < extent:
        y = b.mul(y, shifted(y, count))
        count *= 2
    return b.reverse(y, axes=(axis,)) if reverse else y


def _cumprod(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    y = np.flip(x, axis) if reverse else x
    if exclusive:
        y = np.insert(y, 0, 1, axis).take(range(x.shape[axis]), axis)
    total = np.cumprod(y, axis=axis, dtype=x.dtype)
    return np.flip(total, axis) if reverse else total


def _not_empty(types: Any, attrs: Any) -> None:
    if types[0].shape[axis_index(attrs["axis"], types[0].rank)] == 0:
        raise Error(f"got the shape {types[0].shape}, need at least one element along axis {attrs['axis']}")


def _expand_hardmax(b: Builder, x: Value, axis: int) -> Value:
    index = b.reduce_argmax(x, axis=axis, keep_dims=False, dtype=INT64)
    return cast(b, b.one_hot(index, axis=axis, depth=x.shape[axis], dtype=FP32), x.dtype)


def _hardmax(x: Array, axis: int) -> Array:
    y = np.zeros_like(x)
    np.put_along_axis(y, np.argmax(x, axis, keepdims=True), 1, axis)
    return y


_CUMULATIVE = {"axis": integer(0), "exclusive": flag(False), "reverse": flag(False)}

OPS = (
    _reduce("reduce_sum", "The sum over axes (none named: all of them).", np.sum, numeric, "ReduceSum", grad=grads.reduce_sum),
    _reduce("reduce_mean", "The mean over axes (none named: all of them).", mean, floating, "ReduceMean", grad=grads.reduce_mean),
    _reduce("reduce_max", "The maximum over axes (none named: all of them).", _max, numeric, "ReduceMax", grad=grads.extreme),
    _reduce("reduce_min", "The minimum over axes (none named: all of them).", _min, numeric, "ReduceMin", grad=grads.extreme),
    _reduce("reduce_prod", "The product over axes (none named: all of them).", np.prod, numeric, "ReduceProd", grad=grads.reduce_prod),
    _reduce("reduce_sum_square", "The sum of squares over axes (none named: all of them).", lambda x, **k: np.sum(x * x, **k), floating,
            "ReduceSumSquare", grad=grads.reduce_sum_square),
    _reduce("reduce_l1_norm", "The sum of absolute values over axes (none named: all of them).", lambda x, **k: np.sum(np.abs(x), **k), floating,
            "ReduceL1", grad=grads.reduce_l1_norm),
    _reduce("reduce_l2_norm", "The square root of the sum of squares over axes (none named: all of them).",
            lambda x, **k: np.sqrt(np.sum(x * x, **k)), floating, "ReduceL2", grad=grads.reduce_l2_norm),
    _reduce("reduce_log_sum", "The logarithm of the sum over axes (none named: all of them).", lambda x, **k: np.log(np.sum(x, **k)), floating,
            "ReduceLogSum", low=0.1, grad=grads.reduce_log_sum),
    _reduce("reduce_log_sum_exp", "log(sum(e^x)) over axes (none named: all of them).",
            lambda x, axis, keepdims: _log_sum_exp(x, axis, keepdims), floating, "ReduceLogSumExp", grad=grads.reduce_log_sum_exp),
    _arg("reduce_argmax", "The index of the first maximum along an axis.", np.argmax),
    _arg("reduce_argmin", "The index of the first minimum along an axis.", np.argmin),
    Op(
        name="softmax", doc="e^x / sum(e^x) along an axis.", inputs=("x",), attrs={"axis": integer(-1)}, shape=same,
        dtype=floating, check=(in_range,), kernel="softmax", expand=_expand_softmax, canonical=one_axis, layout="axis", lengths="axes", ref=softmax,
        cases=(Case(((3, 17),)), Case(((2, 5, 3),), {"axis": 1})), grad=grads.softmax,
    ),
    Op(
        name="log_softmax", doc="x - log(sum(e^x)) along an axis.", inputs=("x",), attrs={"axis": integer(-1)},
        shape=same, dtype=floating, check=(in_range,), kernel="log_softmax", expand=_expand_log_softmax,
        canonical=one_axis, layout="axis", lengths="axes", ref=_log_softmax, cases=(Case(((3, 17),)), Case(((2, 5, 3),), {"axis": 1})), grad=grads.log_softmax,
    ),
    Op(
        name="cumsum", doc="The running sum along an axis; exclusive: without the element itself; reverse: from the end.", inputs=("x",),
        attrs=_CUMULATIVE, shape=same, dtype=numeric, check=(in_range,), kernel="cumsum", canonical=one_axis, layout="axis", lengths="axes", ref=_cumsum,
        cases=(Case(((3, 17),), {"axis": 1}), Case(((4, 3),), {"exclusive": True, "reverse": True})), grad=grads.cumsum,
    ),
    Op(
        name="cumprod", doc="The running product along an axis; exclusive: without the element itself; reverse: from the end.",
        inputs=("x",), attrs=_CUMULATIVE, shape=same, dtype=numeric, check=(in_range,), canonical=one_axis,
        expand=_expand_cumprod, ref=_cumprod,
        cases=(Case(((3, 17),), {"axis": 1}), Case(((4, 3),), {"exclusive": True, "reverse": True}),
               Case(((5, 2),), dtypes=("int32",), low=-4, high=5)),
    ),
    Op(
        name="hardmax", doc="1 at the first maximum along an axis, else 0.", inputs=("x",), attrs={"axis": integer(-1)},
        shape=same, dtype=floating, check=(_not_empty,), canonical=one_axis, expand=_expand_hardmax, ref=_hardmax,
        cases=(Case(((3, 17),)), Case(((2, 5, 3),), {"axis": 1})), grad=zero,
    ),
)  # fmt: skip
