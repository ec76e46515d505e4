"""Ops that move elements: views, slices, concatenation, padding, moves between space and channels."""

from collections.abc import Sequence

from hexane.errors import Error
from hexane.graph import Node, Value
from hexane.mil.forms.form import Form, MilCall, Result, plain
from hexane.ops.compose import Builder

Ints = Sequence[int]

_PLAIN = (
    "crop", "expand_dims", "flatten2d", "pixel_shuffle", "pixel_unshuffle", "space_to_depth", "stack", "tile", "transpose",  # noqa: E501
)  # fmt: skip


def _read_reshape(b: Builder, x: Value, shape: Ints) -> Value:
    """Reads a reshape. A 0 in `shape` stands for the extent of x on the same axis."""
    if any(d == 0 and i >= len(x.shape) for i, d in enumerate(shape)):
        raise Error(f"shape: got {tuple(shape)} for x {x.type}, which has no axis that the last 0 could stand for")
    return b.reshape(x, shape=[d or x.shape[i] for i, d in enumerate(shape)])


def _write_slice(node: Node) -> MilCall:
    begin, end, stride = (node.attrs[name] for name in ("begin", "end", "stride"))
    if max(stride, default=1) == 1:
        size = tuple(e - b for b, e in zip(begin, end, strict=True))
        return MilCall("slice_by_size", {"x": node.inputs[0], "begin": begin, "size": size})
    none = (False,) * len(begin)
    masks = {"begin_mask": none, "end_mask": none, "squeeze_mask": none}
    return MilCall("slice_by_index", {"x": node.inputs[0], "begin": begin, "end": end, "stride": stride, **masks})


def _read_slice(
    b: Builder,
    x: Value,
    begin: Ints,
    end: Ints,
    stride: Ints | None,
    begin_mask: Sequence[bool] | None,
    end_mask: Sequence[bool] | None,
    squeeze_mask: Sequence[bool] | None,
) -> Value:
    rank = len(x.shape)
    stride = (1,) * rank if stride is None else stride
    none = (False,) * rank
    masks = [none if mask is None else mask for mask in (begin_mask, end_mask, squeeze_mask)]
    if any(len(given) != rank for given in (begin, end, stride, *masks)):
        raise Error(
            f"got begin {tuple(begin)}, end {tuple(end)}, stride {tuple(stride)} and masks for x {x.type}, need {rank}"
            " each"
        )
    if min(stride, default=1) < 1:
        raise Error(f"stride: got {tuple(stride)}, need positive integers")
    squeezed = [i for i, out in enumerate(masks[2]) if out]
    starts = [0 if open_ else v for v, open_ in zip(begin, masks[0], strict=True)]
    stops = [d if open_ else v for v, open_, d in zip(end, masks[1], x.shape, strict=True)]
    for i in squeezed:
        place = starts[i] + x.shape[i] if starts[i] < 0 else starts[i]
        if not 0 <= place < x.shape[i]:
            raise Error(f"begin: got {starts[i]} for axis {i} of x {x.type}, which is squeezed; need an element of it")
        starts[i], stops[i] = place, place + 1
    result = b.slice_by_index(x, begin=starts, end=stops, stride=stride)
    return b.squeeze(result, axes=squeezed) if squeezed else result


def _read_slice_by_size(b: Builder, x: Value, begin: Ints, size: Ints) -> Value:
    rank = len(x.shape)
    if not len(begin) == len(size) == rank:
        raise Error(f"got begin {tuple(begin)} and size {tuple(size)} for x {x.type}, need {rank} each")
    starts = [v + d if v < 0 else v for v, d in zip(begin, x.shape, strict=True)]
    ends = [d if s == -1 else v + s for v, s, d in zip(starts, size, x.shape, strict=True)]
    if any(not 0 <= v <= e <= d for v, e, d in zip(starts, ends, x.shape, strict=True)):
        raise Error(f"got begin {tuple(begin)} and size {tuple(size)} for x {x.type}, need a part of it")
    return b.slice_by_index(x, begin=starts, end=ends)


