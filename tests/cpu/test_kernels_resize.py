"""resize_nearest and resize_linear against NumPy, with the coordinates of every mode of ONNX Resize."""

from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, run, run_every_cut, same_bits

ROUND: dict[str, Any] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
}


def line(transformation: str, size: int, out: int) -> tuple[int, int, int]:
    """(scale, offset, unit) of the source coordinate (i * scale + offset) / unit."""
    if transformation == "asymmetric":
        return size, 0, out
    if transformation == "align_corners":
        return (size - 1, 0, out - 1) if out > 1 else (0, 0, 1)
    if transformation == "pytorch_half_pixel" and out == 1:
        return 0, 0, 1
    return 2 * size, size - out, 2 * out  # half_pixel


TRANSFORMATIONS = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]


def attributes(x: Array, height: int, width: int, transformation: str, **more: Any) -> dict[str, Any]:
    h, w = line(transformation, x.shape[-3], height), line(transformation, x.shape[-2], width)
    named = zip(("scale", "offset", "unit"), h, w, strict=True)
    return {f"{name}_{axis}": v for name, *both in named for axis, v in zip("hw", both, strict=True)} | more


def exact_sources(transformation: str, size: int, out: int) -> Array:
    """Source coordinates in units of 1 / (2 * out). They are whole numbers, except for align_corners."""
    i = np.arange(out)
    if transformation == "asymmetric":
        return i * size / out
    if transformation == "align_corners":
        return i * (size - 1) / max(out - 1, 1)
    if transformation == "pytorch_half_pixel" and out == 1:
        return i * 0.0
    return ((2 * i + 1) * size - out) / (2 * out)


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", list(ROUND))
@pytest.mark.parametrize(("height", "width"), [(10, 14), (15, 21), (5, 7), (3, 4), (1, 1), (8, 20)])
def test_nearest_reads_the_nearest(transformation: str, mode: str, height: int, width: int) -> None:
    x = np.random.default_rng(18).standard_normal((2, 5, 7, 3)).astype(np.float32)
    rows, columns = (
        np.clip(ROUND[mode](exact_sources(transformation, size, out)), 0, size - 1).astype(int)
        for size, out in ((5, height), (7, width))
    )
    out = poisoned((2, height, width, 3), x.dtype)
    run_every_cut("resize_nearest", [x], [out], **attributes(x, height, width, transformation, mode=mode))
    assert same_bits(out, x[:, rows][:, :, columns])


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
@pytest.mark.parametrize("channels", [1, 3, 16, 65])
def test_nearest_doubles_an_image_to_the_bit(dtype: str, channels: int) -> None:
    x = np.random.default_rng(19).integers(-100, 100, (1, 6, 9, channels)).astype(dtype)
    wanted = x.repeat(2, axis=1).repeat(2, axis=2)
    for transformation, mode in (("half_pixel", "round_prefer_floor"), ("asymmetric", "floor")):
        out = poisoned(wanted.shape, dtype)
        run_every_cut("resize_nearest", [x], [out], **attributes(x, 12, 18, transformation, mode=mode))
        assert same_bits(out, wanted)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
