"""Resizing, cropping and sampling images."""

import operator
from typing import Any

import numpy as np

from hexane.dtypes import FP32, INT32
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.coreml.known import known_array
from hexane.importers.coreml.registry import Context, reads
from hexane.ops.compose import Builder, cast, part

MODES = ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS", "UNALIGN_CORNERS")


def _grid(extent: int, out: int, mode: str) -> Array:
    """Returns the source positions of the outputs, not clamped."""
    i = np.arange(out, dtype=np.float64)
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if out == 1:
            return np.array([(extent - 1) / 2 if mode == "ALIGN_CORNERS" else 0.0])
        return i * (extent - 1) / (out - 1)
    if mode == "DEFAULT":
        return i * extent / out
    if mode == "OFFSET_CORNERS":
        return (i + 0.5) * max(1, extent - 1) / out
    if mode == "UNALIGN_CORNERS":
        return (i + 0.5) * extent / out - 0.5
    raise Error(f"sampling_mode: got {mode!r}, need one of {', '.join(MODES)}")


def _along(c: Context, x: Value, axis: int, grid: Array, nearest: bool = False) -> Value:
    """Samples one axis at the grid: between two neighbours, or at the lower one (`nearest`)."""
    b, extent = c.b, x.shape[axis]
    places = np.clip(grid, 0, extent - 1)
    if nearest:
        return b.gather(x, np.floor(places).astype(np.int32), axis=axis)
    if np.array_equal(places, np.arange(extent)):
        return x
    low = np.floor(places).astype(np.int32)
    high = np.minimum(low + 1, extent - 1).astype(np.int32)
    matrix = np.zeros((len(places), extent))
    rows = np.arange(len(places))
    np.add.at(matrix, (rows, low), 1 - (places - low))
    np.add.at(matrix, (rows, high), places - low)
    wide = cast(b, x, FP32)
    last = len(x.shape) - 1
    perm = [*(i for i in range(last + 1) if i != axis), axis]
    moved = b.matmul(b.transpose(wide, perm=perm), b.const(np.ascontiguousarray(matrix.T.astype(np.float32))))
    back = b.transpose(moved, perm=[perm.index(i) for i in range(last + 1)])
    return cast(b, back, x.dtype)


def _resized(c: Context, x: Value, height: int, width: int, mode: str) -> Value:
    rank = len(x.shape)
    y = _along(c, cast(c.b, x, FP32), rank - 2, _grid(x.shape[-2], height, mode))
    return cast(c.b, _along(c, y, rank - 1, _grid(x.shape[-1], width, mode)), x.dtype)


@reads("resize_bilinear x target_size_height:int=1 target_size_width:int=1 sampling_mode:str=DEFAULT")
def resize_bilinear(
    c: Context, _: Any, /, x: Value, target_size_height: int, target_size_width: int, sampling_mode: str
) -> Value:
    return _resized(c, x, target_size_height, target_size_width, sampling_mode)


@reads("resize x shape:ints resized_dims:int interpolation_mode:str=LINEAR sampling_mode:str=DEFAULT")
def resize(
    c: Context,
    _: Any,
    /,
    x: Value,
    shape: tuple[int, ...],
    resized_dims: int,
    interpolation_mode: str,
    sampling_mode: str,
) -> Value:
    """Resizes x. Only the last `resized_dims` entries of the shape are used. An entry of 0 keeps the extent of its
    axis."""
    y, wanted = x, shape[len(shape) - resized_dims :] if resized_dims else ()
    rank = len(x.shape)
    for i, extent in enumerate(wanted):
        axis = rank - len(wanted) + i
        if (
            extent in (0, x.shape[axis])
            and interpolation_mode != "NEAREST_NEIGHBOR"
            and sampling_mode != "OFFSET_CORNERS"
        ):
            continue
        out = extent or x.shape[axis]
        if interpolation_mode == "LINEAR":
            y = _along(c, y, axis, _grid(x.shape[axis], out, sampling_mode))
        elif interpolation_mode == "NEAREST_NEIGHBOR":
            y = _along(c, y, axis, np.floor(_grid(x.shape[axis], out, sampling_mode) + 0.5), nearest=True)
        else:
            raise Error(f"interpolation_mode: got {interpolation_mode!r}, need LINEAR or NEAREST_NEIGHBOR")
    return y


