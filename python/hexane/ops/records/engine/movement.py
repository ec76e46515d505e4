"""Layers that move elements: views, transposes, margins, pixels to channels, gathers, the texture engine's resampling,
states."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hexane.dtypes import INT32, INT64
from hexane.errors import Error
from hexane.ops.attributes import integer
from hexane.ops.dtype_rules import same_dtype
from hexane.ops.records.engine.form import derived, rounded_once
from hexane.ops.shape_rules import Shape, axis_index
from hexane.ops.spec import Case, Op

Array = Any
RESAMPLED = (
    ("resize", "resize", "Resize"),
    ("resample", "grid_sample", "Resample"),
    ("affine_transform", "affine", "AffineTransform"),
)
SAME = (
    ("reshape", "reshape", "Reshape"), ("flatten", "flatten", "Flatten"), ("unflatten", "reshape", "Unflatten"),
    ("transpose", "transpose", "Transpose"), ("concat", "concat", "Concat"), ("pad", "pad", "Pad"), ("tile", "tile", "Tile"),
    ("broadcast", "broadcast_to", "Broadcast"), ("reverse", "reverse", "Reverse"), ("gather", "gather", "Gather"),
    ("gather_along_axis", "gather_along_axis", "Gather"), ("gather_nd", "gather_nd", "Gather"),
    ("channel_to_space", "depth_to_space", "ChannelToSpace"), ("pixel_shuffle", "pixel_shuffle", "PixelShuffle"),
    ("space_to_channel", "space_to_depth", "SpaceToChannel"), ("pixel_unshuffle", "pixel_unshuffle", "PixelUnshuffle"),
    ("resize_nearest_neighbor", "resize_nearest_neighbor", "Resize"), ("resize_bilinear", "resize_bilinear", "Resize"),
    
    ("crop_resize", "roi_align", "CropResize"), ("ring_buffer_writer", "write_state", "RingBufferWriter"),
)  # fmt: skip


# ---- views ----


def _view_attrs(types: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {**attrs, "axis": axis_index(attrs["axis"], types[0].rank)}


def _view_shape(x: Shape, axis: int, offset: int, size: int, step: int) -> Shape:
    if step < 1 or size < 1 or offset < 0 or offset + (size - 1) * step >= x[axis]:
        raise Error(f"got {size} elements from {offset} on with steps of {step}, need them within {x[axis]}")
    return (*x[:axis], size, *x[axis + 1 :])


def _view(b: Any, x: Any, axis: int, offset: int, size: int, step: int) -> Any:
    begin, end, stride = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    begin[axis], end[axis], stride[axis] = offset, offset + (size - 1) * step + 1, step
    return b.slice_by_index(x, begin=begin, end=end, stride=stride)


def _view_ref(x: Array, axis: int, offset: int, size: int, step: int) -> Array:
    return np.take(x, offset + np.arange(size) * step, axis)


def _begin_dtype(x: Any, begin: Any, **_: Any) -> Any:
    if begin not in (INT32, INT64):
        raise Error(f"got a begin of {begin}, need int32 or int64")
    return x


def _dynamic_shape(x: Shape, begin: Shape, axis: int, size: int) -> Shape:
    if begin != () or not 1 <= size <= x[axis]:
        raise Error(f"got a begin of shape {begin} and the size {size}, need one number and 1 to {x[axis]}")
    return (*x[:axis], size, *x[axis + 1 :])


def _dynamic(b: Any, x: Any, begin: Any, axis: int, size: int) -> Any:
    first = b.minimum(b.maximum(b.cast(begin, dtype=INT64), 0), x.shape[axis] - size)
    return b.gather(x, b.add(b.reshape(first, shape=(1,)), b.const(np.arange(size))), axis=axis)


def _dynamic_ref(x: Array, begin: Array, axis: int, size: int) -> Array:
    first = min(max(int(begin), 0), x.shape[axis] - size)
    return np.take(x, np.arange(first, first + size), axis)


# ---- pixels to the batch ----


def _block(types: Any, attrs: Mapping[str, Any]) -> None:
    if types[0].rank != 4 or attrs["factor_x"] < 1 or attrs["factor_y"] < 1:
        raise Error(f"got {types[0]}, need an image and factors from 1 on")


def _to_batch_shape(x: Shape, factor_x: int, factor_y: int) -> Shape:
    if x[2] % factor_y or x[3] % factor_x:
        raise Error(f"got the shape {x}, need extents divisible by {factor_y} and {factor_x}")
    return (x[0] * factor_x * factor_y, x[1], x[2] // factor_y, x[3] // factor_x)


def _to_batch(b: Any, x: Any, factor_x: int, factor_y: int) -> Any:
    """Moves the pixels of each phase to an image. The phase is the outer part of the batch."""
    n, c, h, w = x.shape
    parts = b.reshape(x, shape=(n, c, h // factor_y, factor_y, w // factor_x, factor_x))
    return b.reshape(b.transpose(parts, perm=(3, 5, 0, 1, 2, 4)), shape=_to_batch_shape(x.shape, factor_x, factor_y))


def _to_batch_ref(x: Array, factor_x: int, factor_y: int) -> Array:
    return np.concatenate([x[:, :, i::factor_y, j::factor_x] for i in range(factor_y) for j in range(factor_x)])


def _from_batch_shape(x: Shape, factor_x: int, factor_y: int) -> Shape:
    if x[0] % (factor_x * factor_y):
        raise Error(f"got a batch of {x[0]}, need one divisible by {factor_x * factor_y}")
    return (x[0] // (factor_x * factor_y), x[1], x[2] * factor_y, x[3] * factor_x)


def _from_batch(b: Any, x: Any, factor_x: int, factor_y: int) -> Any:
    n, c, h, w = x.shape
    parts = b.reshape(x, shape=(factor_y, factor_x, n // (factor_x * factor_y), c, h, w))
    return b.reshape(b.transpose(parts, perm=(2, 3, 4, 0, 5, 1)), shape=_from_batch_shape(x.shape, factor_x, factor_y))


def _from_batch_ref(x: Array, factor_x: int, factor_y: int) -> Array:
    out = np.empty(_from_batch_shape(x.shape, factor_x, factor_y), x.dtype)
    for k, image in enumerate(np.split(x, factor_x * factor_y)):
        out[:, :, k // factor_x :: factor_y, k % factor_x :: factor_x] = image
    return out


_FACTORS = {"factor_x": integer(), "factor_y": integer()}


def _resampled(op: Op, name: str, layer: str) -> Op:
    """Returns a layer for an op that is expanded: computed in the accumulator's precision, and rounded once."""

    def body(b: Any, *inputs: Any, **attrs: Any) -> Any:
        return b.apply(op.name, *inputs, **attrs)

    return replace(derived(op, f"anec.{name}", layer), expand=rounded_once(body))


