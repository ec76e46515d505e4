"""Convolutions and pools."""

from typing import Any

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.registry import Context, reads


def _spatial(values: Any, count: int, default: int) -> list[int]:
    return [default] * count if values is None or not values else list(values)


def _pads(x: Value, kernel: list[int], strides: list[int], dilations: list[int], pad_type: str, pad: Any) -> list[int]:
    """Returns (begin, end) padding of each axis."""
    if pad_type == "valid":
        return [0] * (2 * len(kernel))
    if pad_type == "custom":
        return _spatial(pad, 2 * len(kernel), 0)
    if pad_type not in ("same", "same_lower"):
        raise Error(f"pad_type: got {pad_type!r}, need valid, same, same_lower or custom")
    pads: list[int] = []
    for extent, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        total = max(0, (-(-extent // s) - 1) * s + d * (k - 1) + 1 - extent)
        less, more = total // 2, total - total // 2
        pads += (less, more) if pad_type == "same" else (more, less)
    return pads


@reads("conv x weight bias? strides:ints? pad_type:str=valid pad:ints? dilations:ints? groups:int=1")
def conv(c: Context, _: Any, /, x: Value, weight: Value, bias: Value | None, **g: Any) -> Value:
    kernel = list(weight.shape[2:])
    strides, dilations = (_spatial(g[n], len(kernel), 1) for n in ("strides", "dilations"))
    pads = _pads(x, kernel, strides, dilations, g["pad_type"], g["pad"])
    return c.b.conv(x, weight, bias, strides=strides, dilations=dilations, pad=pads, groups=g["groups"])


@reads(
    "conv_transpose x weight bias? pad:ints? output_shape:ints? pad_type:str=valid strides:ints? dilations:ints?"
    " groups:int=1"
)
def conv_transpose(c: Context, _: Any, /, x: Value, weight: Value, bias: Value | None, **g: Any) -> Value:
    """Convolves, transposed. The full result loses the pads at its start, and is cut to the wanted shape at its end. A
    result that is too short is filled with zeros."""
    b, kernel = c.b, list(weight.shape[2:])
    count = len(kernel)
    strides, dilations = (_spatial(g[n], count, 1) for n in ("strides", "dilations"))
    whole = [(d - 1) * s + (k - 1) * e + 1 for d, s, k, e in zip(x.shape[2:], strides, kernel, dilations, strict=True)]
    if g["pad_type"] in ("same", "same_lower"):
        wanted = [d * s for d, s in zip(x.shape[2:], strides, strict=True)]
        before = [max(0, w - n) // 2 for w, n in zip(whole, wanted, strict=True)]
    else:
        pads = _pads(x, kernel, strides, dilations, g["pad_type"], g["pad"])
        before = pads[::2]
        wanted = [w - p - q for w, p, q in zip(whole, pads[::2], pads[1::2], strict=True)]
    if g["output_shape"]:
        wanted = list(g["output_shape"])[-count:]
    after = [w - p - n for w, p, n in zip(whole, before, wanted, strict=True)]
    pads = [v for p, q in zip(before, after, strict=True) for v in (p, max(q, 0))]
    y = b.conv_transpose(x, weight, bias, strides=strides, dilations=dilations, pad=pads, groups=g["groups"])
    if any(q < 0 for q in after):
        if bias is not None:  # the padding zeros precede the bias
            y = b.conv_transpose(x, weight, None, strides=strides, dilations=dilations, pad=pads, groups=g["groups"])
        y = b.pad(y, begin=[0] * len(y.shape), end=[0, 0, *(max(-q, 0) for q in after)])
        y = y if bias is None else b.add(y, b.reshape(bias, shape=(bias.type.size, *[1] * count)))
    return y


def _ceiled(x: Value, kernel: list[int], strides: list[int], pads: list[int]) -> list[int]:
    """Returns the additional padding at each axis' end that the last window needs if extents are rounded up."""
    more = []
    for i, (extent, k, s) in enumerate(zip(x.shape[2:], kernel, strides, strict=True)):
        padded = extent + pads[2 * i] + pads[2 * i + 1]
        out = (padded - k + s - 1) // s + 1
        if (out - 1) * s >= extent + pads[2 * i]:
            out -= 1
        more.append(max(0, (out - 1) * s + k - padded))
    return more


def _pool(c: Context, x: Value, g: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    kernel = list(g["kernel_sizes"])
    strides = _spatial(g["strides"], len(kernel), 1)
    return kernel, strides, _pads(x, kernel, strides, [1] * len(kernel), g["pad_type"], g["pad"])


POOL = "kernel_sizes:ints strides:ints? pad_type:str=valid pad:ints? ceil_mode:bool=false"


@reads(f"max_pool x {POOL}")
def max_pool(c: Context, _: Any, /, x: Value, **g: Any) -> Value:
    kernel, strides, pads = _pool(c, x, g)
    return c.b.max_pool(x, kernel_sizes=kernel, strides=strides, pad=pads, ceil_mode=g["ceil_mode"])


@reads(f"avg_pool x {POOL} exclude_padding_from_average:bool=false")
def avg_pool(c: Context, _: Any, /, x: Value, **g: Any) -> Value:
    kernel, strides, pads = _pool(c, x, g)
    exclude = g["exclude_padding_from_average"]
    return c.b.avg_pool(
        x, kernel_sizes=kernel, strides=strides, pad=pads, ceil_mode=g["ceil_mode"], exclude_padding=exclude
    )


@reads(f"l2_pool x {POOL}")
def l2_pool(c: Context, _: Any, /, x: Value, **g: Any) -> Value:
    kernel, strides, pads = _pool(c, x, g)
    if g["ceil_mode"]:
        pads = [
            p + (m if i % 2 else 0)
            for i, (p, m) in enumerate(zip(pads, _twice(_ceiled(x, kernel, strides, pads)), strict=True))
        ]
    return c.b.lp_pool(x, p=2, kernel_sizes=kernel, strides=strides, pad=pads)


def _twice(values: list[int]) -> list[int]:
    return [v for v in values for _ in range(2)]
