"""Ops that read or write elements by index."""

import numpy as np

from hexane.dtypes import BOOL, FP32, INT32, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.encoded import pick
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of, known
from hexane.importers.onnx.registry import onnx_op
from hexane.ops.compose import cast


@onnx_op("Gather", valid_lengths=True)
def gather(b: Builder, n: OnnxNode) -> Result:
    """Gathers. A gather that decodes a palette of many indices is not folded, because chips can read such weights."""
    x, indices, axis = n.value(0), n.value(1), n.attrs["axis"]
    return pick(x, indices, axis) or b.gather(x, indices, axis=axis)


@onnx_op("GatherElements")
def gather_elements(b: Builder, n: OnnxNode) -> Result:
    return b.gather_along_axis(n.value(0), n.value(1), axis=n.attrs["axis"])


@onnx_op("GatherND", valid_lengths=True)
def gather_nd(b: Builder, n: OnnxNode) -> Result:
    return b.gather_nd(n.value(0), n.value(1), batch_dims=n.attrs.get("batch_dims", 0))


@onnx_op("Scatter", "ScatterElements")
def scatter_elements(b: Builder, n: OnnxNode) -> Result:
    return b.scatter_along_axis(n.value(0), n.value(1), n.value(2), axis=n.attrs["axis"], mode=_mode(n))


@onnx_op("ScatterND")
def scatter_nd(b: Builder, n: OnnxNode) -> Result:
    return b.scatter_nd(n.value(0), n.value(1), n.value(2), mode=_mode(n))


def _mode(n: OnnxNode) -> str:
    mode = n.attrs.get("reduction", "none")
    return "update" if mode == "none" else str(mode)


@onnx_op("OneHot", shape_inputs=(1,))
def one_hot(b: Builder, n: OnnxNode) -> Result:
    """Returns one-hot rows. values are (off, on); indices may have any numeric dtype."""
    indices, depth, values = n.value(0), n.scalar(1), n.value(2)
    if values.shape != (2,) or not float(depth).is_integer():
        raise Error(f"got depth {depth} and values of shape {values.shape}, need an integer and (2,)")
    if indices.dtype.name == "uint64":  # large indices would be negative in int64
        indices = b.minimum(indices, b.const(np.array(depth, np.uint64)))
    if indices.dtype not in (INT32, INT64):
        indices = cast(b, indices, INT64)
    axis = axis_of(n.attrs["axis"], len(indices.shape) + 1)
    options = {"axis": axis, "depth": int(depth)}
    if (pair := known(values)) is not None and values.dtype in (FP32, INT32, BOOL):
        off, on = (float(v) for v in pair)
        return b.one_hot(indices, on=on, off=off, dtype=values.dtype, **options)
    hot = b.one_hot(indices, dtype=BOOL, **options)
    return b.select(hot, _element(b, values, 1), _element(b, values, 0))


def _element(b: Builder, x: Value, index: int) -> Result:
    return b.reshape(b.slice_by_index(x, begin=(index,), end=(index + 1,)), shape=())


@onnx_op("TopK", shape_inputs=(1,), valid_lengths=True)
def top_k(b: Builder, n: OnnxNode) -> Result:
    """Returns the k largest or smallest elements. Before opset 10, k is an attribute."""
    k = n.attrs["k"] if "k" in n.attrs else n.integer(1)
    largest, ordered = bool(n.attrs.get("largest", 1)), bool(n.attrs.get("sorted", 1))
    results: tuple[Value, ...] = b.topk(
        n.value(0), axis=n.attrs["axis"], k=k, largest=largest, sorted=ordered, dtype=INT64
    )
    return results
