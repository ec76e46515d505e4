"""A weight in an encoding: integers with a scale for each channel, or indices of a palette."""

from math import prod

import numpy as np

from hexane import _core
from hexane.compression.request import palette_of
from hexane.compression.weights import Weight
from hexane.errors import Error
from hexane.graph import Array, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encodings import encoding_of


def encode(weight: Weight, encoding: str, threads: int = 1) -> Value:
    """dequantize(const int8, scale), gather(table, const indices), or decode_palette(const indices, tables); the
    constant itself for "none".

    Raises Error for weights that are not finite, or that fp16 does not hold.
    """
    whole = weight.whole
    data = whole.node.data
    assert data is not None
    if encoding == "none":
        return whole
    sources = whole.node.sources or weight.node.sources
    halves = _halves(weight, data)
    if encoding == "int8":
        outer, channels = prod(data.shape[: weight.axis]), data.shape[weight.axis]
        wide = np.ascontiguousarray(data, np.float32)
        integers, scales = _core.quantise_int8(wide, outer, channels, data.size // (outer * channels))
        operands = [constant(integers.reshape(data.shape), sources), constant(scales, sources), None]
        (made,) = apply(OPS["dequantize"], operands, {"axis": weight.axis, "dtype": whole.dtype}, sources)
        return made
    palette = palette_of(encoding)
    assert palette is not None, encoding
    bits, group = palette
    if group and not kept_whole(weight, encoding):
        outer, groups = prod(data.shape[: weight.axis]), data.shape[weight.axis] // group
        entries, indices = _core.quantise_groups(halves.view(np.uint16), outer, groups, bits, threads)
        blocks = [groups if i == weight.axis else 1 for i in range(data.ndim)]
        tables = entries.view(np.float16).astype(data.dtype).reshape(*blocks, 1 << bits)
        operands = [constant(indices.reshape(data.shape), sources), constant(tables, sources)]
        (made,) = apply(OPS["decode_palette"], operands, {}, sources)
        return made
    entries, indices, _ = _core.quantise_palette(halves.view(np.uint16), bits)
    table = entries.view(np.float16).astype(data.dtype)
    operands = [constant(table, sources), constant(indices.reshape(data.shape), sources)]
    (made,) = apply(OPS["gather"], operands, {"axis": 0}, sources)
    return made


def kept_whole(weight: Weight, encoding: str) -> str:
    """Why a weight gets one table where tables of groups are asked for; "" where it gets these."""
    palette, channels = palette_of(encoding), weight.whole.shape[weight.axis]
    if palette is None or not palette[1] or channels % palette[1] == 0:
        return ""
    return f"one table, since {channels} channels are no multiple of {palette[1]}"


def stored_bytes(value: Value) -> int:
    """Of a weight as it is stored, with its scales or table, in fp16."""
    encoding = encoding_of(value)
    if encoding.kind in ("whole", "pruned"):
        return 2 * value.type.size
    beside = value.node.inputs[0 if value.node.inputs[1] == encoding.stored else 1]
    assert beside is not None
    return encoding.bytes + 2 * beside.type.size


def _halves(weight: Weight, data: Array) -> Array:
    """The numbers in fp16."""
    if data.dtype == np.float16:
        halves = np.ascontiguousarray(data)
        finite = bool(np.isfinite(halves).all())
    else:
        halves = np.empty(data.shape, np.float16)
        finite = _core.convert(np.ascontiguousarray(data), halves)
    if finite:
        return halves
    bad = data[~np.isfinite(halves)][0]
    what = "within +-65504, which fp16 holds" if np.isfinite(bad) else "finite"
    raise Error(
        f"[compress] {weight.node.where}: got the weight {bad}, need all of them {what}; per_layer={{'...': 'none'}}"
        " leaves a layer as it is"
    )
