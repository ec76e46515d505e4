"""Comparisons, truths, choices, casts and indices of the C99 runtime, with the host's bits; powers within rounding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_c99_kernels import Array, assert_same_bits, assert_within_ulp, both

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
    from hexane.errors import Error
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