@reads("resize_nearest_neighbor x target_size_height:int target_size_width:int")
def resize_nearest_neighbor(c: Context, _: Any, /, x: Value, target_size_height: int, target_size_width: int) -> Value:
    return _nearest(c, x, target_size_height, target_size_width)


def _nearest(c: Context, x: Value, height: int, width: int) -> Value:
    rank, y = len(x.shape), x
    for axis, out in ((rank - 2, height), (rank - 1, width)):
        extent = x.shape[axis]
        y = _along(c, y, axis, np.arange(out) * extent // max(out, 1), nearest=True)
    return y


@reads("upsample_nearest_neighbor x scale_factor_height:any? scale_factor_width:any?")
def upsample_nearest_neighbor(
    c: Context, _: Any, /, x: Value, scale_factor_height: Any, scale_factor_width: Any
) -> Value:
    height, width = (_scaled(x.shape[a], f) for a, f in ((-2, scale_factor_height), (-1, scale_factor_width)))
    h, w = x.shape[-2:]
    if len(x.shape) == 4 and height % max(h, 1) == 0 and width % max(w, 1) == 0 and h and w:
        return c.b.upsample_nearest_neighbor(x, scale_factor_height=height / h, scale_factor_width=width / w)
    return _nearest(c, x, height, width)


def _scaled(extent: int, factor: Any) -> int:
    number = 1.0 if factor is None else known_array(factor).reshape(())
    return int(np.floor(np.float32(extent) * np.float32(number)))


@reads(
    "upsample_bilinear x scale_factor_height:any? scale_factor_width:any? align_corners:bool=true"
    " half_pixel_centers:bool?"
)
def upsample_bilinear(
    c: Context, _: Any, /, x: Value, scale_factor_height: Any, scale_factor_width: Any, align_corners: bool,
    half_pixel_centers: bool | None,
) -> Value:  # fmt: skip
    """Resizes x. The distance between sampled positions follows from the sizes, not from the factors."""
    height, width = (_scaled(x.shape[a], f) for a, f in ((-2, scale_factor_height), (-1, scale_factor_width)))
    half = (not align_corners) if half_pixel_centers is None else half_pixel_centers
    mode = "STRICT_ALIGN_CORNERS" if align_corners else "UNALIGN_CORNERS" if half else "DEFAULT"
    return _resized(c, x, height, width, mode)


@reads("crop x crop_height:ints crop_width:ints")
def crop(c: Context, _: Any, /, x: Value, crop_height: tuple[int, ...], crop_width: tuple[int, ...]) -> Value:
    return c.b.crop(x, crop_height=crop_height, crop_width=crop_width)


@reads(
    "crop_resize x roi? boxes? box_indices? target_height:int=1 target_width:int=1 normalized_coordinates:bool=false"
    " spatial_scale:float=1.0 box_coordinate_mode:str=CORNERS_HEIGHT_FIRST sampling_mode:str=DEFAULT"
    " pad_value:float=0.0"
)
def crop_resize(c: Context, _: Any, /, x: Value, **g: Any) -> Value:
    """Crops and resizes boxes. Both ends of a box are sampled; positions outside the image read pad_value. in_box: no
    position exceeds the box's end."""
    given = g["roi"] if g["roi"] is not None else g["boxes"]
    if given is None:
        raise Error("got no boxes, need some")
    if given.node.data is None or (g["box_indices"] is not None and g["box_indices"].node.data is None):
        return _cropped_at_run_time(c, x, given, g)
    boxes = known_array(given).astype(np.float64)
    boxes = boxes.reshape(-1, boxes.shape[-3] if g["roi"] is not None and boxes.ndim == 5 else boxes.shape[-1])
    by_index = g["roi"] is not None and boxes.shape[1] == 5
    indices = boxes[:, 0].astype(int) if by_index else np.zeros(len(boxes), int)
    if g["box_indices"] is not None:
        indices = known_array(g["box_indices"]).reshape(-1).astype(int)
    boxes = boxes[:, 1:] if by_index else boxes
    named = g["roi"] is None or by_index
    h, w = x.shape[-2:]
    results = []
    for box, index in zip(boxes, indices, strict=True):
        image = c.b.slice_by_index(x, begin=(int(index), 0, 0, 0), end=(int(index) + 1, *x.shape[1:])) if named else x
        results.append(_cropped(c, image, _corners(box, g, h, w), g))
    joined = results[0] if len(results) == 1 else c.b.concat(*results, axis=0)
    if g["roi"] is None:
        return joined
    images = 1 if by_index else x.shape[0]
    return c.b.reshape(joined, shape=(len(boxes), images, *joined.shape[1:]))


def _cropped_at_run_time(c: Context, x: Value, given: Value, g: dict[str, Any]) -> Value:
    """Crops and resizes boxes that the network computes, each output element from four pixels."""
    b, (images, _, h, w) = c.b, x.shape
    with_roi = g["roi"] is not None
    numbers = given.shape[2] if with_roi and len(given.shape) == 5 else given.shape[-1]
    boxes = b.reshape(cast(b, given, FP32), shape=(given.type.size // numbers, numbers))
    count = boxes.shape[0]
    index: Any = None
    if with_roi and numbers == 5:
        index = cast(b, part(b, boxes, 1, 0, 1), INT32)
        boxes = part(b, boxes, 1, 1, 5)
    elif not with_roi:
        zeros = b.const(np.zeros(count, np.int32))
        index = zeros if g["box_indices"] is None else cast(b, g["box_indices"], INT32)
    four = [part(b, boxes, 1, i, i + 1) for i in range(4)]
    top, left, bottom, right = _corners(four, g, h, w, b)
    wide = cast(b, x, FP32)
    if index is None:  # every box is cut from every image
        wide = b.tile(wide, reps=(count, 1, 1, 1))
        top, left, bottom, right = (b.reshape(b.tile(v, reps=(1, images)), shape=(count * images, 1))
                                    for v in (top, left, bottom, right))  # fmt: skip
    else:
        wide = b.gather(wide, b.reshape(index, shape=(count,)), axis=0)
    lines = []
    for first, last, out in ((left, right, g["target_width"]), (top, bottom, g["target_height"])):
        factor, offset = _of_length(out, g["sampling_mode"])
        length = b.sub(last, first)
        if g["sampling_mode"] == "OFFSET_CORNERS":
            length = b.maximum(length, 1.0)
        line = b.add(b.add(first, b.mul(length, factor[None])), b.const(offset[None]))
        lines.append(b.minimum(line, last) if g.get("in_box") else line)
    across, down = lines
    rows, columns, total = g["target_height"], g["target_width"], wide.shape[0]
    across = b.broadcast_to(b.reshape(across, shape=(total, 1, columns)), shape=(total, rows, columns))
    down = b.broadcast_to(b.reshape(down, shape=(total, rows, 1)), shape=(total, rows, columns))
    grid = b.stack(b.sub(b.mul(across, 2 / max(w - 1, 1)), 1.0), b.sub(b.mul(down, 2 / max(h - 1, 1)), 1.0), axis=3)
    y = b.grid_sample(wide, grid, mode="bilinear", padding_mode="border", align_corners=True)
    inside = b.logical_and(
        b.logical_and(b.greater_equal(across, 0.0), b.less_equal(across, float(w - 1))),
        b.logical_and(b.greater_equal(down, 0.0), b.less_equal(down, float(h - 1))),
    )
    y = b.select(b.expand_dims(inside, axes=(1,)), y, b.const(np.array(g["pad_value"], np.float32)))
    y = cast(b, y, x.dtype)
    if not with_roi:
        return y
    return b.reshape(y, shape=(count, 1 if numbers == 5 else images, *y.shape[1:]))


def _of_length(out: int, mode: str) -> tuple[Array, Array]:
    """Returns factor and offset: the positions in a box are length * factor + offset."""
    zero, one, two = (_within(float(n), out, mode) for n in (2.0, 3.0, 4.0))
    factor = one - zero if mode != "OFFSET_CORNERS" else zero / 2
    assert np.allclose(two - one, factor)
    return factor.astype(np.float32), (zero - 2 * factor).astype(np.float32)


def _corners(box: Any, g: dict[str, Any], h: int, w: int, b: Any = None) -> Any:
    """Returns top, left, bottom and right in pixels: numbers, or values if `b` is given."""
    add, mul = (operator.add, operator.mul) if b is None else (b.add, b.mul)
    mode = g["box_coordinate_mode"]
    if mode in ("CORNERS_HEIGHT_FIRST", "CONRNERS_HEIGHT_FIRST"):  # early converters misspell the mode
        top, left, bottom, right = box
    elif mode == "CORNERS_WIDTH_FIRST":
        left, top, right, bottom = box
    elif mode in ("CENTER_SIZE_HEIGHT_FIRST", "CENTER_SIZE_WIDTH_FIRST"):
        y, x, height, width = box if mode == "CENTER_SIZE_HEIGHT_FIRST" else (box[1], box[0], box[3], box[2])
        top, bottom = add(y, mul(height, -0.5)), add(y, mul(height, 0.5))
        left, right = add(x, mul(width, -0.5)), add(x, mul(width, 0.5))
    else:
        raise Error(f"box_coordinate_mode: got {mode!r}, need corners or centres, height or width first")
    if g["normalized_coordinates"]:
        top, bottom = mul(top, float(h - 1)), mul(bottom, float(h - 1))
        left, right = mul(left, float(w - 1)), mul(right, float(w - 1))
    scale = float(g["spatial_scale"])
    return tuple(mul(v, scale) for v in (top, left, bottom, right)) if scale != 1 else (top, left, bottom, right)


def _cropped(c: Context, x: Value, corners: tuple[float, float, float, float], g: dict[str, Any]) -> Value:
    top, left, bottom, right = corners
    y = x
    inside: list[Array] = []
    for axis, first, last, out in ((2, top, bottom, g["target_height"]), (3, left, right, g["target_width"])):
        extent = x.shape[axis]
        grid = first + _within(last - first, out, g["sampling_mode"])
        grid = np.minimum(grid, last) if g.get("in_box") else grid
        inside.append((grid >= 0) & (grid <= extent - 1))
        y = _along(c, y, axis, grid)
    stays = inside[0][:, None] & inside[1][None, :]
    if stays.all():
        return y
    return c.b.select(c.b.const(stays), y, c.b.const(np.array(g["pad_value"], x.dtype.numpy)))


def _within(length: float, out: int, mode: str) -> Array:
    """Returns the output positions in a box. length: the distance between its first and its last pixel."""
    i = np.arange(out, dtype=np.float64)
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if out == 1:
            return np.array([length / 2 if mode == "ALIGN_CORNERS" else 0.0])
        return i * length / (out - 1)
    if mode == "DEFAULT":
        return i * (length + 1) / out
    if mode == "OFFSET_CORNERS":
        return (i + 0.5) * max(1.0, length) / out
    if mode == "UNALIGN_CORNERS":
        return (i + 0.5) * (length + 1) / out - 0.5
    raise Error(f"sampling_mode: got {mode!r}, need one of {', '.join(MODES)}")


# ---- sampling at coordinates ----

_PADDING = {"constant": "zeros", "border": "border", "reflection": "reflection", "symmetric": "reflection"}


@reads(
    "resample x coordinates sampling_mode:str padding_mode:str padding_value:float=0.0 coordinates_mode:str"
    " align_corners:bool"
)
def resample(
    c: Context, _: Any, /, x: Value, coordinates: Value, sampling_mode: str, padding_mode: str, padding_value: float,
    coordinates_mode: str, align_corners: bool,
) -> Value:  # fmt: skip
    grid = _centred(c, x, coordinates, coordinates_mode, align_corners)
    return _sampled(c, x, grid, sampling_mode, padding_mode, padding_value, align_corners)


def _centred(c: Context, x: Value, coordinates: Value, mode: str, align_corners: bool) -> Value:
    """Returns coordinates scaled to -1 to 1."""
    b, places = c.b, cast(c.b, coordinates, FP32)
    sizes = np.array([x.shape[-1], x.shape[-2]], np.float32)
    if mode == "normalized_minus_one_to_one":
        return places
    if mode == "normalized_zero_to_one":
        return b.sub(b.mul(places, 2.0), 1.0)
    if mode != "unnormalized":
        raise Error(
            f"coordinates_mode: got {mode!r}, need normalized_minus_one_to_one, normalized_zero_to_one or unnormalized"
        )
    if align_corners:
        return b.sub(b.mul(places, 2 / np.maximum(sizes - 1, 1)), 1.0)
    return b.sub(b.mul(b.add(b.mul(places, 2.0), 1.0), 1 / sizes), 1.0)


def _sampled(
    c: Context, x: Value, grid: Value, sampling: str, padding: str, value: float, align_corners: bool
) -> Value:
    b = c.b
    if sampling not in ("bilinear", "nearest") or padding not in _PADDING:
        raise Error(
            f"got {sampling} and {padding}, need bilinear or nearest, and constant, border, reflection or symmetric"
        )
    if _PADDING[padding] == "reflection" and (padding == "reflection") != align_corners:
        raise Error(f"got {padding} with align_corners {align_corners}, need reflection with it, or symmetric without")
    wide = cast(b, x, FP32)
    shifted = b.sub(wide, value) if value and padding == "constant" else wide
    mode = _PADDING[padding]
    if sampling == "nearest" and mode == "reflection":  # reflection precedes rounding
        grid, mode = _reflected(b, x, grid, align_corners), "border"
    y = b.grid_sample(shifted, grid, mode=sampling, padding_mode=mode, align_corners=align_corners)
    y = b.add(y, value) if value and padding == "constant" else y
    return cast(b, y, x.dtype)


def _reflected(b: Builder, x: Value, grid: Value, align_corners: bool) -> Value:
    """Reflects coordinates at the edges into the range -1 to 1."""
    sizes = np.array([x.shape[-1], x.shape[-2]], np.float32)
    edge = np.ones(2, np.float32)  # edge of the image, or centres of its outermost pixels, in units of half an image
    if align_corners:
        edge = np.where(sizes > 1, edge, 0).astype(np.float32)
    beyond = b.mod(b.add(b.sub(grid, 1.0), 2 * edge), np.maximum(4 * edge, 1e-6).astype(np.float32))
    return b.sub(b.minimum(beyond, b.sub(b.const(4 * edge), beyond)), 1.0)


@reads(
    "affine x transform_matrix output_height:int output_width:int sampling_mode:str padding_mode:str"
    " padding_value:float=0.0 coordinates_mode:str align_corners:bool"
)
def affine(
    c: Context, _: Any, /, x: Value, transform_matrix: Value, output_height: int, output_width: int,
    sampling_mode: str, padding_mode: str, padding_value: float, coordinates_mode: str, align_corners: bool,
) -> Value:  # fmt: skip
    """Transforms images by a matrix. An output at (x, y) samples the input at the matrix times (x, y, 1)."""
    b = c.b
    lines = []
    for out in (output_width, output_height):
        i = np.arange(out, dtype=np.float64)
        if coordinates_mode == "unnormalized":
            lines.append(i)
            continue
        place = (2 * i / max(out - 1, 1) - 1) if align_corners else ((2 * i + 1) / out - 1)
        lines.append(place if coordinates_mode == "normalized_minus_one_to_one" else (place + 1) / 2)
    across, down = np.meshgrid(*lines)
    points = np.stack([across, down, np.ones_like(across)], -1).reshape(-1, 3).astype(np.float32)
    rows = b.reshape(cast(b, transform_matrix, FP32), shape=(transform_matrix.shape[0], 2, 3))
    mapped = b.matmul(b.const(np.ascontiguousarray(points)), b.transpose(rows, perm=(0, 2, 1)))
    grid = b.reshape(mapped, shape=(mapped.shape[0], output_height, output_width, 2))
    if grid.shape[0] != x.shape[0]:
        grid = b.broadcast_to(grid, shape=(x.shape[0], *grid.shape[1:]))
    centred = _centred(c, x, grid, coordinates_mode, align_corners)
    return _sampled(c, x, centred, sampling_mode, padding_mode, padding_value, align_corners)
