"""Reductions, argmax, cumsum and softmax against NumPy: floats in fp64 rounded once, integers bit for bit."""

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, run, run_every_cut, same_bits

SEED = 23
FLOATS = ["float32", "float16"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int64"]


def log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis)


REDUCE: dict[str, Callable[..., Array]] = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": lambda x, **k: np.max(x, initial=-np.inf, **k),
    "reduce_min": lambda x, **k: np.min(x, initial=np.inf, **k),
    "reduce_prod": np.prod,
    "reduce_sum_square": lambda x, **k: np.sum(x * x, **k),
    "reduce_l1_norm": lambda x, **k: np.sum(np.abs(x), **k),
    "reduce_l2_norm": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "reduce_log_sum": lambda x, **k: np.log(np.sum(x, **k)),
    "reduce_log_sum_exp": lambda x, axis, keepdims: log_sum_exp(x, axis, keepdims),
}
REDUCTIONS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((17,), (0,)),
    ((1000,), (0,)),
    ((5, 63), (1,)),
    ((5, 63), (0,)),
    ((300, 65), (0,)),
    ((3, 1), (1,)),
    ((3, 1), (0,)),
    ((1, 7, 7, 130), (1, 2)),
    ((2, 6, 5, 4), (2, 3)),
    ((2, 6, 5, 4), (0, 2)),
    ((2, 6, 5, 4), (1, 3)),
    ((2, 6, 5, 4), (-1, 0)),
    ((2, 6, 5, 4), (0, 1, 2, 3)),
    ((2, 3, 4), ()),
    ((), ()),
    ((4, 0), (0,)),
    ((0, 4), (1,)),
]


def some_floats(shape: tuple[int, ...], dtype: str, low: float = -2) -> Array:
    print("seed", SEED)
    return np.asarray(np.random.default_rng(SEED).uniform(low, 2, shape)).astype(dtype)


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], keep_dims: bool) -> tuple[int, ...]:
    found = {a % len(shape) for a in axes} or set(range(len(shape)))
    return tuple(1 if i in found else d for i, d in enumerate(shape) if keep_dims or i not in found)


def all_axes(x: Array, axes: tuple[int, ...]) -> tuple[int, ...]:
    return axes or tuple(range(x.ndim))


