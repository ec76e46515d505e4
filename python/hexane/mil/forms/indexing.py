"""Ops that read elements by index, sort, or sample at coordinates."""

import math
from typing import Any

from hexane.dtypes import INT32, INT64, DType
from hexane.errors import Error
from hexane.graph import Node, Value, constant
from hexane.mil.forms.form import Form, MilCall, Result, keeps_indices, plain
from hexane.mil.forms.quantised import write_palette
from hexane.ops.compose import Builder
from hexane.ops.encodings import is_encoded


def _gather(op: str, **fixed: Any) -> Form:
    """Returns the form of a gather without validation of its indices. They are not int64, which MIL lacks."""
    form = plain(op, fixed={**fixed, "validate_indices": False})
    write = form.write
    assert write is not None

    def in_int32(node: Node) -> MilCall | None:
        x, indices = node.inputs
        assert x is not None
        assert indices is not None
        if op == "gather" and is_encoded(node):
            return write_palette(node)
        if op == "gather_along_axis":  # x must have the extents of the indices on all axes but one
            others = [d for i, d in enumerate(x.shape) if i != node.attrs["axis"]]
            if others != [d for i, d in enumerate(indices.shape) if i != node.attrs["axis"]]:
                return None
        return None if indices.dtype is INT64 else write(node)

    def read(b: Builder, /, batch_dims: int = 0, validate_indices: bool = False, **given: Any) -> Result:
        if batch_dims and "batch_dims" in fixed:
            raise Error(f"batch_dims: got {batch_dims}, need 0")
        assert form.read is not None
        return form.read(
            b, **given, **({} if "batch_dims" in fixed or op == "gather_along_axis" else {"batch_dims": batch_dims})
        )

    return Form(op, op, in_int32, read)


def _write_topk(node: Node) -> MilCall | None:
    attrs = node.attrs
    if not keeps_indices(node):
        return None
    order = {"ascending": not attrs["largest"], "sort": attrs["sorted"], "return_indices": True}
    return MilCall(
        "topk",
        {"x": node.inputs[0], "k": attrs["k"], "axis": attrs["axis"], **order, "output_indices_dtype": attrs["dtype"]},
    )


def _read_topk(
    b: Builder,
    x: Value,
    k: int,
    axis: int,
    ascending: bool,
    sort: bool,
    return_indices: bool,
    output_indices_dtype: DType,
) -> Result:
    if k < 0:
        raise Error(f"k: got {k}, need a number of elements, 0 or more")
    several = b.several("topk", x, axis=axis, k=k, largest=not ascending, sorted=sort, dtype=output_indices_dtype)
    return several if return_indices else several[:1]


def _write_argsort(node: Node) -> MilCall:
    attrs = node.attrs
    return MilCall("argsort", {"x": node.inputs[0], "axis": attrs["axis"], "ascending": not attrs["descending"]})


def _read_argsort(b: Builder, x: Value, axis: int, ascending: bool) -> Value:
    return b.argsort(x, axis=axis, descending=not ascending, dtype=INT32)


_AFFINE = {"sampling_mode": "bilinear", "padding_mode": "constant", "coordinates_mode": "normalized_minus_one_to_one"}


def _write_affine(node: Node) -> MilCall | None:
    """Writes the transforms that Core ML supports: constant, bilinear, zeros outside, -1 and 1 at the centres of the
    outermost pixels."""
    x, transform = node.inputs
    attrs = node.attrs
    assert transform is not None
    usual = attrs["mode"] == "bilinear" and attrs["padding_mode"] == "zeros" and attrs["align_corners"]
    if transform.node.data is None or not usual:
        return None
    rows = constant(transform.node.data.reshape(-1, 6), transform.node.sources)
    size = {"output_height": attrs["output_height"], "output_width": attrs["output_width"]}
    return MilCall(
        "affine", {"x": x, "transform_matrix": rows, **size, **_AFFINE, "padding_value": 0.0, "align_corners": True}
    )


def _read_affine(
    b: Builder,
    x: Value,
    transform_matrix: Value,
    output_height: int,
    output_width: int,
    sampling_mode: str,
    padding_mode: str,
    padding_value: float,
    coordinates_mode: str,
    align_corners: bool,
) -> Value:
    got = {"sampling_mode": sampling_mode, "padding_mode": padding_mode, "coordinates_mode": coordinates_mode}
    data = transform_matrix.node.data
    if got != _AFFINE or not align_corners or padding_value or math.isnan(padding_value) or data is None:
        raise Error(f"got {got}, need {_AFFINE}, align_corners, 0 outside, and a constant transform_matrix")
    if len(x.shape) != 4 or data.shape != (x.shape[0], 6):
        raise Error(f"got x {x.type} and transform_matrix {transform_matrix.type}, need (N, C, H, W) and (N, 6)")
    size = {"output_height": output_height, "output_width": output_width}
    return b.affine(x, data.reshape(-1, 2, 3), **size, mode="bilinear", padding_mode="zeros", align_corners=True)


_PADDING = {"zeros": "constant", "border": "border", "reflection": "reflection"}
_CENTRES = "normalized_minus_one_to_one"


def _write_grid_sample(node: Node) -> MilCall | None:
    """Writes a grid_sample of images with two axes. MIL calls a reflection at the outer pixel edges symmetric."""
    x, grid = node.inputs
    assert x is not None
    attrs = node.attrs
    if len(x.shape) != 4 or attrs["mode"] not in ("bilinear", "nearest"):
        return None
    corners, padding = attrs["align_corners"], _PADDING[attrs["padding_mode"]]
    padding = "symmetric" if padding == "reflection" and not corners else padding
    where = {"sampling_mode": attrs["mode"], "padding_mode": padding, "padding_value": 0.0}
    return MilCall(
        "resample", {"x": x, "coordinates": grid, **where, "coordinates_mode": _CENTRES, "align_corners": corners}
    )


def _read_resample(
    b: Builder,
    x: Value,
    coordinates: Value,
    sampling_mode: str,
    padding_mode: str,
    padding_value: float,
    coordinates_mode: str,
    align_corners: bool,
) -> Value:
    inverse = {written: mode for mode, written in _PADDING.items()} | {"symmetric": "reflection"}
    mode = inverse.get(padding_mode)
    agrees = mode != "reflection" or (padding_mode == "reflection") == align_corners
    if mode is None or not agrees or coordinates_mode != _CENTRES or (mode == "zeros" and padding_value != 0):
        got = f"{padding_mode}, padding_value {padding_value}, {coordinates_mode}, align_corners {align_corners}"
        raise Error(f"got {got}, need {_CENTRES}, 0 outside, and a reflection with align_corners or symmetric without")
    return b.grid_sample(x, coordinates, mode=sampling_mode, padding_mode=mode, align_corners=align_corners)


FORMS = (
    _gather("gather", batch_dims=0),
    _gather("gather_along_axis"),
    _gather("gather_nd"),
    Form("topk", "topk", _write_topk, _read_topk),
    Form(
        "argsort", "argsort", lambda node: _write_argsort(node) if node.attrs["dtype"] is INT32 else None, _read_argsort
    ),
    Form("affine", "affine", _write_affine, _read_affine),
    Form("grid_sample", "resample", _write_grid_sample, _read_resample),
)
