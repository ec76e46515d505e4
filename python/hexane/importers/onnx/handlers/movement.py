"""Ops that move elements: shapes, slices, pads, tiles."""

from collections.abc import Sequence
from math import prod

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.encoded import reshape as reshape_encoded
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import onnx_op
from hexane.ops.shape_rules import broadcast
from hexane.ops.valid_lengths import length_of

INFINITE = (2**31 - 1, 2**63 - 1)  # ends that mean the whole extent


@onnx_op("Reshape", shape_inputs=(1,), valid_lengths=True)
def reshape(b: Builder, n: OnnxNode) -> Result:
    """Reshapes x. A 0 keeps the input's extent, unless allowzero is set."""
    x, wanted = n.value(0), n.ints(1)
    if not n.attrs.get("allowzero", 0):
        if any(d == 0 for d in wanted[len(x.shape) :]):
            raise Error(f"got the shape {wanted} for {x.shape}, need 0 only where the input has a dim to copy")
        wanted = tuple(x.shape[i] if d == 0 else d for i, d in enumerate(wanted))
    elif -1 in wanted and 0 in wanted:
        raise Error(f"got the shape {wanted} with allowzero, need 0 or -1, not both")
    return reshape_encoded(x, wanted) or b.reshape(x, shape=wanted)


@onnx_op("Transpose", valid_lengths=True)
def transpose(b: Builder, n: OnnxNode) -> Result:
    x = n.value(0)
    return b.transpose(x, perm=n.attrs.get("perm", tuple(reversed(range(len(x.shape))))))


@onnx_op("Squeeze", shape_inputs=(1,), valid_lengths=True)
def squeeze(b: Builder, n: OnnxNode) -> Result:
    """Drops axes of extent 1. Before opset 13 the axes are an attribute."""
    x, axes = n.value(0), _axes(n)
    if axes == () and 1 in x.shape:
        raise Error(f"axes: got none at all for the shape {x.shape}, need them named or absent")
    if axes is None:
        axes = tuple(i for i, d in enumerate(x.shape) if d == 1)
    return b.squeeze(x, axes=axes) if axes else x


@onnx_op("Unsqueeze", shape_inputs=(1,), valid_lengths=True)
def unsqueeze(b: Builder, n: OnnxNode) -> Result:
    axes = _axes(n)
    return b.expand_dims(n.value(0), axes=axes) if axes else n.value(0)


def _axes(n: OnnxNode) -> tuple[int, ...] | None:
    if "axes" in n.attrs:
        axes: tuple[int, ...] = n.attrs["axes"]
        return axes
    return n.ints(1) if n.has(1) else None


@onnx_op("Slice", shape_inputs=(1, 2, 3, 4), valid_lengths=True)
def slice_(b: Builder, n: OnnxNode) -> Result:
    """Slices x. Before opset 10 the bounds are attributes. For a negative step the axis is reversed first."""
    x = n.value(0)
    if n.version < 10:
        starts, ends = n.attrs["starts"], n.attrs["ends"]
        axes, steps = n.attrs.get("axes"), None
    else:
        starts, ends = n.ints(1), n.ints(2)
        axes, steps = (n.ints(i) if n.has(i) else None for i in (3, 4))
    axes = tuple(axis_of(a, len(x.shape)) for a in axes) if axes is not None else tuple(range(len(starts)))
    steps = steps if steps is not None else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) == len(set(axes)) or len(axes) > len(x.shape):
        raise Error(f"got starts {starts}, ends {ends}, axes {axes} and steps {steps}, need one of each per axis")
    length = length_of(x)
    begin, end, stride = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise Error("got a step of 0, need another")
        if length is not None and axis == length.axis and min(start, stop, step) < 0:
            raise Error(
                f"got {start}:{stop}:{step} for axis {axis}, whose length is known only at run time,"
                " need bounds counted from its start"
            )
        if step < 0 and stop in INFINITE:  # onnxruntime slices to the first element, NumPy nothing
            stop = -x.shape[axis] - 1
        begin[axis], end[axis], stride[axis] = _bounds(start, stop, step, x.shape[axis])
    if flips := tuple(a for a, s in zip(axes, steps, strict=True) if s < 0):
        x = b.reverse(x, axes=flips)
    return b.slice_by_index(x, begin=begin, end=end, stride=stride)


def _bounds(start: int, stop: int, step: int, extent: int) -> tuple[int, int, int]:
    """Returns begin, end and stride, for step < 0 on the reversed axis."""
    start, stop = (v + extent if v < 0 else v for v in (start, stop))
    if step < 0:
        start, stop = min(max(start, 0), extent - 1), min(max(stop, -1), extent - 1)
        start, stop, step = extent - 1 - start, extent - 1 - stop, -step
    start, stop = min(max(start, 0), extent), min(max(stop, 0), extent)
    return start, max(start, stop), min(step, max(extent, 1))