def ops(user: Mapping[str, Op]) -> tuple[Op, ...]:
    return (
        *(_resampled(user[op], name, layer) for name, op, layer in RESAMPLED),
        *(derived(user[op], f"anec.{name}", layer) for name, op, layer in SAME),
        Op(name="anec.input_view", doc="`size` elements of one axis, from `offset` on with a step.", level="engine", layer="InputView",
           inputs=("x",), attrs={"axis": integer(), "offset": integer(0), "size": integer(), "step": integer(1)},
           shape=_view_shape, dtype=same_dtype, canonical=_view_attrs, expand=_view, ref=_view_ref,
           cases=(Case(((2, 3, 9),), {"axis": -1, "offset": 1, "size": 3, "step": 2}),)),
        Op(name="anec.dynamic_slice", doc="`size` elements of one axis, starting at `begin`, which is clamped so that "
            "all of them lie inside x.",
           level="engine", layer="DynamicSlice", inputs=("x", "begin"), attrs={"axis": integer(), "size": integer()},
           shape=_dynamic_shape, dtype=_begin_dtype, canonical=_view_attrs, expand=_dynamic, ref=_dynamic_ref,
           cases=tuple(Case(arrays=(np.arange(12, dtype=np.float32).reshape(2, 6), np.int64(i)), attrs={"axis": 1, "size": 4})
                       for i in (1, 5))),
        Op(name="anec.space_to_batch", doc="Moves every factor_x-th pixel of every factor_y-th row to an image of its "
            "own.", level="engine",
           layer="SpaceToBatch", inputs=("x",), attrs=_FACTORS, shape=_to_batch_shape, dtype=same_dtype, check=(_block,),
           expand=_to_batch, ref=_to_batch_ref, cases=(Case(((2, 3, 6, 4),), {"factor_x": 2, "factor_y": 3}),)),
        Op(name="anec.batch_to_space", doc="The inverse of space_to_batch: merges its "
            "images to one.", level="engine", layer="BatchToSpace",
           inputs=("x",), attrs=_FACTORS, shape=_from_batch_shape, dtype=same_dtype, check=(_block,), expand=_from_batch,
           ref=_from_batch_ref, cases=(Case(((12, 3, 2, 4),), {"factor_x": 2, "factor_y": 3}),)),
        Op(name="anec.shape", doc="The extents of x.", level="engine", layer="Shape", inputs=("x",), shape=lambda x: (len(x),),
           dtype=lambda x: INT32, expand=lambda b, x: b.const(np.array(x.shape, np.int32)), ref=lambda x: np.array(x.shape),
           cases=(Case(((2, 3, 5),)),)),
    )  # fmt: skip