def assert_close(got: Array, exact: Array, scale: Array | float = 0) -> None:
    """Within 1e-6 of `exact`, or of the sum of magnitudes `scale` where terms cancel; fp16 within an ulp of the
    rounding."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounded = exact.astype(got.dtype)
        bound = 1e-6 * np.maximum(np.abs(exact), scale)
        if got.dtype == np.float16:
            bound = bound + 1.01 * np.spacing(np.abs(rounded)).astype(np.float64)
        good = (np.abs(got.astype(np.float64) - exact) <= bound) | (got == rounded) | (np.isnan(got) & np.isnan(exact))
    assert good.all(), f"{(~good).sum()} of {good.size}: got {got[~good][:5]}, need {exact[~good][:5]}"


@pytest.mark.parametrize("keep_dims", [True, False])
@pytest.mark.parametrize(("shape", "axes"), REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", REDUCE)
def test_reductions(name: str, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...], keep_dims: bool) -> None:
    x = some_floats(shape, dtype, 0.5 if name in {"reduce_log_sum", "reduce_prod"} else -2)
    if name == "reduce_prod":
        x = np.asarray(x / 2 + 0.5).astype(dtype)
    out = poisoned(reduced(shape, axes, keep_dims), dtype)
    run_every_cut(name, [x], [out], axes=axes, keep_dims=keep_dims)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = np.asarray(REDUCE[name](wide, axis=all_axes(x, axes), keepdims=keep_dims))
        terms = np.asarray(np.sum(np.abs(wide), axis=all_axes(x, axes), keepdims=keep_dims))
    if name == "reduce_mean":
        terms = terms / max(1, x.size // max(1, out.size))
    assert_close(out, exact, 5 if name.startswith("reduce_log") else terms if name != "reduce_prod" else 10 * exact)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["reduce_sum", "reduce_max", "reduce_log_sum_exp"])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2)])
def test_reductions_read_any_strides(name: str, dtype: str, axes: tuple[int, ...]) -> None:
    x = some_floats((6, 40, 9), dtype)[::2, ::3].transpose(2, 0, 1)
    out, dense = poisoned(reduced(x.shape, axes, True), dtype), poisoned(reduced(x.shape, axes, True), dtype)
    run_every_cut(name, [x], [out], axes=axes, keep_dims=True)
    run(name, [np.ascontiguousarray(x)], [dense], {"axes": axes, "keep_dims": True})
    assert_close(out, dense.astype(np.float64), 20)


def test_long_sums_keep_their_digits() -> None:
    x = some_floats((3, 1_000_003), "float32", 0)
    for axes, array in [((1,), x), ((0,), np.ascontiguousarray(x.T))]:
        out = poisoned((3,), "float32")
        run("reduce_sum", [array], [out], {"axes": axes, "keep_dims": False})
        assert np.allclose(out, x.astype(np.float64).sum(1), rtol=1e-6, atol=0)


def in_levels(rows: Array) -> Array:
    """Sums of the columns in fp32: of 128 rows, of 128 such sums, and of those."""
    part, middle, total = (np.zeros(rows.shape[1], np.float32) for _ in range(3))
    for i, row in enumerate(rows.astype(np.float32), 1):
        part += row
        if i % 128 == 0:
            middle, part = middle + part, np.zeros_like(part)
        if i % 128**2 == 0:
            total, middle = total + middle, np.zeros_like(middle)
    return total + (middle + part)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [5, 16, 64, 70])
@pytest.mark.parametrize("count", [127, 128, 129, 300, 128**2 - 1, 128**2, 128**2 + 130])
def test_columns_are_summed_in_levels_of_128(count: int, columns: int, dtype: str) -> None:
    x, out = some_floats((count, columns), dtype), poisoned((columns,), dtype)
    run("reduce_sum", [x], [out], {"axes": (0,), "keep_dims": False})
    assert same_bits(out, in_levels(x).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [63, 8191, 8192, 8193, 8256, 20011])
def test_each_number_of_a_long_row_counts_once(count: int, dtype: str) -> None:
    """Rows of whole levels and others, strided ones too: sums of small integers are exact, and a maximum is found
    wherever it is."""
    rng = np.random.default_rng(SEED)
    rows = rng.integers(-2, 3, (4, count)).astype(dtype)
    for x in (rows, np.asfortranarray(rows)):
        out = poisoned((4,), dtype)
        run("reduce_sum", [x], [out], {"axes": (1,), "keep_dims": False})
        assert same_bits(out, rows.astype(np.float64).sum(1).astype(dtype))
    for place in (*range(0, count, count // 7), count - 1):
        x, out = np.full((1, count), -1, dtype), poisoned((1,), dtype)
        x[0, place] = 3
        run("reduce_max", [x], [out], {"axes": (1,), "keep_dims": False})
        assert out[0] == 3


def test_sums_of_small_integers_are_exact() -> None:
    x = np.random.default_rng(SEED).integers(-8, 9, (37, 29, 65)).astype(np.float32)
    for axis in range(3):
        out = poisoned(reduced(x.shape, (axis,), False), "float32")
        run_every_cut("reduce_sum", [x], [out], axes=(axis,), keep_dims=False)
        assert same_bits(out, x.sum(axis))


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "reduce_sum", "reduce_log_sum_exp"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_special_values(name: str, axis: int) -> None:
    x = np.zeros((70, 70), np.float32)
    x[3, 5], x[69, 69], x[10, :], x[:, 12] = np.nan, np.inf, -np.inf, -np.inf
    out = poisoned((70,), "float32")
    run(name, [x], [out], {"axes": (axis,), "keep_dims": False})
    with np.errstate(all="ignore"):
        assert_close(out, REDUCE[name](x.astype(np.float64), axis=(axis,), keepdims=False))


INTEGER_REDUCE = {"reduce_sum": np.sum, "reduce_prod": np.prod, "reduce_max": np.max, "reduce_min": np.min}


@pytest.mark.parametrize("name", INTEGER_REDUCE)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(3, 5, 17), (2, 3, 600), (600, 3, 2)])
@pytest.mark.parametrize("step", [1, 2])
def test_integer_reductions_wrap_as_in_numpy(
    name: str, dtype: str, axes: tuple[int, ...], shape: tuple[int, ...], step: int
) -> None:
    limits = np.iinfo(dtype)
    wider = (*shape[:2], shape[2] * step)
    x = np.random.default_rng(SEED).integers(limits.min, limits.max, wider, dtype, endpoint=True)[..., ::step]
    out = poisoned(reduced(x.shape, axes, False), dtype)
    run_every_cut(name, [x], [out], axes=axes, keep_dims=False)
    extra: dict[str, Any] = {"dtype": dtype} if name in {"reduce_sum", "reduce_prod"} else {}
    assert same_bits(out, np.asarray(INTEGER_REDUCE[name](x, axis=axes, **extra)))


@pytest.mark.parametrize("axis", [0, 1])
def test_an_integer_mean_is_truncated(axis: int) -> None:
    x = np.array([[1, 2], [-1, -2], [2**31 - 1, 2**31 - 1]], np.int32)
    out = poisoned((3,), "int32")
    run("reduce_mean", [x if axis else np.ascontiguousarray(x.T)], [out], {"axes": (axis,), "keep_dims": False})
    assert out.tolist() == [1, -1, 2**31 - 1]


@pytest.mark.parametrize("name", ["reduce_argmax", "reduce_argmin"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "uint64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_arg_takes_the_first_of_equals_and_the_first_nan(name: str, dtype: str, index: str, axis: int) -> None:
    x = np.random.default_rng(SEED).integers(0, 4, (5, 7, 17)).astype(dtype)
    if dtype in FLOATS:
        x[2, 3, 4:9], x[0, 0, 0] = np.nan, -np.inf
    for keep_dims in (True, False):
        out = poisoned(reduced(x.shape, (axis,), keep_dims), index)
        run_every_cut(name, [x], [out], axis=axis, keep_dims=keep_dims)
        reference = np.argmax if name == "reduce_argmax" else np.argmin
        assert np.array_equal(out, reference(x, axis=axis, keepdims=keep_dims))


@pytest.mark.parametrize("name", ["reduce_argmax", "reduce_argmin"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "uint64"])
@pytest.mark.parametrize("shape", [(31, 1), (3, 63), (3, 64), (2, 97), (2, 1000), (7, 300), (65, 17)])
def test_arg_of_long_lines_takes_the_first_of_equals_and_the_first_nan(
    name: str, dtype: str, shape: tuple[int, int]
) -> None:
    """One extreme at a time wanders through lines of equals, alone or with a later one; in floats a NaN as well."""
    extremes = [100 if name == "reduce_argmax" else -100 if not dtype.startswith("uint") else 0]
    for axis, value in product((0, 1), [*extremes, np.nan] if dtype in FLOATS else extremes):
        for at in {0, shape[axis] // 3, shape[axis] - 1}:
            x = np.full(shape, 3, dtype)
            later = np.moveaxis(x, axis, 0)
            later[at] = value
            later[(at + shape[axis]) // 2] = value
            later[-1] = np.nan if value != value else value
            out = poisoned((shape[1 - axis],), "int64")
            run_every_cut(name, [x], [out], axis=axis, keep_dims=False)
            assert (out == at).all()


def cumsum(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    y = np.flip(x, axis) if reverse else x
    total = np.cumsum(y, axis=axis, dtype=x.dtype)
    total = total - y if exclusive else total
    return np.flip(total, axis) if reverse else total


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(4, 5, 19), (3, 2, 600)])
def test_cumsum_is_exact_on_small_integers(
    dtype: str, axis: int, exclusive: bool, reverse: bool, shape: tuple[int, ...]
) -> None:
    high = 9 if shape[2] < 100 or axis in (0, 1) else 3  # fp16 is exact up to 2048
    x = np.random.default_rng(SEED).integers(0, high, shape).astype(dtype)
    out = poisoned(x.shape, dtype)
    run_every_cut("cumsum", [x], [out], axis=axis, exclusive=exclusive, reverse=reverse)
    assert np.array_equal(out, cumsum(x, axis, exclusive, reverse))


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return e / np.sum(e, axis=axis, keepdims=True)


def log_softmax(x: Array, axis: int) -> Array:
    return x - log_sum_exp(x, (axis,), True)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1,), 0),
        ((10,), -1),
        ((3, 17), 1),
        ((3, 63), 1),
        ((2, 3, 1000), 2),
        ((3, 17), 0),
        ((2, 5, 33), 1),
        ((2, 5, 3, 4), 1),
        ((1, 21, 1, 1), 1),
        ((4, 1), 1),
        ((0, 3), 1),
        ((3, 0), 1),
    ],
)
def test_softmax(name: str, dtype: str, shape: tuple[int, ...], axis: int) -> None:
    x = (some_floats(shape, dtype) * 6).astype(dtype)
    out = poisoned(shape, dtype)
    run_every_cut(name, [x], [out], axis=axis)
    wide = x.astype(np.float64)
    with np.errstate(divide="ignore"):
        exact = (softmax if name == "softmax" else log_softmax)(wide, axis)
    assert_close(out, exact, np.abs(wide) if name == "log_softmax" else 4 * exact)  # x - max is rounded before e^


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_special_values(name: str, axis: int) -> None:
    x = np.zeros((20, 20), np.float32)
    x[1, :], x[:, 2], x[3, 4], x[5, 6], x[7, 8] = -np.inf, 3e38, np.inf, np.nan, -np.inf
    x[9, :], x[:, 9] = -3e38, -3e38
    out = poisoned(x.shape, "float32")
    run(name, [x], [out], {"axis": axis})
    with np.errstate(all="ignore"):
        top = np.max(x.astype(np.float64), axis=axis, keepdims=True)
        e = np.exp(x - top)
        total = np.sum(e, axis=axis, keepdims=True)
        exact = e / total if name == "softmax" else x - top - np.log(total)
    assert_close(out, exact)


@pytest.mark.parametrize("shape", [(3, 40), (3, 7), (40, 20)])
@pytest.mark.parametrize("axis", [0, 1])
def test_log_softmax_of_what_dominates_is_the_small_rest(shape: tuple[int, int], axis: int) -> None:
    x = some_floats(shape, "float32") / 16
    x[1, :] += 16
    x[:, 2] += 32
    out = poisoned(shape, "float32")
    run("log_softmax", [x], [out], {"axis": axis})
    np.testing.assert_allclose(out, log_softmax(x.astype(np.float64), axis), rtol=3e-6, atol=1e-12)


def test_softmax_reads_rows_apart() -> None:
    x = some_floats((4, 6, 40), "float32")[:, ::2, 3:36]
    out = poisoned((4, 3, 70), "float32")[:, :, :33]
    run_every_cut("softmax", [x], [out], axis=2)
    assert_close(np.ascontiguousarray(out), softmax(x.astype(np.float64), 2))


@pytest.mark.parametrize(
    ("name", "shape", "output", "attrs"),
    [
        ("reduce_sum", (3, 4), (3, 4), {"axes": (1,), "keep_dims": False}),
        ("reduce_sum", (3, 4), (3,), {"axes": (2,), "keep_dims": False}),
        ("reduce_sum", (3, 4), (3,), {"axes": (1,), "keep_dims": True}),
        ("reduce_argmax", (3, 0), (3,), {"axis": 1, "keep_dims": False}),
        ("softmax", (3, 4), (4, 3), {"axis": 1}),
        ("softmax", (3, 4), (3, 4), {"axis": 2}),
        ("cumsum", (3, 4), (3, 4), {"axis": -3, "exclusive": False, "reverse": False}),
    ],
)
def test_shapes_and_axes_that_do_not_fit_are_refused(
    name: str, shape: tuple[int, ...], output: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    out = np.zeros(output, np.int32 if name == "reduce_argmax" else np.float32)
    with pytest.raises(Error, match=name):
        run(name, [np.zeros(shape, np.float32)], [out], attrs)
