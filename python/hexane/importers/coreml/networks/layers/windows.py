"""Convolutions, pools, padding, cropping and resizing."""

from collections.abc import Sequence
from typing import Any

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.networks.registry import LayerContext, reads
from hexane.importers.coreml.ops.sampling import crop_resize
from hexane.importers.coreml.registry import Context


def _pair(values: Sequence[int], default: int) -> list[int]:
    pair = [int(v) for v in values] or [default] * 2
    if len(pair) != 2:
        raise Error(f"got {len(pair)} numbers, need 2: height and width")
    return pair


def _borders(amounts: Any) -> list[int]:
    """Returns the amounts at the top, bottom, left and right border."""
    edges = amounts.borderAmounts
    if len(edges) not in (0, 2):
        raise Error(f"borderAmounts: got {len(edges)} axes, need 2: height and width")
    return [int(v) for e in edges for v in (e.startEdgeSize, e.endEdgeSize)] or [0] * 4


def _padding(p: Any) -> dict[str, Any]:
    if p.HasField("same"):
        return {"pad_type": "same_lower" if p.same.asymmetryMode else "same"}
    return {"pad_type": "custom", "pad": _borders(p.valid.paddingAmounts)}


@reads("convolution")
def convolution(n: LayerContext, p: Any, x: Value) -> Value:
    kernel, strides = _pair(p.kernelSize, 3), _pair(p.stride, 1)
    groups, out = int(p.nGroups) or 1, int(p.outputChannels)
    padding = _padding(p)
    if p.isDeconvolution:
        if out % groups:
            raise Error(f"got {out} output channels in {groups} groups, need a multiple")
        weight = n.weight(p.weights, p.kernelChannels, out // groups, *kernel, axis=1)
        if padding["pad_type"] == "same_lower":
            raise Error("asymmetryMode: got TOP_LEFT_HEAVY in a deconvolution, need BOTTOM_RIGHT_HEAVY")
        op, bounds = "conv_transpose", dict[str, Any]()
        _check_extents(p, x, kernel, strides, padding)
    else:
        weight = n.weight(p.weights, out, p.kernelChannels, *kernel)
        op = "conv"
        bounds = {"dilations": _pair(p.dilationFactor, 1)}
    bias = n.b.const(n.weight(p.bias, out, what="bias")) if p.hasBias else None
    attrs = {"weight": n.b.const(weight), "bias": bias, "strides": strides, "groups": groups, **padding, **bounds}
    return n.images(x, lambda v: n.mil(op, x=v, **attrs))


def _check_extents(p: Any, x: Value, kernel: list[int], strides: list[int], padding: dict[str, Any]) -> None:
    """Raises Error if the outputShape of a deconvolution differs from the shape that its padding gives. Apple does not
    say which rows a smaller outputShape omits."""
    spatial, cut = x.shape[-len(kernel) :], padding.get("pad", [])
    if padding["pad_type"] == "same":
        extents = [d * s for d, s in zip(spatial, strides, strict=True)]
    else:
        whole = [(d - 1) * s + k for d, s, k in zip(spatial, strides, kernel, strict=True)]
        extents = [w - a - z for w, a, z in zip(whole, cut[::2], cut[1::2], strict=True)]
    if p.outputShape and list(map(int, p.outputShape)) != extents:
        raise Error(f"outputShape: got {list(p.outputShape)}, need {extents}, which the padding gives")


POOLS = {0: "max_pool", 1: "avg_pool", 2: "l2_pool"}
WHOLE = {0: "reduce_max", 1: "reduce_mean", 2: "reduce_l2_norm"}


def _kind(kind: int, names: dict[int, str]) -> str:
    if kind not in names:
        raise Error(f"type: got {kind}, need one of {', '.join(map(str, names))}")
    return names[kind]


@reads("pooling")
def pooling(n: LayerContext, p: Any, x: Value) -> Value:
    if p.globalPooling:
        return n.b.apply(_kind(p.type, WHOLE), x, axes=(-2, -1), keep_dims=True)
    kernel, strides = _pair(p.kernelSize, 3), _pair(p.stride, 1)
    extra: dict[str, Any] = {"exclude_padding_from_average": p.avgPoolExcludePadding} if p.type == 1 else {}
    if p.HasField("includeLastPixel"):
        pads = [v for v in _pair(p.includeLastPixel.paddingAmounts, 0) for _ in range(2)]
        extra |= {"pad_type": "custom", "pad": pads, "ceil_mode": True}
        if not any(pads) and any(
            -(-(d - k) // s) * s >= d for d, k, s in zip(x.shape[-2:], kernel, strides, strict=True)
        ):
            raise Error(f"got windows of {kernel} every {strides} that begin behind x {x.shape}, need ones within")
    else:
        extra |= _padding(p)
    attrs = {"kernel_sizes": kernel, "strides": strides, **extra}
    return n.images(x, lambda v: n.mil(_kind(p.type, POOLS), x=v, **attrs))


def _volume(p: Any) -> dict[str, Any]:
    if p.paddingType == 2:
        return {"pad_type": "same"}
    sides = ("Front", "Back", "Top", "Bottom", "Left", "Right")
    pads = [int(getattr(p, f"customPadding{side}")) for side in sides] if p.paddingType == 0 else [0] * 6
    return {"pad_type": "custom", "pad": pads}


AXES = ("Depth", "Height", "Width")


def _of_volume(p: Any, name: str, default: int) -> list[int]:
    return [int(getattr(p, f"{name}{axis}")) or default for axis in AXES]


@reads("convolution3d")
def convolution3d(n: LayerContext, p: Any, x: Value) -> Value:
    """Convolves x (N, C, D, H, W)."""
    kernel, groups, out = _of_volume(p, "kernel", 3), p.nGroups or 1, p.outputChannels
    attrs: dict[str, Any] = {"strides": _of_volume(p, "stride", 1), "groups": groups, **_volume(p)}
    if p.isDeconvolution:
        weight = n.weight(p.weights, p.inputChannels, out // groups, *kernel, axis=1)
        _check_extents(p, x, kernel, attrs["strides"], attrs)
    else:
        weight = n.weight(p.weights, out, p.inputChannels // groups, *kernel)
        attrs["dilations"] = _of_volume(p, "dilation", 1)
    attrs["bias"] = n.b.const(n.weight(p.bias, out, what="bias")) if p.hasBias else None
    return n.mil("conv_transpose" if p.isDeconvolution else "conv", x=x, weight=n.b.const(weight), **attrs)


@reads("pooling3d")
def pooling3d(n: LayerContext, p: Any, x: Value) -> Value:
    attrs = {"kernel_sizes": _of_volume(p, "kernel", 3), "strides": _of_volume(p, "stride", 1), **_volume(p)}
    if p.type == 1:
        attrs["exclude_padding_from_average"] = p.countExcludePadding
    return n.mil(_kind(p.type, {k: v for k, v in POOLS.items() if k < 2}), x=x, **attrs)


@reads("globalPooling3d")
def global_pooling3d(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.apply(_kind(p.type, WHOLE), x, axes=(-3, -2, -1), keep_dims=True)


@reads("padding")
def padding(n: LayerContext, p: Any, x: Value) -> Value:
    top, bottom, left, right = _borders(p.paddingAmounts)
    mode = next((m for f, m in (("reflection", "reflect"), ("replication", "edge")) if p.HasField(f)), "constant")
    lead = [0] * (len(x.shape) - 2)
    value = {"value": p.constant.value} if mode == "constant" else {}
    return n.b.pad(x, begin=[*lead, top, left], end=[*lead, bottom, right], mode=mode, **value)


@reads("crop")
def crop(n: LayerContext, p: Any, x: Value, like: Value | None = None) -> Value:
    height, width = x.shape[-2:]
    if like is None:
        top, bottom, left, right = _borders(p.cropAmounts)
        begin, end = [top, left], [height - bottom, width - right]
    else:
        begin = _pair(p.offset, 0)
        end = [a + d for a, d in zip(begin, like.shape[-2:], strict=True)]
    if any(not 0 <= a < z <= d for a, z, d in zip(begin, end, x.shape[-2:], strict=True)):
        raise Error(
            f"got the rows {begin[0]}..{end[0]} and columns {begin[1]}..{end[1]} of x {x.shape}, need ones of it"
        )
    lead = x.shape[:-2]
    return n.b.slice_by_index(x, begin=[*[0] * len(lead), *begin], end=[*lead, *end])


# linearUpsampleMode: output i samples the source at i * in / out, at i * (in - 1) / (out - 1), or at the pixel's
# centre.
LINEAR_MODES = ("DEFAULT", "STRICT_ALIGN_CORNERS", "UNALIGN_CORNERS")
SAMPLING = ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS")


@reads("upsample")
def upsample(n: LayerContext, p: Any, x: Value) -> Value:
    factors = [float(v) for v in p.fractionalScalingFactor] or [float(v) for v in p.scalingFactor] or [1.0, 1.0]
    if len(factors) != 2:
        raise Error(f"scalingFactor: got {len(factors)} numbers, need 2: height and width")
    if p.mode == 0:
        scales = {
            f"scale_factor_{a}": n.b.const(f, "float32") for a, f in zip(("height", "width"), factors, strict=True)
        }
        return n.images(x, lambda v: n.mil("upsample_nearest_neighbor", x=v, **scales))
    if p.mode != 1 or not 0 <= p.linearUpsampleMode < len(LINEAR_MODES):
        raise Error(f"mode: got {p.mode}, {p.linearUpsampleMode}, need nearest (0) or bilinear (1) with 0 to 2")
    size = [int(d * f) for d, f in zip(x.shape[-2:], factors, strict=True)]
    return _resized(n, x, size, LINEAR_MODES[p.linearUpsampleMode])


@reads("resizeBilinear")
def resize_bilinear(n: LayerContext, p: Any, x: Value) -> Value:
    if not 0 <= p.mode.samplingMethod < len(SAMPLING):
        raise Error(f"samplingMethod: got {p.mode.samplingMethod}, need 0 to {len(SAMPLING) - 1}")
    return _resized(n, x, _pair(p.targetSize, 1), SAMPLING[p.mode.samplingMethod])


BOXES = ("CORNERS_HEIGHT_FIRST", "CORNERS_WIDTH_FIRST", "CENTER_SIZE_HEIGHT_FIRST", "CENTER_SIZE_WIDTH_FIRST")


@reads("cropResize")
def crop_boxes(n: LayerContext, p: Any, x: Value, boxes: Value) -> Value:
    """Returns crops (boxes, images, channels, height, width). A box of five numbers starts with the index of its
    image."""
    x, boxes = n.five(x), n.five(boxes)
    if x.shape[0] != 1 or boxes.shape[1:] not in ((1, 4, 1, 1), (1, 5, 1, 1)):
        got = f"x {list(x.shape)} and boxes {list(boxes.shape)}"
        raise Error(f"got {got}, need (1, batch, c, h, w) and (n, 1, 4 or 5, 1, 1)")
    if not (0 <= p.mode.samplingMethod < len(SAMPLING) and 0 <= p.boxIndicesMode.boxMode < len(BOXES)):
        got = f"samplingMethod {p.mode.samplingMethod} and boxMode {p.boxIndicesMode.boxMode}"
        raise Error(f"got {got}, need 0 to {len(SAMPLING) - 1} and 0 to {len(BOXES) - 1}")
    if not p.spatialScale:
        raise Error("spatialScale: got 0, need another number")
    height, width = _pair(p.targetSize, 1)
    options = {
        "target_height": height, "target_width": width, "normalized_coordinates": p.normalizedCoordinates,
        "spatial_scale": p.spatialScale, "box_coordinate_mode": BOXES[p.boxIndicesMode.boxMode],
        "sampling_mode": SAMPLING[p.mode.samplingMethod], "boxes": None, "box_indices": None,
    }  # fmt: skip
    context = Context(n.b, 18, None)  # type: ignore[arg-type]  # no blocks here
    image = n.b.reshape(x, shape=x.shape[1:])
    crops = crop_resize(context, None, x=image, roi=boxes, pad_value=0.0, in_box=True, **options)
    return n.least(crops)


def _resized(n: LayerContext, x: Value, size: list[int], mode: str) -> Value:
    attrs = {"target_size_height": size[0], "target_size_width": size[1], "sampling_mode": mode}
    return n.images(x, lambda v: n.mil("resize_bilinear", x=v, **attrs))


@reads("reorganizeData")
def reorganize(n: LayerContext, p: Any, x: Value) -> Value:
    block = int(p.blockSize)
    ops = {0: ("space_to_depth", {}), 1: ("depth_to_space", {"mode": "DCR"}), 2: ("depth_to_space", {"mode": "CRD"})}
    if p.mode not in ops or block < 1:
        raise Error(f"got the mode {p.mode} with blocks of {block}, need 0, 1 or 2 and positive blocks")
    op, attrs = ops[p.mode]
    return n.images(x, lambda v: n.b.apply(op, v, block_size=block, **attrs))
