"""Convolutions and pooling."""

from collections.abc import Sequence

from hexane.errors import Error
from hexane.graph import Node, Value
from hexane.mil.forms.form import Form, MilCall, given
from hexane.ops.compose import Builder

Ints = Sequence[int]


def _write_conv(node: Node) -> MilCall | None:
    x, weight, bias = node.inputs
    if node.attrs["layout"] != "nchw":
        return None
    return MilCall("conv", {"x": x, "weight": weight, "bias": bias, **_window(node), "groups": node.attrs["groups"]})


def _write_conv_transpose(node: Node) -> MilCall | None:
    """Writes a transposed convolution without output_padding, which MIL expresses only by a smaller pad at the end."""
    x, weight, bias = node.inputs
    if node.attrs["layout"] != "nchw" or any(node.attrs["output_padding"]):
        return None
    arguments = {"x": x, "weight": weight, "bias": bias, **_window(node)}
    return MilCall("conv_transpose", {**arguments, "groups": node.attrs["groups"]})


def _write_max_pool(node: Node) -> MilCall | None:
    if node.attrs["layout"] != "nchw" or max(node.attrs["dilations"]) > 1:
        return None
    window = _window(node)
    del window["dilations"]
    arguments = {"kernel_sizes": node.attrs["kernel_sizes"], **window, "ceil_mode": node.attrs["ceil_mode"]}
    return MilCall("max_pool", {"x": node.inputs[0], **arguments})


def _write_avg_pool(node: Node) -> MilCall | None:
    written = _write_max_pool(node)
    if written is None:
        return None
    excluded = {"exclude_padding_from_average": node.attrs["exclude_padding"]}
    return MilCall("avg_pool", {**written.arguments, **excluded})


def _window(node: Node) -> dict[str, object]:
    attrs = node.attrs
    return {"strides": attrs["strides"], "pad_type": "custom", "pad": attrs["pad"], "dilations": attrs["dilations"]}


def _pads(x: Value, kernel: Ints, strides: Ints, dilations: Ints, pad_type: str, pad: Ints | None) -> tuple[int, ...]:
    num = len(kernel)
    if not len(kernel) == len(strides) == len(dilations) == len(x.shape) - 2:
        raise Error(f"got {num} kernel sizes, {len(strides)} strides and {len(dilations)} dilations for x {x.type}")
    if pad_type == "custom":
        if pad is None or len(pad) != 2 * num:
            raise Error(f"pad: got {pad} with pad_type custom, need {2 * num} integers")
        return tuple(pad)
    if pad_type == "valid":
        return (0,) * (2 * num)
    if pad_type not in ("same", "same_lower"):
        raise Error(f"pad_type: got {pad_type!r}, need valid, same, same_lower or custom")
    pads: list[int] = []
    for extent, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        if s < 1:
            raise Error(f"strides: got {strides}, need positive integers")
        total = max(0, (-(-extent // s) - 1) * s + d * (k - 1) + 1 - extent)
        less, more = total // 2, total - total // 2
        pads += (less, more) if pad_type == "same" else (more, less)
    return tuple(pads)


def _ones(kernel: Ints, value: Ints | None) -> Ints:
    return (1,) * len(kernel) if value is None else value


def _read_conv(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None,
    strides: Ints | None,
    pad_type: str,
    pad: Ints | None,
    dilations: Ints | None,
    groups: int,
) -> Value:
    kernel = weight.shape[2:]
    strides, dilations = _ones(kernel, strides), _ones(kernel, dilations)
    pads = _pads(x, kernel, strides, dilations, pad_type, pad)
    return b.conv(x, weight, bias, strides=strides, dilations=dilations, pad=pads, groups=groups)


def _read_conv_transpose(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None,
    pad: Ints | None,
    output_shape: Ints | None,
    pad_type: str,
    strides: Ints | None,
    dilations: Ints | None,
    groups: int,
) -> Value:
    kernel = weight.shape[2:]
    strides, dilations = _ones(kernel, strides), _ones(kernel, dilations)
    if pad_type not in ("custom", "valid"):
        raise Error(f"pad_type: got {pad_type!r}, need custom or valid")
    pads = _pads(x, kernel, strides, dilations, pad_type, pad)
    result = b.conv_transpose(x, weight, bias, strides=strides, dilations=dilations, pad=pads, groups=groups)
    if output_shape is not None and tuple(output_shape) != result.shape:
        raise Error(f"output_shape: got {tuple(output_shape)}, need {result.shape}, which pad and strides give")
    return result


def _read_pool(
    b: Builder,
    x: Value,
    kernel_sizes: Ints,
    strides: Ints | None,
    pad_type: str,
    pad: Ints | None,
    ceil_mode: bool,
    exclude_padding_from_average: bool | None = None,
) -> Value:
    strides = _ones(kernel_sizes, strides)
    pads = _pads(x, kernel_sizes, strides, _ones(kernel_sizes, None), pad_type, pad)
    op = "max_pool" if exclude_padding_from_average is None else "avg_pool"
    attrs = given(exclude_padding=exclude_padding_from_average)
    return b.apply(op, x, kernel_sizes=kernel_sizes, strides=strides, pad=pads, ceil_mode=ceil_mode, **attrs)


FORMS = (
    Form("conv", "conv", _write_conv, _read_conv),
    Form("conv_transpose", "conv_transpose", _write_conv_transpose, _read_conv_transpose),
    Form("max_pool", "max_pool", _write_max_pool, _read_pool),
    Form("avg_pool", "avg_pool", _write_avg_pool, _read_pool),
)
