"""Ops that move elements: views (without a copy if strides can express them), concatenation, padding, tiling."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hexane.errors import Error
from hexane.graph import TensorType, Value
from hexane.ops.attributes import integer, integers, number, text, typed
from hexane.ops.compose import Builder
from hexane.ops.dtype_rules import same_dtype
from hexane.ops.gradients import movement as grads
from hexane.ops.gradients.rule import zero
from hexane.ops.shape_rules import Shape, axis_index, one_axis, same
from hexane.ops.slice_rules import resolve_slice, slice_shape, sliced
from hexane.ops.spec import Case, Op
from hexane.ops.view_rules import (
    broadcast_to_shape,
    expand_dims_shape,
    flatten_shape,
    given_shape,
    permuted,
    permuted_shape,
    reshaped,
    resolve_axes,
    resolve_flatten,
    resolve_new_axes,
    resolve_perm,
    resolve_shape,
    resolve_squeeze,
)

Array = Any


def _resolve_split(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    axis = axis_index(attrs["axis"], types[0].rank)
    extent, sizes, num = types[0].shape[axis], attrs["split_sizes"], attrs["num_splits"]
    if not sizes:
        if num < 1 or extent % num:
            raise Error(f"num_splits: got {num} for an extent of {extent}, need a divisor (or split_sizes)")
        sizes = (extent // num,) * num
    if sum(sizes) != extent or any(s < 0 for s in sizes):
        raise Error(f"split_sizes: got {sizes}, need a sum of {extent}")
    return {"axis": axis, "num_splits": len(sizes), "split_sizes": sizes}


def _split_shape(x: Shape, axis: int, split_sizes: tuple[int, ...], **_: Any) -> list[Shape]:
    return [(*x[:axis], s, *x[axis + 1 :]) for s in split_sizes]


def _split(x: Array, axis: int, split_sizes: tuple[int, ...], **_: Any) -> list[Array]:
    return np.split(x, np.cumsum(split_sizes)[:-1], axis=axis)


def _expand_split(b: Builder, x: Value, axis: int, split_sizes: tuple[int, ...], **_: Any) -> list[Value]:
    parts, start = [], 0
    for size in split_sizes:
        begin = tuple(start if i == axis else 0 for i in range(len(x.shape)))
        end = tuple(start + size if i == axis else d for i, d in enumerate(x.shape))
        parts.append(b.slice_by_index(x, begin=begin, end=end))
        start += size
    return parts


def _concat_shape(*shapes: Shape, axis: int) -> Shape:
    first = shapes[0]
    for s in shapes[1:]:
        if len(s) != len(first) or any(i != axis and d != first[i] for i, d in enumerate(s)):
            raise Error(f"got the shapes {', '.join(map(str, shapes))}, need equal dims but at axis {axis}")
    return tuple(sum(s[axis] for s in shapes) if i == axis else d for i, d in enumerate(first))


def _resolve_stack(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"axis": axis_index(attrs["axis"], types[0].rank + 1)}


def _stack_shape(*shapes: Shape, axis: int) -> Shape:
    if len(set(shapes)) != 1:
        raise Error(f"got the shapes {', '.join(map(str, shapes))}, need equal shapes")
    return (*shapes[0][:axis], len(shapes), *shapes[0][axis:])


def _expand_stack(b: Builder, *values: Value, axis: int) -> Value:
    return b.concat(*(b.expand_dims(v, axes=(axis,)) for v in values), axis=axis)


def _used_value(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes with value 0 unless the margin is constant, since other margins have no value."""
    return {**attrs, "value": attrs["value"] if attrs["mode"] == "constant" else 0.0}