@onnx_op("Split", shape_inputs=(1,), valid_lengths=True)
def split(b: Builder, n: OnnxNode) -> Result:
    """Splits x. Before opset 13 the sizes are an attribute. With num_outputs (opset 18), the last piece has all
    remaining indices."""
    x = n.value(0)
    axis = axis_of(n.attrs["axis"], len(x.shape))
    extent, count = x.shape[axis], len(n.outputs)
    if "split" in n.attrs or n.has(1):
        sizes = n.attrs["split"] if "split" in n.attrs else n.ints(1)
    elif "num_outputs" in n.attrs:
        if n.attrs["num_outputs"] != count:
            raise Error(f"num_outputs: got {n.attrs['num_outputs']} for {count} outputs, need as many")
        piece = -(-extent // count)
        sizes = (*[piece] * (count - 1), extent - piece * (count - 1))
    else:
        if extent % count:
            raise Error(f"got an extent of {extent} for {count} equal outputs, need a multiple")
        sizes = (extent // count,) * count
    if len(sizes) != count or any(s < 0 for s in sizes):
        raise Error(f"split: got {tuple(sizes)} for {count} outputs, need a size for each")
    parts: tuple[Value, ...] = b.split(x, axis=axis, split_sizes=sizes)
    return parts


@onnx_op("Expand", shape_inputs=(1,))
def expand(b: Builder, n: OnnxNode) -> Result:
    x, wanted = n.value(0), n.ints(1)
    shape = broadcast(x.shape, wanted)
    return x if shape == x.shape else b.broadcast_to(x, shape=shape)


@onnx_op("Tile", shape_inputs=(1,))
def tile(b: Builder, n: OnnxNode) -> Result:
    return b.tile(n.value(0), reps=n.ints(1))


@onnx_op("Pad", shape_inputs=(1, 2, 3), ignores=("value", 2))
def pad(b: Builder, n: OnnxNode) -> Result:
    """Pads x. Before opset 11 the pads are an attribute; from opset 18 on they may be for some axes only. Negative pads
    crop."""
    x = n.value(0)
    pads = n.attrs["pads"] if "pads" in n.attrs else n.ints(1)
    axes = tuple(axis_of(a, len(x.shape)) for a in n.ints(3)) if n.has(3) else tuple(range(len(x.shape)))
    if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise Error(f"pads: got {pads} for the axes {axes}, need a begin and an end for each")
    begin, end = [0] * len(x.shape), [0] * len(x.shape)
    for i, axis in enumerate(axes):
        begin[axis], end[axis] = pads[i], pads[len(axes) + i]
    mode = n.attrs["mode"]
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise Error(f"mode: got {mode!r}, need constant, reflect, edge or wrap")
    if mode != "constant" and (min(begin, default=0) < 0 or min(end, default=0) < 0):
        x = _cut(b, x, begin, end)  # crops first, as onnxruntime does: padding repeats the cropped tensor
        begin, end = [max(p, 0) for p in begin], [max(p, 0) for p in end]
    value = n.attrs.get("value", 0.0)
    if n.has(2) and mode == "constant":
        value = n.scalar(2).item()
        if float(value) != value:
            raise Error(f"constant_value: got {value}, need one that fp64 holds")
    if not any(begin) and not any(end):
        return x
    return b.pad(x, begin=begin, end=end, mode=mode, value=float(value) if mode == "constant" else 0.0)


def _cut(b: Builder, x: Value, begin: Sequence[int], end: Sequence[int]) -> Value:
    """Returns x cropped by the negative pads. Raises Error if no element is left."""
    first = [max(-p, 0) for p in begin]
    last = [extent - max(-p, 0) for extent, p in zip(x.shape, end, strict=True)]
    if any(i >= j for i, j in zip(first, last, strict=True)):
        raise Error(f"pads: got {tuple(begin)} and {tuple(end)} for the shape {x.shape}, need some that leave a number")
    kept: Value = b.slice_by_index(x, begin=first, end=last)
    return kept


@onnx_op("DepthToSpace")
def depth_to_space(b: Builder, n: OnnxNode) -> Result:
    return b.depth_to_space(n.value(0), block_size=n.attrs["blocksize"], mode=n.attrs.get("mode", "DCR"))


@onnx_op("SpaceToDepth")
def space_to_depth(b: Builder, n: OnnxNode) -> Result:
    """Moves blocks of space to channels. In mode CRD, the channel is ordered before the position in the block."""
    mode = n.attrs.get("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise Error(f"mode: got {mode!r}, need DCR or CRD")
    if mode == "CRD":
        return b.pixel_unshuffle(n.value(0), downscale_factor=n.attrs["blocksize"])
    return b.space_to_depth(n.value(0), block_size=n.attrs["blocksize"])


@onnx_op("CenterCropPad", shape_inputs=(1,))
def center_crop_pad(b: Builder, n: OnnxNode) -> Result:
    return b.center_crop_pad(n.value(0), shape=n.ints(1), axes=n.attrs.get("axes", ()))


def flatten_2d(b: Builder, x: Value, axis: int) -> Result:
    """Reshapes x to a matrix, with the axes before `axis` as rows and the later axes as columns."""
    return b.reshape(x, shape=(prod(x.shape[:axis]), prod(x.shape[axis:])))