@pytest.mark.parametrize(
    ("scale", "offset", "unit"),
    [(1, 0, 1), (1, 0, 2), (4, 3, 10), (19, 0, 10), (3, 1, 1), (-1, 39, 1), (-1, 40, 2), (0, 7, 1)],
)
@pytest.mark.parametrize(("width", "out_width"), [(40, 80), (37, 65), (16, 16), (17, 19), (9, 33), (65, 7), (1, 20)])
def test_nearest_of_one_channel_reads_the_nearest(
    dtype: str, scale: int, offset: int, unit: int, width: int, out_width: int
) -> None:
    """Dense rows, rows with gaps, and pixels with gaps."""
    x = np.random.default_rng(24).integers(-100, 100, (3, 5, 2 * width, 1)).astype(dtype)
    attrs = {"scale_h": 1, "offset_h": 0, "unit_h": 2, "scale_w": scale, "offset_w": offset, "unit_w": unit,
             "mode": "floor"}  # fmt: skip
    columns = np.clip((np.arange(out_width) * scale + offset) // unit, 0, width - 1)
    for image in (np.ascontiguousarray(x[:, :, :width]), x[:, :, :width], x[:, :, ::2]):
        wanted = image.repeat(2, axis=1)[:, :, columns]
        for out in (poisoned(wanted.shape, dtype), poisoned((3, 10, out_width + 3, 1), dtype)[:, :, :-3]):
            run_every_cut("resize_nearest", [image], [out], **attrs)
            assert np.array_equal(out, wanted)


def test_nearest_is_exact_where_no_float_is() -> None:
    """Coordinates a hair before an element, with numbers of 62 bits."""
    x, out = np.arange(8, dtype=np.int32).reshape(1, 8, 1), np.empty((1, 4, 1), np.int32)
    unit = 2**62
    attrs = {"scale_h": 0, "offset_h": 0, "unit_h": 1, "scale_w": unit, "unit_w": unit}
    for offset, mode, wanted in [
        (-1, "floor", [0, 0, 1, 2]), (1, "ceil", [1, 2, 3, 4]), (unit // 2 - 1, "round_prefer_ceil", [0, 1, 2, 3]),
        (unit // 2, "round_prefer_ceil", [1, 2, 3, 4]), (unit // 2, "round_prefer_floor", [0, 1, 2, 3]),
        (unit // 2 + 1, "round_prefer_floor", [1, 2, 3, 4]),
    ]:  # fmt: skip
        run("resize_nearest", [x], [out], {**attrs, "offset_w": offset, "mode": mode})
        assert out.ravel().tolist() == wanted


def linear(x: Array, axis: int, out: int, transformation: str) -> Array:
    at = np.clip(exact_sources(transformation, x.shape[axis], out), 0, x.shape[axis] - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    weight = (at - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return np.take(x, low, axis) * (1 - weight) + np.take(x, high, axis) * weight


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize(("height", "width"), [(10, 14), (15, 21), (5, 7), (3, 4), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3, 17, 32])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_linear_interpolates(transformation: str, height: int, width: int, channels: int, dtype: str) -> None:
    x = np.random.default_rng(20).standard_normal((2, 5, 7, channels)).astype(dtype)
    exact = linear(linear(x.astype(np.float64), 1, height, transformation), 2, width, transformation)
    out = poisoned(exact.shape, dtype)
    run_every_cut("resize_linear", [x], [out], **attributes(x, height, width, transformation))
    if dtype == "float16":
        assert (np.abs(out - exact) <= np.spacing(np.maximum(np.abs(exact), 2e-3).astype(dtype))).all()
    else:
        assert np.abs(out - exact).max() <= 1e-6 * np.abs(exact).max()


def test_linear_is_exact_on_whole_coordinates() -> None:
    x = np.random.default_rng(21).standard_normal((1, 4, 6, 5)).astype(np.float32)
    out = poisoned((1, 7, 11, 5), x.dtype)
    run_every_cut("resize_linear", [x], [out], **attributes(x, 7, 11, "align_corners"))
    assert same_bits(np.ascontiguousarray(out[:, ::2, ::2]), x)


@pytest.mark.parametrize("kernel", ["resize_nearest", "resize_linear"])
def test_resizing_takes_sequences_and_strided_rows(kernel: str) -> None:
    image = np.random.default_rng(22).standard_normal((2, 8, 9, 40)).astype(np.float32)[:, 1:, 1:, 2:37]
    more = {"mode": "floor"} if kernel == "resize_nearest" else {}
    out, dense = poisoned((2, 3, 17, 35), np.float32), poisoned((2, 3, 17, 35), np.float32)
    run_every_cut(kernel, [image], [out], **attributes(image, 3, 17, "half_pixel", **more))
    run(kernel, [image.copy()], [dense], attributes(image, 3, 17, "half_pixel", **more))
    assert same_bits(out, dense)
    row, row_out = image[:, :1], poisoned((2, 1, 17, 35), np.float32)
    attrs = attributes(row, 1, 17, "half_pixel", **more)
    run(kernel, [row], [row_out], attrs)
    sequence = poisoned((2, 17, 35), np.float32)
    run_every_cut(kernel, [row[:, 0]], [sequence], **attrs)
    assert same_bits(sequence, row_out[:, 0])


def test_resizing_refuses_what_does_not_fit() -> None:
    x, out = np.zeros((1, 4, 4, 3), np.float32), np.zeros((1, 8, 8, 3), np.float32)
    good = attributes(x, 8, 8, "asymmetric", mode="floor")
    run("resize_nearest", [x], [out], good)
    for change, message in [({"scale_h": 2**62 + 1}, "scale"), ({"unit_w": 0}, "unit"), ({"mode": "up"}, "mode")]:
        with pytest.raises(Error, match=message):
            run("resize_nearest", [x], [out], {**good, **change})
    lines = attributes(x, 8, 8, "asymmetric")
    for change in ({"scale_h": np.nan}, {"offset_w": np.inf}, {"unit_h": -1.0}, {"unit_w": np.nan}):
        with pytest.raises(Error, match="scale, offset and unit"):
            run("resize_linear", [x], [out], {**lines, **change})
    with pytest.raises(Error, match="channels"):
        run("resize_nearest", [x], [np.zeros((1, 8, 8, 4), np.float32)], good)
    with pytest.raises(Error, match="rank"):
        run("resize_nearest", [x[0, 0]], [out[0, 0]], good)
    with pytest.raises(Error, match="channel stride"):
        run("resize_nearest", [x.transpose(0, 1, 3, 2)], [np.zeros((1, 8, 8, 4), np.float32)], good)
    with pytest.raises(Error, match="no elements"):
        run("resize_nearest", [x[:, :0]], [out], good)
    for coordinate in (2**62, -(2**62)):
        run("resize_nearest", [x], [out], {**good, "offset_h": coordinate, "scale_w": coordinate})
    for coordinate in (1e300, -1e300):
        run("resize_linear", [x], [out], {**lines, "offset_h": coordinate, "scale_w": coordinate})
