"""topk and argsort against NumPy's stable sort."""

from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, run, run_every_cut, same_bits

DTYPES = ["float64", "float32", "float16", "int32", "int64", "uint64"]


def with_ties(shape: Any, dtype: str) -> Array:
    x = np.random.default_rng(23).integers(-5, 5, shape).astype(dtype)
    if x.dtype.kind == "f":
        x.flat[::7] = np.nan
        x.flat[3::11] = -0.0
        x.flat[1::13] = np.inf
        x.flat[2::17] = -np.inf
    return x


def order(x: Array, axis: int, descending: bool) -> Array:
    """Stable order along the axis, NaN above everything, the lower index first in ties."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    last = x.shape[axis] - 1
    return np.flip(last - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_argsort_is_stable(dtype: str, descending: bool, axis: int, index_dtype: str) -> None:
    x = with_ties((5, 17, 33), dtype)
    out = poisoned(x.shape, index_dtype)
    run_every_cut("argsort", [x], [out], axis=axis, descending=descending)
    assert same_bits(out, order(x, axis, descending).astype(index_dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("axis", "k"), [(0, 1), (1, 4), (-1, 0), (-1, 1), (2, 3), (2, 33)])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_topk_takes_the_first_of_the_order(dtype: str, largest: bool, axis: int, k: int, index_dtype: str) -> None:
    x = with_ties((5, 17, 33), dtype)
    at = np.take(order(x, axis, largest), np.arange(k), axis)
    values, indices = poisoned(at.shape, dtype), poisoned(at.shape, index_dtype)
    run_every_cut("topk", [x], [values, indices], axis=axis, largest=largest, sorted=True)
    assert same_bits(indices, at.astype(index_dtype))
    assert same_bits(values, np.take_along_axis(x, at, axis))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("k", [1, 5, 32, 33, 110])
@pytest.mark.parametrize("low", [-5, -10000])
def test_topk_of_long_lanes_keeps_the_best(dtype: str, largest: bool, k: int, low: int) -> None:
    x = np.random.default_rng(29).integers(low, -low, (5, 1000)).astype(dtype)
    if x.dtype.kind == "f":
        x[1, 500:503], x[2, -1], x[3, ::7] = np.nan, np.nan, np.nan
        x[3, 1::5], x[4] = -np.inf, np.sort(x[4])
    at = order(x, 1, largest)[:, :k]
    for source in (x, np.repeat(x, 2, 1)[:, ::2]):
        values, indices = poisoned(at.shape, dtype), poisoned(at.shape, np.int64)
        run_every_cut("topk", [source], [values, indices], axis=1, largest=largest, sorted=True)
        assert same_bits(indices, at)
        assert same_bits(values, np.take_along_axis(x, at, 1))


def test_sorts_take_strided_operands() -> None:
    x = with_ties((34, 10), "float32")[::2].T
    values = poisoned((3, 10), "float32").T
    indices = poisoned((3, 10), "int64").T
    run_every_cut("topk", [x], [values, indices], axis=1, largest=True, sorted=True)
    assert (indices == order(x, 1, True)[:, :3]).all()


def test_sorts_order_the_extremes_of_integers() -> None:
    x = np.array([0, 2**63 - 1, -(2**63), -1, 1])
    out = poisoned(x.shape, np.int64)
    run_every_cut("argsort", [x], [out], axis=0, descending=False)
    assert out.tolist() == [2, 3, 0, 4, 1]


def test_sorts_refuse_what_does_not_fit() -> None:
    x = np.zeros((4, 5), np.float32)
    with pytest.raises(Error, match="axis"):
        run("argsort", [x], [np.zeros((4, 5), np.int64)], {"axis": 2, "descending": 0})
    with pytest.raises(Error, match="output"):
        run("argsort", [x], [np.zeros((4, 4), np.int64)], {"axis": 1, "descending": 0})
    good = {"axis": 1, "largest": 1, "sorted": 1}
    with pytest.raises(Error, match="k: got 6, need at most 5"):
        run("topk", [x], [np.zeros((4, 6), np.float32), np.zeros((4, 6), np.int64)], good)
    with pytest.raises(Error, match="output"):
        run("topk", [x], [np.zeros((4, 2), np.float32), np.zeros((4, 3), np.int64)], good)