def _pad_shape(x: Shape, begin: Shape, end: Shape, mode: str, value: float) -> Shape:
    if not len(begin) == len(end) == len(x):
        raise Error(f"got {len(begin)} begins and {len(end)} ends, need {len(x)} each")
    out = tuple(b + d + e for b, d, e in zip(begin, x, end, strict=True))
    if any(d < 0 for d in out):
        raise Error(f"got pads {begin} and {end} for the shape {x}, need results that are not negative")
    if mode != "constant":
        reach = {"reflect": 1, "edge": None, "wrap": 0}[mode]
        for b, e, d in zip(begin, end, x, strict=True):
            most = max(b, e)
            if most > 0 and (d == 0 or (reach is not None and most > d - reach)):
                raise Error(f"got pads {begin} and {end} for the shape {x}, need pads within the input for {mode}")
    return out


def _pad(x: Array, begin: Shape, end: Shape, mode: str, value: float) -> Array:
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
    options = {"constant_values": np.array(value).astype(x.dtype)} if mode == "constant" else {}
    padded = np.pad(x, widths, mode=mode, **options) if widths else x  # type: ignore[call-overload]
    crop = tuple(slice(max(-b, 0), d - max(-e, 0)) for b, e, d in zip(begin, end, padded.shape, strict=True))
    return padded[crop]


def _tile_shape(x: Shape, reps: tuple[int, ...]) -> Shape:
    if len(reps) != len(x) or any(r < 0 for r in reps):
        raise Error(f"reps: got {reps}, need {len(x)} integers that are not negative")
    return tuple(d * r for d, r in zip(x, reps, strict=True))


def _expand_tile(b: Builder, x: Value, reps: tuple[int, ...]) -> Value:
    """x[d] -> x[1, d] broadcast to [r, d] -> [r * d], for the axes that are repeated. If that needs more than 8 axes:
    concatenations."""
    if 0 in reps or len(x.shape) + sum(r > 1 for r in reps) > 8:
        for axis, r in enumerate(reps):
            x = b.concat(*[x] * r, axis=axis) if r else _empty(b, x, axis)
        return x
    thin = [d for r, d in zip(reps, x.shape, strict=True) for d in ((1, d) if r > 1 else (d,))]
    wide = [d for r, d in zip(reps, x.shape, strict=True) for d in ((r, d) if r > 1 else (d,))]
    repeated = b.broadcast_to(b.reshape(x, shape=tuple(thin)), shape=tuple(wide))
    return b.reshape(repeated, shape=tuple(d * r for d, r in zip(x.shape, reps, strict=True)))


def _empty(b: Builder, x: Value, axis: int) -> Value:
    end = tuple(0 if i == axis else d for i, d in enumerate(x.shape))
    return b.slice_by_index(x, begin=(0,) * len(x.shape), end=end)


class Rearrangement(NamedTuple):
    """A reshape, a transpose and another reshape of an image."""

    first: Shape
    perm: Shape
    last: Shape

    def expand(self, b: Builder, x: Value) -> Value:
        return b.reshape(b.transpose(b.reshape(x, shape=self.first), perm=self.perm), shape=self.last)

    def ref(self, x: Array) -> Array:
        return np.reshape(np.transpose(np.reshape(x, self.first), self.perm), self.last)


_BLOCK = {"block_size": integer(), "mode": text("DCR", ("DCR", "CRD"))}


