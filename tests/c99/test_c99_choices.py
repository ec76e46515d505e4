"""Comparisons, truths, choices, casts and indices of the C99 runtime, with the host's bits; powers within rounding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_c99_kernels import Array, assert_same_bits, assert_within_ulp, both

from hexane.errors import Error
from plans import PlanBuilder

NAMES = {
    "bool": "bool", "int8": "int8", "uint8": "uint8", "int16": "int16", "uint16": "uint16", "int32": "int32",
    "uint32": "uint32", "int64": "int64", "float32": "fp32",
}  # fmt: skip
NUMBERS = [name for name in NAMES if name != "bool"]


def one_step(kernel: str, inputs: Sequence[Array], shape: Sequence[int], dtype: str, **attrs: Any) -> PlanBuilder:
    plan = PlanBuilder()
    ids = [plan.port("inputs", f"x{i}", a.shape, NAMES[a.dtype.name]) for i, a in enumerate(inputs)]
    plan.step(kernel, ids, [plan.port("outputs", "y", shape, dtype)], **attrs)
    return plan


def numbers(dtype: str, shape: Sequence[int], seed: int = 0) -> Array:
    """Of the whole range, many of them equal, with what floats have besides numbers."""
    rng = np.random.default_rng([seed, *dtype.encode()])
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == "float32":
        x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 12, shape)).astype(np.float32)
        return np.where(
            rng.random(shape) < 0.3,
            rng.choice(np.float32([0, -0.0, 1, np.inf, -np.inf, np.nan, 2.5, -128, 255]), shape),
            x,
        )
    ends = np.iinfo(dtype)
    x = rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.5, rng.integers(0, 5, shape).astype(dtype), x)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("kernel", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
def test_comparisons_have_the_hosts_truths(c99, kernel, dtype):
    a, b = numbers(dtype, (3, 1, 40)), numbers(dtype, (5, 40), 1)
    assert_same_bits(*both(one_step(kernel, [a, b], (3, 5, 40), "bool"), [a, b], c99))


@pytest.mark.parametrize("kernel", ["logical_and", "logical_or", "logical_xor", "logical_not"])
def test_truths_are_the_hosts(c99, kernel):
    fed = [numbers("bool", (3, 1, 9)), numbers("bool", (4, 9), 1)][: 1 if kernel == "logical_not" else 2]
    shape = (3, 1, 9) if len(fed) == 1 else (3, 4, 9)
    assert_same_bits(*both(one_step(kernel, fed, shape, "bool"), fed, c99))


@pytest.mark.parametrize("dtype", NAMES)
def test_select_takes_one_of_two(c99, dtype):
    fed = [numbers("bool", (4, 1, 7)), numbers(dtype, (1, 3, 7)), numbers(dtype, (), 1)]
    assert_same_bits(*both(one_step("select", fed, (4, 3, 7), NAMES[dtype]), fed, c99))


@pytest.mark.parametrize("to", NAMES)
@pytest.mark.parametrize("dtype", NAMES)
def test_casts_have_the_hosts_bits(c99, dtype, to):
    x = numbers(dtype, (200,))
    assert_same_bits(*both(one_step("cast", [x], x.shape, NAMES[to]), [x], c99))


@pytest.mark.parametrize("dtype", ["int8", "float32", "int64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize(
    ("shape", "axis", "places"), [((9, 4), 0, (3, 2)), ((2, 5, 3), 1, (4,)), ((2, 5, 3), -1, ()), ((5,), 0, (2, 2))]
)
def test_gather_has_the_hosts_bits(c99, dtype, index, shape, axis, places):
    x = numbers(dtype, shape)
    at = np.random.default_rng(3).integers(-shape[axis], shape[axis], places).astype(index)
    axis %= len(shape)
    plan = one_step("gather", [x, at], (*shape[:axis], *places, *shape[axis + 1 :]), NAMES[dtype], axis=axis)
    assert_same_bits(*both(plan, [x, at], c99))


@pytest.mark.parametrize(
    ("shape", "axis", "places"), [((9, 4), 0, (3, 2)), ((2, 5, 3), 1, (2, 7, 3)), ((4, 6), -1, (3, 9))]
)
def test_gather_along_an_axis_has_the_hosts_bits(c99, shape, axis, places):
    x = numbers("float32", shape)
    at = np.random.default_rng(4).integers(-shape[axis], shape[axis], places).astype(np.int64)
    assert_same_bits(*both(one_step("gather_along_axis", [x, at], places, "fp32", axis=axis), [x, at], c99))


@pytest.mark.parametrize("kernel", ["gather", "gather_along_axis"])
@pytest.mark.parametrize("index", [5, -6, 1 << 40, -(1 << 62)])
def test_an_index_outside_of_its_axis_ends_the_run(c99, kernel, index):
    from hexane.runtime.c99 import C99Model

    x, at = numbers("float32", (5,)), np.int64([1, index])
    model = C99Model(bytes(one_step(kernel, [x, at], (2,), "fp32", axis=0).tobytes()), c99)
    with pytest.raises(Error, match="index"):
        model({"x0": x, "x1": at})
    assert (model({"x0": x, "x1": np.int64([1, 4])})["y"].tobytes()) == x[[1, 4]].tobytes()


@pytest.mark.parametrize("axes", [(), (0,), (1, -1), (0, 1, 2)])
def test_reverse_has_the_hosts_bits(c99, axes):
    x = numbers("int16", (3, 4, 5))
    assert_same_bits(*both(one_step("reverse", [x], x.shape, "int16", axes=axes), [x], c99))


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int32"])
@pytest.mark.parametrize("kernel", ["reduce_argmax", "reduce_argmin"])
@pytest.mark.parametrize(("axis", "keep"), [(0, 0), (1, 1), (-1, 0)])
@pytest.mark.parametrize("to", ["int32", "int64"])
def test_the_place_of_the_largest_is_the_hosts(c99, kernel, dtype, axis, keep, to):
    x = numbers(dtype, (6, 7, 5))
    kept = tuple(1 if i == axis % 3 else n for i, n in enumerate(x.shape) if keep or i != axis % 3)
    assert_same_bits(*both(one_step(kernel, [x], kept, to, axis=axis, keep_dims=keep), [x], c99))


def test_powers_are_the_hosts_within_rounding(c99):
    special = np.float32([0, -0.0, 1, -1, 2, -2, 3, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, 7, -7, 16777216])
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    rng = np.random.default_rng(8)
    x = np.concatenate([x, np.exp(rng.uniform(-40, 40, 20000)).astype(np.float32)])
    y = np.concatenate([y, rng.uniform(-8, 8, 20000).astype(np.float32)])
    assert_within_ulp(*both(one_step("pow", [x, y], x.shape, "fp32"), [x, y], c99))


def test_the_gelu_of_tanh_is_the_hosts_within_rounding(c99):
    x = np.concatenate([np.linspace(-15, 15, 30001), [0.0, -0.0, 1e-30, np.inf, -np.inf, np.nan, 3e38]]).astype(
        np.float32
    )
    got, need = both(one_step("gelu_tanh", [x], x.shape, "fp32"), [x], c99)
    assert np.array_equal(np.isnan(got), np.isnan(need))
    known = ~np.isnan(need) & (np.abs(need) > 1e-30)
    assert_within_ulp(got[known], need[known])
    tiny = ~np.isnan(need) & ~known
    assert np.abs(got[tiny] - need[tiny]).max(initial=0) < 1e-30


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "int64"])
@pytest.mark.parametrize(
    ("shape", "places", "batch"), [((4, 5, 6), (3, 2), 0), ((4, 5, 6), (4, 7, 1), 1), ((5,), (1,), 0)]
)
def test_gather_nd_has_the_hosts_bits(c99, shape, places, batch, dtype, index):
    data = numbers(dtype, shape)
    count = places[-1]
    at = np.stack(
        [np.random.default_rng(i).integers(-n, n, places[:-1]) for i, n in enumerate(shape[batch:][:count])], -1
    )
    out = (*places[:-1], *shape[batch + count :])
    fed = [data, at.astype(index)]
    assert_same_bits(*both(one_step("gather_nd", fed, out, NAMES[dtype], batch_dims=batch), fed, c99))


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [("int8", "update"), ("float32", "update"), *((d, m) for d in ("float32", "int32", "int64") for m in ("add", "mul", "max", "min"))],
)  # fmt: skip
def test_scatters_have_the_hosts_bits(c99, dtype, mode, index):
    """Some indices come more than once."""
    rng = np.random.default_rng(7)
    data, updates = numbers(dtype, (4, 5, 6)), numbers(dtype, (9, 6), 1)
    at = np.stack([rng.integers(-4, 4, 9), rng.integers(-5, 5, 9)], -1).astype(index)
    fed = [data, at, updates]
    got, need = both(one_step("scatter_nd", fed, (4, 5, 6), NAMES[dtype], mode=mode), fed, c99)
    assert np.array_equal(got, need, equal_nan=dtype == "float32")
    fed = [data, rng.integers(-5, 5, (3, 8, 6)).astype(index), numbers(dtype, (3, 8, 6), 2)]
    got, need = both(one_step("scatter_along_axis", fed, (4, 5, 6), NAMES[dtype], axis=1, mode=mode), fed, c99)
    assert np.array_equal(got, need, equal_nan=dtype == "float32")


@pytest.mark.parametrize(("kernel", "shape"), [("gather_nd", (2,)), ("scatter_nd", (4,)), ("scatter_along_axis", (4,))])
def test_a_coordinate_outside_of_its_axis_ends_the_run(c99, kernel, shape):
    at = np.array([[1], [1 << 40]] if "nd" in kernel else [1, -(1 << 40)])
    fed = [numbers("float32", (4,)), at, numbers("float32", (2,))][: 2 if kernel == "gather_nd" else 3]
    attrs = {"gather_nd": {"batch_dims": 0}, "scatter_nd": {"mode": "add"}}.get(kernel, {"axis": 0, "mode": "add"})
    with pytest.raises(Error, match="index"):
        both(one_step(kernel, fed, shape, "fp32", **attrs), fed, c99)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize(("axis", "on", "off"), [(-1, 1, 0), (0, 5, -2), (1, 2.5, 0.5)])
def test_one_hot_has_the_hosts_bits(c99, axis, on, off, index):
    """An index beyond the depth sets nothing."""
    at = np.random.default_rng(2).integers(-9, 9, (3, 5)).astype(index)
    shape = list(at.shape)
    shape.insert(axis % 3, 6)
    for dtype in ("fp32", "int32", "int64") if on != 2.5 else ("fp32",):
        plan = one_step("one_hot", [at], shape, dtype, axis=axis, depth=6, on=on, off=off)
        assert_same_bits(*both(plan, [at], c99))


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
@pytest.mark.parametrize(("axis", "descending"), [(-1, 0), (0, 1), (1, 1)])
def test_argsort_has_the_hosts_bits(c99, dtype, axis, descending, index):
    x = numbers(dtype, (7, 9, 33))
    plan = one_step("argsort", [x], x.shape, index, axis=axis, descending=descending)
    assert_same_bits(*both(plan, [x], c99))


@pytest.mark.parametrize("shape", [(1, 5, 7, 3), (2, 4, 9, 8), (1, 6, 5)])
@pytest.mark.parametrize(("scale", "offset"), [(0.5, -0.25), (1 / 3, 0.0), (1.75, 0.375)])
def test_linear_resizes_are_near_the_hosts(c99, shape, scale, offset):
    x = np.random.default_rng(4).uniform(0, 255, shape).astype(np.float32)
    out = (shape[0], *(max(1, int(n / scale)) for n in shape[1:-1]), shape[-1])
    attrs = {
        f"{what}_{axis}": value for axis in "hw" for what, value in (("scale", scale), ("offset", offset), ("unit", 1))
    }
    assert_within_ulp(*both(one_step("resize_linear", [x], out, "fp32", **attrs), [x], c99))
