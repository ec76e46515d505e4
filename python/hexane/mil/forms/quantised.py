"""Integers with scales: between ops, and weights that are stored smaller, which are read as the floats that they stand for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hexane.dtypes import FP16, FP32, DType
from hexane.errors import Error
from hexane.graph import Array, Node, Value, constant
from hexane.limits import MAX_GROWTH_BYTES
from hexane.mil.forms.form import Form, Written
from hexane.ops.compose import Builder


def _write(node: Node) -> Written | None:
    """The scale is fp32 here, and of the floats' dtype in MIL: what fp16 does not hold is no form."""
    x, scale, zero = node.inputs
    assert scale is not None
    quantizes = node.op == "quantize"
    kind = x.dtype if quantizes and x is not None else node.types[0].dtype
    if scale.node.data is None or kind not in (FP16, FP32):
        return None
    with np.errstate(over="ignore"):
        narrow = scale.node.data.astype(kind.numpy)
    if not np.array_equal(narrow.astype(np.float32), scale.node.data):
        return None
    given: dict[str, Any] = {"input": x, "scale": constant(narrow, scale.node.sources), "zero_point": zero}
    given |= {"axis": node.attrs["axis"]} if scale.shape else {}
    return Written(node.op, given | ({"output_dtype": node.attrs["dtype"]} if quantizes else {}))


def _scale(scale: Value) -> Array:
    data = scale.node.data
    if data is None or scale.dtype.kind != "float":
        raise Error(f"scale: got {scale.type}, need a constant float")
    return data.astype(np.float32)


def _read_quantize(
    b: Builder, input: Value, zero_point: Value | None, scale: Value, axis: int | None, output_dtype: DType
) -> Value:
    return b.quantize(input, _scale(scale), zero_point, axis=axis or 0, dtype=output_dtype)


def _read_dequantize(b: Builder, input: Value, zero_point: Value | None, scale: Value, axis: int | None) -> Value:
    return b.dequantize(input, _scale(scale), zero_point, axis=axis or 0, dtype=scale.dtype)


# ---- weights ----


def _data(name: str, value: Value) -> Array:
    if value.node.data is None:
        raise Error(f"{name}: got {value.type} that is computed, need a constant")
    return value.node.data


def _dense(b: Builder, array: Array, kind: DType) -> Value:
    with np.errstate(over="ignore"):
        return b.const(np.array(array.astype(kind.numpy), order="C"))


def _limited(shape: Sequence[int]) -> None:
    if np.prod(np.array(shape, np.float64)) * 8 > MAX_GROWTH_BYTES * 64:
        raise Error(f"got a weight of the shape {tuple(shape)}, need a smaller one")


def _read_affine(b: Builder, quantized_data: Value, zero_point: Value, scale: Value, axis: int) -> Value:
    """(data - zero_point) * scale, with one of both for all or for each index along the axis."""
    data = _data("quantized_data", quantized_data)
    if not -data.ndim <= axis < data.ndim:
        raise Error(f"axis: got {axis} for {quantized_data.type}, need one of its axes")
    line = [-1 if i == axis % data.ndim else 1 for i in range(data.ndim)]
    parts = []
    for name, value in (("zero_point", zero_point), ("scale", scale)):
        part = _data(name, value).astype(np.float64)
        if part.ndim > 1 or part.size not in (1, data.shape[axis]):
            raise Error(f"{name}: got {value.type}, need one number, or {data.shape[axis]}")
        parts.append(part.reshape(line if part.size > 1 else [1] * data.ndim))
    return _dense(b, (data.astype(np.float64) - parts[0]) * parts[1], scale.dtype)


def _read_blockwise(b: Builder, data: Value, scale: Value, offset: Value | None) -> Value:
    """(data - offset) * scale, each number of scale and offset for a block."""
    elements, scales = _data("data", data), _data("scale", scale)
    offsets = np.zeros(scales.shape) if offset is None else _data("offset", offset)
    if scales.ndim != elements.ndim or offsets.shape != scales.shape or 0 in scales.shape:
        raise Error(f"got data {data.type} and scale {scale.type}, need a block for each number")
    if any(d % s for d, s in zip(elements.shape, scales.shape, strict=True)):
        raise Error(f"got data {data.type} and scale {scale.type}, need blocks of one size")
    result = elements.astype(np.float64)
    for part, apply in ((offsets, np.subtract), (scales, np.multiply)):
        wide = part.astype(np.float64)
        for axis, (d, s) in enumerate(zip(elements.shape, scales.shape, strict=True)):
            wide = np.repeat(wide, d // s, axis)
        result = apply(result, wide)
    return _dense(b, result, scale.dtype)


def _read_lut(b: Builder, indices: Value, lut: Value, vector_axis: int | None) -> Value:
    """The entry of a palette that each index names: lut has the rank of the indices, a palette for each block, and two axes more."""
    picks, palettes = _data("indices", indices), _data("lut", lut)
    blocks = palettes.shape[: picks.ndim]
    if indices.dtype.kind != "uint" or palettes.ndim != picks.ndim + 2 or palettes.shape[-1] != 1 or 0 in blocks:
        raise Error(f"got indices {indices.type} and lut {lut.type}, need a lut of two axes more, the last of extent 1")
    if any(d % s for d, s in zip(picks.shape, blocks, strict=True)) or (
        picks.size and picks.max() >= palettes.shape[-2]
    ):
        raise Error(
            f"got indices {indices.type} and lut {lut.type}, need blocks of one size and indices below {palettes.shape[-2]}"
        )
    at = np.meshgrid(*(np.arange(d) // (d // s) for d, s in zip(picks.shape, blocks, strict=True)), indexing="ij")
    return _dense(b, palettes[(*at, picks.astype(np.int64), np.zeros(picks.shape, np.int64))], lut.dtype)


def _read_sparse(b: Builder, nonzero_data: Value, mask: Value) -> Value:
    """The numbers where the mask is 1, in order, and 0 elsewhere."""
    values, places = _data("nonzero_data", nonzero_data), _data("mask", mask).astype(np.bool_)
    _limited(places.shape)
    if values.ndim != 1 or int(places.sum()) != values.size:
        raise Error(f"got nonzero_data {nonzero_data.type} for a mask with {int(places.sum())} ones, need as many")
    result = np.zeros(places.shape, values.dtype)
    result[places] = values
    return b.const(result)


def _read_constexpr_cast(b: Builder, source_val: Value, output_dtype: DType) -> Value:
    return _dense(b, _data("source_val", source_val), output_dtype)


FORMS = (
    Form("quantize", "quantize", _write, _read_quantize),
    Form("dequantize", "dequantize", _write, _read_dequantize),
    Form("", "constexpr_affine_dequantize", None, _read_affine),
    Form("", "constexpr_blockwise_shift_scale", None, _read_blockwise),
    Form("", "constexpr_lut_to_dense", None, _read_lut),
    Form("", "constexpr_sparse_to_dense", None, _read_sparse),
    Form("", "constexpr_cast", None, _read_constexpr_cast),
)