def _depth_to_space_shape(x: Shape, block_size: int, mode: str) -> Shape:
    if len(x) != 4 or block_size < 1 or x[1] % block_size**2:
        raise Error(f"got the shape {x} and block_size {block_size}, need (N, C * block_size^2, H, W)")
    return (x[0], x[1] // block_size**2, x[2] * block_size, x[3] * block_size)


def _depth_to_space(x: Shape, block_size: int, mode: str) -> Rearrangement:
    n, c, h, w = x
    r, depth = block_size, c // block_size**2
    last = (n, depth, h * r, w * r)
    if mode == "DCR":
        return Rearrangement((n, r, r, depth, h, w), (0, 3, 4, 1, 5, 2), last)
    return Rearrangement((n, depth, r, r, h, w), (0, 1, 4, 2, 5, 3), last)


def _space_to_depth_shape(x: Shape, block_size: int) -> Shape:
    if len(x) != 4 or block_size < 1 or x[2] % block_size or x[3] % block_size:
        raise Error(f"got the shape {x} and block_size {block_size}, need (N, C, H * block_size, W * block_size)")
    return (x[0], x[1] * block_size**2, x[2] // block_size, x[3] // block_size)


def _space_to_depth(x: Shape, block_size: int) -> Rearrangement:
    n, c, h, w = x
    r = block_size
    return Rearrangement((n, c, h // r, r, w // r, r), (0, 3, 5, 1, 2, 4), (n, c * r * r, h // r, w // r))


def _all_axes(x: Array, axes: tuple[int, ...]) -> Array:
    return np.flip(x, axes)


OPS = (
    Op(
        name="identity", doc="x.", inputs=("x",), shape=same, dtype=same_dtype, expand=lambda b, x: x, elementwise=True, moves=("x",), ref=lambda x: x,
        onnx=("Identity",), cases=(Case(((3, 4),)),),
    ),
    Op(
        name="stop_gradient", doc="x, which `hx.grad` treats "
                                  "as a constant.", inputs=("x",), shape=same, dtype=same_dtype,
        expand=lambda b, x: x, elementwise=True, moves=("x",), ref=lambda x: x, grad=zero, cases=(Case(((3, 4),)),),
    ),
    Op(
        name="checkpointed", doc="y, a result of a function under `hx.checkpoint`; starts: the inputs of that function.",
        inputs=("y", "starts*"), shape=lambda y, *starts: y, dtype=lambda y, *starts: y, expand=lambda b, y, *starts: y,
        moves=("y",), ref=lambda y, *starts: y, grad=lambda b, node, g: [g, *[None] * (len(node.inputs) - 1)],
        cases=(Case(((3, 4), (2,))),),
    ),
    Op(
        name="reshape", doc="x's elements in another shape, in the same order; one dim may be -1 and takes all "
            "remaining elements.", inputs=("x",),
        attrs={"shape": typed(integers())}, canonical=resolve_shape, shape=given_shape, dtype=same_dtype,
        kernel="copy", view=True, moves=("x",), lengths="reshape", ref=reshaped,
        cases=(Case(((2, 6),), {"shape": (3, -1)}), Case(((2, 3, 4),), {"shape": (-1, 4)}), Case(((1,),), {"shape": ()})), grad=grads.reshape,
    ),
    Op(
        name="transpose", doc="x with its axes in another order: axis i of the result is axis perm[i] of x; reversed unless perm is given.", inputs=("x",),
        attrs={"perm": integers(())}, canonical=resolve_perm, shape=permuted_shape,
        dtype=same_dtype, kernel="copy", view=True, layout="transpose", moves=("x",), lengths="transpose", ref=permuted,
        cases=(Case(((2, 3, 5),), {"perm": (1, 2, 0)}), Case(((4, 7),))), grad=grads.transpose,
    ),
    Op(
        name="expand_dims", doc="x with new axes of extent 1. `axes` are their indices "
                                "in the result.", inputs=("x",), attrs={"axes": typed(integers())},
        canonical=resolve_new_axes, shape=expand_dims_shape, dtype=same_dtype,
        expand=lambda b, x, axes: b.reshape(x, shape=expand_dims_shape(x.shape, axes)),
        moves=("x",), lengths="expand_dims", ref=lambda x, axes: np.expand_dims(x, axes), cases=(Case(((3, 4),), {"axes": (0, -1)}),),
    ),
    Op(
        name="squeeze", doc="x without axes of extent 1: the given ones, or all.", inputs=("x",),
        attrs={"axes": typed(integers(()))}, canonical=resolve_squeeze,
        shape=lambda x, axes: tuple(d for i, d in enumerate(x) if i not in axes), dtype=same_dtype,
        expand=lambda b, x, axes: b.reshape(x, shape=tuple(d for i, d in enumerate(x.shape) if i not in axes)),
        moves=("x",), lengths="squeeze", ref=lambda x, axes: np.squeeze(x, axes), cases=(Case(((1, 3, 1, 4),), {"axes": (0,)}), Case(((1, 3, 1),))),
    ),
    Op(
        name="flatten", doc="x as a matrix, with the axes before `axis` as rows and "
                            "the later axes as columns.", inputs=("x",), attrs={"axis": typed(integer(1))},
        canonical=resolve_flatten, shape=flatten_shape, dtype=same_dtype,
        expand=lambda b, x, axis: b.reshape(x, shape=flatten_shape(x.shape, axis)),
        moves=("x",), lengths="reshape", ref=lambda x, axis: np.reshape(x, flatten_shape(x.shape, axis)), onnx=("Flatten",),
        cases=(Case(((2, 3, 4),)), Case(((2, 3, 4),), {"axis": -1})),
    ),
    Op(
        name="slice_by_index", doc="x[begin:end:stride] on every axis, bounds as in Python, strides positive.",
        inputs=("x",), attrs={"begin": integers(), "end": typed(integers()), "stride": integers(())},
        canonical=resolve_slice, shape=slice_shape, dtype=same_dtype, kernel="copy", view=True, layout="per_axis",
        moves=("x",), lengths="slice", ref=sliced,
        cases=(Case(((4, 9),), {"begin": (1, -8), "end": (3, 99), "stride": (1, 3)}),
               Case(((4, 9),), {"begin": (3, 0), "end": (1, 9)})), grad=grads.slice_by_index,
    ),
    Op(
        name="broadcast_to", doc="x broadcast to a shape: repeated along new leading axes and axes "
                                 "of extent 1.", inputs=("x",), attrs={"shape": typed(integers())},
        shape=broadcast_to_shape, dtype=same_dtype, kernel="copy", view=True, moves=("x",), lengths="broadcast_to", ref=np.broadcast_to,
        cases=(Case(((3, 1),), {"shape": (2, 3, 5)}),), grad=grads.broadcast_to,
    ),
    Op(
        name="split", doc="x split along an axis into num_splits equal pieces, or pieces of split_sizes "
                          "-> a tuple.", inputs=("x",),
        attrs={"axis": integer(), "num_splits": typed(integer(0)), "split_sizes": typed(integers(()))}, canonical=_resolve_split,
        shape=_split_shape, dtype=same_dtype, expand=_expand_split, outputs=("parts*",), moves=("x",), lengths="axes", ref=_split,
        cases=(Case(((4, 9),), {"axis": 1, "num_splits": 3}), Case(((4, 9),), {"axis": 0, "split_sizes": (1, 3)})),
    ),
    Op(
        name="concat", doc="Tensors concatenated along an axis. All other "
                           "dims of the tensors are equal.", inputs=("values*",), attrs={"axis": integer()},
        canonical=one_axis, shape=_concat_shape, dtype=same_dtype, kernel="copy", layout="axis",
        moves=("values",), lengths="concat", ref=lambda *values, axis: np.concatenate(values, axis),
        cases=(Case(((2, 3), (2, 5), (2, 1)), {"axis": -1}), Case(((2, 3),), {"axis": 0})), onnx=("Concat",), grad=grads.concat,
    ),
    Op(
        name="stack", doc="Tensors of one shape stacked along a new axis. `axis` is its index "
                          "in the result.", inputs=("values*",), attrs={"axis": integer()},
        canonical=_resolve_stack, shape=_stack_shape, dtype=same_dtype, expand=_expand_stack,
        moves=("values",), ref=lambda *values, axis: np.stack(values, axis), cases=(Case(((2, 3), (2, 3)), {"axis": 1}),),
    ),
    Op(
        name="pad", doc="x with begin[i] elements added before and end[i] after axis i; a negative number crops "
                        "elements. By mode they are `value`, x reflected without its edge, its edge, or x wrapped "
                        "around.",
        inputs=("x",),
        attrs={"begin": integers(), "end": integers(),
               "mode": text("constant", ("constant", "reflect", "edge", "wrap")), "value": number(0.0)},
        shape=_pad_shape, dtype=same_dtype, canonical=_used_value, kernel="pad", layout="per_axis", moves=("x",), fills=True, results=("value",), ref=_pad,
        cases=(Case(((3, 4),), {"begin": (1, 0), "end": (2, -1), "value": 7.0}),
               Case(((3, 4),), {"begin": (1, 2), "end": (2, 0), "mode": "reflect"}),
               Case(((3, 4),), {"begin": (1, 5), "end": (2, 0), "mode": "edge"})), grad=grads.pad,
    ),
    Op(
        name="tile", doc="x repeated reps[i] times along axis i.", inputs=("x",), attrs={"reps": integers()}, shape=_tile_shape,
        dtype=same_dtype, expand=_expand_tile, moves=("x",), ref=np.tile,
        cases=(Case(((2, 3),), {"reps": (2, 1)}), Case(((2, 3),), {"reps": (3, 2)})),
    ),
    Op(
        name="reverse", doc="x reversed along each of `axes`.", inputs=("x",), attrs={"axes": integers()},
        canonical=resolve_axes, shape=same, dtype=same_dtype, kernel="reverse", moves=("x",), lengths="axes", ref=_all_axes,
        cases=(Case(((3, 4, 5),), {"axes": (0, -1)}),), grad=grads.reverse,
    ),
    Op(
        name="depth_to_space", doc="(N, C * r * r, H, W) -> (N, C, H * r, W * r) with r = block_size: channels become blocks of height and width. The "
            "outer part of the channel axis is the position in the block (mode DCR) or the channel (mode CRD).", inputs=("x",), attrs=_BLOCK,
        shape=_depth_to_space_shape, dtype=same_dtype, expand=lambda b, x, **attrs: _depth_to_space(x.shape, **attrs).expand(b, x),
        moves=("x",), ref=lambda x, **attrs: _depth_to_space(x.shape, **attrs).ref(x),
        cases=(Case(((1, 8, 2, 3),), {"block_size": 2}), Case(((1, 8, 2, 3),), {"block_size": 2, "mode": "CRD"})),
    ),
    Op(
        name="pixel_shuffle", doc="(N, C * r * r, H, W) -> (N, C, H * r, W * r) with r = upscale_factor: depth_to_space in mode CRD.", inputs=("x",),
        attrs={"upscale_factor": integer()},
        shape=lambda x, upscale_factor: _depth_to_space_shape(x, upscale_factor, "CRD"), dtype=same_dtype,
        expand=lambda b, x, upscale_factor: _depth_to_space(x.shape, upscale_factor, "CRD").expand(b, x),
        moves=("x",), ref=lambda x, upscale_factor: _depth_to_space(x.shape, upscale_factor, "CRD").ref(x),
        cases=(Case(((1, 8, 2, 3),), {"upscale_factor": 2}),),
    ),
    Op(
        name="space_to_depth", doc="(N, C, H * r, W * r) -> (N, r * r * C, H, W) with r = block_size: blocks of height and width become channels. "
            "The outer part of the channel axis is the position in the block.", inputs=("x",),
        attrs={"block_size": integer()}, shape=_space_to_depth_shape, dtype=same_dtype,
        expand=lambda b, x, block_size: _space_to_depth(x.shape, block_size).expand(b, x),
        moves=("x",), ref=lambda x, block_size: _space_to_depth(x.shape, block_size).ref(x),
        cases=(Case(((1, 2, 4, 6),), {"block_size": 2}),), onnx=(),
    ),
)  # fmt: skip
