"""gather, gather_along_axis, gather_nd, one_hot, the scatters and write_slice against NumPy, bit for bit."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from kernels import Array, poisoned, run, run_every_cut, same_bits

DTYPES = ["int8", "float16", "float32", "int64"]
INDEX_DTYPES = ["int32", "int64"]
REDUCTIONS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def indices_in(rng: np.random.Generator, extent: int, shape: Any, dtype: str) -> Array:
    return rng.integers(-extent, extent, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "index_shape"),
    [
        ((50, 64), 0, (17,)),
        ((5, 7, 3), 1, (4, 2)),
        ((5, 7), -1, (9,)),
        ((6,), 0, ()),
        ((4, 5, 6), 0, (3, 1, 2)),
        ((5, 2), 0, (0,)),
    ],
)
def test_gather_takes_slices(dtype: str, index_dtype: str, shape: Any, axis: int, index_shape: Any) -> None:
    rng = np.random.default_rng(10)
    x = rng.integers(-100, 100, shape).astype(dtype)
    indices = np.asarray(indices_in(rng, shape[axis], index_shape, index_dtype))
    wanted = np.take(x, indices, axis)
    out = poisoned(wanted.shape, dtype)
    run_every_cut("gather", [x, indices], [out], axis=axis)
    assert same_bits(out, np.asarray(wanted))


def test_gather_reads_and_writes_strided_operands() -> None:
    rng = np.random.default_rng(11)
    x = rng.integers(0, 100, (6, 9, 8)).astype(np.float32).transpose(2, 0, 1)[::2]
    indices = indices_in(rng, 6, (10, 7), "int64")[::3, ::2]
    out = poisoned((9, 4, 4, 4), np.float32).transpose(1, 2, 3, 0)
    run_every_cut("gather", [x, indices], [out], axis=1)
    assert (out == np.take(x, indices, 1)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_along_axis_picks_elements(dtype: str, axis: int) -> None:
    rng = np.random.default_rng(12)
    x = rng.integers(-100, 100, (5, 6, 7)).astype(dtype)
    shape = [5, 6, 7]
    shape[axis] = 4
    indices = indices_in(rng, x.shape[axis], shape, "int64")
    out = poisoned(shape, dtype)
    run_every_cut("gather_along_axis", [x, indices], [out], axis=axis)
    assert same_bits(out, np.take_along_axis(x, indices, axis))


@pytest.mark.parametrize("batch_dims", [0, 1])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_gather_nd_looks_coordinates_up(batch_dims: int, depth: int, dtype: str) -> None:
    rng = np.random.default_rng(13)
    x = rng.integers(-100, 100, (3, 4, 5, 6)).astype(dtype)
    indices = indices_in(rng, 3, (3, 8, depth), "int32")
    if batch_dims:
        wanted = np.stack([x[b][tuple(indices[b].T)] if depth else np.stack([x[b]] * 8) for b in range(3)])
    else:
        wanted = x[tuple(np.moveaxis(indices, -1, 0))] if depth else np.broadcast_to(x, (3, 8, *x.shape))
    out = poisoned(wanted.shape, dtype)
    run_every_cut("gather_nd", [x, indices], [out], batch_dims=batch_dims)
    assert same_bits(out, np.ascontiguousarray(wanted))


@pytest.mark.parametrize("index", [4, -5, 1 << 31, -(1 << 62)])
def test_an_index_out_of_range_is_an_error(index: int) -> None:
    x = np.zeros((4, 3), np.float32)
    at = np.array([0, index])
    with pytest.raises(Error, match=rf"\[gather\] index: got {index}, need -4 to 3"):
        run("gather", [x, at], [np.zeros((2, 3), np.float32)], {"axis": 0})
    with pytest.raises(Error, match="index"):
        run("gather_along_axis", [x, at[:, None]], [np.zeros((2, 1), np.float32)], {"axis": 0})
    with pytest.raises(Error, match="index"):
        run("gather_nd", [x, at[:, None]], [np.zeros((2, 3), np.float32)], {"batch_dims": 0})
    with pytest.raises(Error, match="index"):
        run("scatter_nd", [x, at[:, None], np.zeros((2, 3), np.float32)], [x.copy()], {"mode": "update"})
    along = {"axis": 0, "mode": "add"}
    with pytest.raises(Error, match="index"):
        run("scatter_along_axis", [x, at[:, None], np.zeros((2, 1), np.float32)], [x.copy()], along)


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "bool"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_one_hot_sets_the_index(dtype: str, axis: int, index_dtype: str) -> None:
    indices = np.array([[0, 2, -1], [6, -4, 3]], index_dtype)
    wrapped = np.expand_dims(np.where(indices < 0, indices + 4, indices), axis)
    depth = np.arange(4).reshape([4 if i == axis % 3 else 1 for i in range(3)])
    wanted = np.where(wrapped == depth, 1, 0).astype(dtype)
    out = poisoned(wanted.shape, dtype)
    run_every_cut("one_hot", [indices], [out], axis=axis, depth=4, on=1.0, off=0.0)
    assert same_bits(out, wanted)


def test_one_hot_writes_any_two_values() -> None:
    out = poisoned((3,), np.float32)
    run_every_cut("one_hot", [np.array(1)], [out], axis=0, depth=3, on=2.5, off=-np.inf)
    assert out.tolist() == [-np.inf, 2.5, -np.inf]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd_writes_the_last_update(dtype: str, depth: int) -> None:
    rng = np.random.default_rng(14)
    x = rng.integers(-100, 100, (5, 4, 9)).astype(dtype)
    indices = indices_in(rng, 4, (2, 6, depth), "int64")
    updates = rng.integers(-100, 100, (2, 6, *x.shape[depth:])).astype(dtype)
    wanted, out = x.copy(), poisoned(x.shape, dtype)
    for at in np.ndindex(2, 6):
        wanted[tuple(indices[at])] = updates[at]
    run_every_cut("scatter_nd", [x, indices, updates], [out], mode="update")
    assert same_bits(out, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
@pytest.mark.parametrize("mode", list(REDUCTIONS))
def test_scatters_combine_every_update(dtype: str, mode: str) -> None:
    rng = np.random.default_rng(15)
    x, updates = (
        (
            rng.standard_normal((n, 5)) if dtype.startswith("float") else rng.integers(-(1 << 31), 1 << 31, (n, 5))
        ).astype(dtype)
        for n in (6, 40)
    )
    rows = indices_in(rng, 6, (40, 1), "int32")
    wanted, out = x.copy(), poisoned(x.shape, dtype)
    REDUCTIONS[mode].at(wanted, rows[:, 0], updates)
    run_every_cut("scatter_nd", [x, rows, updates], [out], mode=mode)
    assert same_bits(out, wanted)
    along = indices_in(rng, 6, (40, 4), "int64")
    wanted, out = x.copy(), poisoned(x.shape, dtype)
    REDUCTIONS[mode].at(wanted, (along, np.arange(4)), updates[:, :4])
    run_every_cut("scatter_along_axis", [x, along, updates[:, :4]], [out], axis=0, mode=mode)
    assert same_bits(out, wanted)


def test_scatter_max_passes_nan() -> None:
    x = np.array([np.nan, 1, 2], np.float32)
    updates = np.array([[5, np.nan, 1]], np.float32)
    for mode in ("max", "min"):
        out = poisoned((3,), np.float32)
        run_every_cut("scatter_nd", [x, np.array([[[0], [1], [2]]]), updates], [out], mode=mode)
        assert np.isnan(out[:2]).all()
        assert out[2] == (2 if mode == "max" else 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter_along_axis_writes_the_last_update(dtype: str, axis: int) -> None:
    rng = np.random.default_rng(16)
    x = rng.integers(-100, 100, (5, 6)).astype(dtype)
    indices = indices_in(rng, 5, (4, 3), "int32")
    updates = rng.integers(-100, 100, (4, 3)).astype(dtype)
    wanted, out = x.copy(), poisoned(x.shape, dtype)
    for i, j in np.ndindex(4, 3):
        wanted[(indices[i, j], j) if axis == 0 else (i, indices[i, j])] = updates[i, j]
    run_every_cut("scatter_along_axis", [x, indices, updates], [out], axis=axis, mode="update")
    assert same_bits(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [np.array(3), np.array([0], np.int32), np.array([6])])
def test_write_slice_changes_the_state_in_place(dtype: str, position: Array) -> None:
    rng = np.random.default_rng(17)
    state = rng.integers(-100, 100, (2, 8, 5)).astype(dtype)
    update = rng.integers(-100, 100, (5, 2, 2)).astype(dtype).transpose(1, 2, 0)
    wanted, start = state.copy(), int(position.reshape(()))
    wanted[:, start : start + 2] = update
    run("write_slice", [state, update, position], [state], {"axis": 1})
    assert same_bits(state, wanted)


@pytest.mark.parametrize("position", [-1, 7, 1 << 40])
def test_write_slice_refuses_a_position_out_of_range(position: int) -> None:
    state = np.zeros((8, 5), np.float32)
    with pytest.raises(Error, match=rf"\[write_slice\] position: got {position}, need 0 to 6"):
        run("write_slice", [state, np.ones((2, 5), np.float32), np.array(position)], [state], {"axis": 0})
    assert (state == 0).all()


def test_index_kernels_refuse_what_does_not_fit() -> None:
    x, at = np.zeros((4, 3), np.float32), np.zeros(2, np.int64)
    out = np.zeros((2, 3), np.float32)
    with pytest.raises(Error, match="axis"):
        run("gather", [x, at], [out], {"axis": 2})
    with pytest.raises(Error, match="output"):
        run("gather", [x, at], [out[:1]], {"axis": 0})
    with pytest.raises(Error, match="output rank"):
        run("gather", [x, at], [out[0]], {"axis": 0})
    with pytest.raises(Error, match="indices"):
        run("gather_along_axis", [x, np.zeros((4, 4), np.int64)], [np.zeros((4, 4), np.float32)], {"axis": 0})
    with pytest.raises(Error, match="coordinates"):
        run("gather_nd", [x, np.zeros((2, 3), np.int64)], [np.zeros(2, np.float32)], {"batch_dims": 0})
    with pytest.raises(Error, match="batch_dims"):
        run("gather_nd", [x, at], [out], {"batch_dims": 1})
    with pytest.raises(Error, match="axis 1"):
        run("one_hot", [at], [np.zeros((2, 3), np.float32)], {"axis": 1, "depth": 4, "on": 1.0, "off": 0.0})
    with pytest.raises(Error, match="updates"):
        run("scatter_nd", [x, at[:, None], out[:, :2]], [x.copy()], {"mode": "update"})
    with pytest.raises(Error, match="mode"):
        run("scatter_nd", [x, at[:, None], out], [x.copy()], {"mode": "sub"})
    small = [a.astype(np.int8) for a in (x, out)]
    with pytest.raises(Error, match="dtype"):
        run("scatter_nd", [small[0], at[:, None], small[1]], [small[0].copy()], {"mode": "add"})
    with pytest.raises(Error, match="memory"):
        run("write_slice", [x, out, np.array(0)], [x.copy()], {"axis": 0})
    with pytest.raises(Error, match="update"):
        run("write_slice", [x, out[:, :2], np.array(0)], [x], {"axis": 0})
    with pytest.raises(Error, match="position"):
        run("write_slice", [x, out, at], [x], {"axis": 0})


def test_an_index_of_an_empty_axis_says_that_it_is_empty() -> None:
    net = hx.compile(hx.gather(hx.input("x", (0, 3)), hx.input("i", (1,), "int32"), axis=0), threads=1)
    with pytest.raises(Error, match="index: got 0 for an empty axis, which has no elements"):
        net(np.zeros((0, 3), np.float32), np.zeros(1, np.int32))