def _write_split(node: Node) -> MilCall:
    sizes, num = node.attrs["split_sizes"], node.attrs["num_splits"]
    how = {"num_splits": num} if len(set(sizes)) == 1 else {"split_sizes": sizes}
    return MilCall("split", {"x": node.inputs[0], **how, "axis": node.attrs["axis"]})


def _read_split(b: Builder, x: Value, num_splits: int | None, split_sizes: Ints | None, axis: int) -> Result:
    if (num_splits is None) == (split_sizes is None):
        raise Error("need num_splits or split_sizes, and not both")
    if num_splits is not None and num_splits > MOST_PARTS:
        raise Error(f"num_splits: got {num_splits}, need at most {MOST_PARTS}")
    return b.several("split", x, axis=axis, num_splits=num_splits or 0, split_sizes=split_sizes or ())


MOST_PARTS = 1 << 16


def _read_concat(b: Builder, values: Sequence[Value], axis: int, interleave: bool) -> Value:
    if not interleave or len(values) == 1:
        return b.concat(*values, axis=axis)
    rank = len(values[0].shape)
    if not -rank <= axis < rank or any(v.shape != values[0].shape for v in values):
        raise Error(f"got {', '.join(str(v.type) for v in values)} to interleave along axis {axis}, need equal shapes")
    axis %= rank
    shape = values[0].shape
    return b.reshape(
        b.stack(*values, axis=axis + 1), shape=(*shape[:axis], shape[axis] * len(values), *shape[axis + 1 :])
    )


def _write_concat(node: Node) -> MilCall:
    return MilCall("concat", {"values": node.inputs, "axis": node.attrs["axis"], "interleave": False})


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


def _write_pad(node: Node) -> MilCall | None:
    begin, end, mode = node.attrs["begin"], node.attrs["end"], node.attrs["mode"]
    if min((*begin, *end), default=0) < 0 or mode not in _PAD_MODES:
        return None
    pad = [p for pair in zip(begin, end, strict=True) for p in pair]
    return MilCall(
        "pad", {"x": node.inputs[0], "pad": tuple(pad), "mode": _PAD_MODES[mode], "constant_val": node.attrs["value"]}
    )


def _read_pad(b: Builder, x: Value, pad: Ints, mode: str, constant_val: float) -> Value:
    """Reads a pad. `pad` applies to the last axes."""
    rank = len(x.shape)
    modes = {mil: own for own, mil in _PAD_MODES.items()}
    if len(pad) % 2 or len(pad) > 2 * rank or min(pad, default=0) < 0 or mode not in modes:
        raise Error(
            f"got pad {tuple(pad)} and mode {mode!r} for x {x.type}, need at most {rank} pairs of integers that are not"
            f" negative, and one of {', '.join(modes)}"
        )
    zeros = (0,) * (rank - len(pad) // 2)
    return b.pad(x, begin=(*zeros, *pad[::2]), end=(*zeros, *pad[1::2]), mode=modes[mode], value=constant_val)


def _write_depth_to_space(node: Node) -> MilCall | None:
    if node.attrs["mode"] == "CRD":
        return None
    return MilCall("depth_to_space", {"x": node.inputs[0], "block_size": node.attrs["block_size"]})


def _read_depth_to_space(b: Builder, x: Value, block_size: int) -> Value:
    return b.depth_to_space(x, block_size=block_size)


def _read_reverse(b: Builder, x: Value, axes: Ints | None) -> Value:
    return b.reverse(x, axes=tuple(range(len(x.shape))) if axes is None else axes)


def _read_squeeze(b: Builder, x: Value, axes: Ints | None) -> Value:
    return b.squeeze(x, axes=axes or ())


FORMS = (
    *map(plain, _PLAIN),
    plain("reshape")._replace(read=_read_reshape),
    plain("reverse")._replace(read=_read_reverse),
    plain("squeeze")._replace(read=_read_squeeze),
    Form("slice_by_index", "slice_by_index", _write_slice, _read_slice),
    Form("", "slice_by_size", None, _read_slice_by_size),
    Form("split", "split", _write_split, _read_split),
    Form("concat", "concat", _write_concat, _read_concat),
    Form("pad", "pad", _write_pad, _read_pad),
    Form("depth_to_space", "depth_to_space", _write_depth_to_space, _read_depth_to_space),
)
