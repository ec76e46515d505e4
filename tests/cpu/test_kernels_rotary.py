"""rotary_embedding against NumPy in fp64."""

from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from hexane.ops import OPS
from kernels import Array, poisoned, run, run_every_cut

NAME = "rotary_embedding"
INTERLEAVED = pytest.mark.parametrize("interleaved", [0, 1], ids=["halves", "neighbours"])
DTYPE = pytest.mark.parametrize("dtype", ["float32", "float16"])
TOLERANCE = {"float32": 1e-6, "float16": 2e-3}


def random(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def rotary(x: Array, cos: Array, sin: Array, interleaved: int) -> Array:
    """Computed whole, and the same bits in pieces of every cut."""
    out = poisoned(x.shape, x.dtype)
    run_every_cut(NAME, [x, cos, sin], [out], interleaved=interleaved)
    return out


def wanted(x: Array, cos: Array, sin: Array, interleaved: int) -> Array:
    return OPS[NAME].ref(*(v.astype(np.float64) for v in (x, cos, sin)), interleaved=interleaved)


@DTYPE
@INTERLEAVED
@pytest.mark.parametrize(
    ("x", "table"),
    [
        ((2,), (1,)),
        ((1, 64), (1, 32)),
        ((5, 34), (5, 17)),
        ((3, 4, 126), (4, 63)),
        ((2, 3, 5, 8), (2, 1, 5, 4)),
        ((2, 3, 5, 8), (4,)),
        ((2, 3, 5, 8), (5, 1)),
        ((2, 3, 5, 8), ()),
        ((3, 2000), (1000,)),
        ((0, 4), (2,)),
        ((3, 0), (3, 0)),
    ],
)
def test_pairs_turn(x: tuple[int, ...], table: tuple[int, ...], interleaved: int, dtype: str) -> None:
    operands = random(x, dtype, 1), np.asarray(random(table, dtype, 2)), np.asarray(random(table, dtype, 3))
    np.testing.assert_allclose(
        rotary(*operands, interleaved), wanted(*operands, interleaved), atol=TOLERANCE[dtype] * 6
    )


@DTYPE
@INTERLEAVED
def test_quarter_turns_are_exact(interleaved: int, dtype: str) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (3, 7, 50)).astype(dtype)
    cos, sin = (np.random.default_rng(2).integers(-1, 2, (7, 25)).astype(dtype) for _ in range(2))
    np.testing.assert_array_equal(rotary(x, cos, sin, interleaved), wanted(x, cos, sin, interleaved))


@INTERLEAVED
def test_rows_may_have_gaps(interleaved: int) -> None:
    x, cos, sin = random((2, 5, 3, 20), "float32", 1), random((5, 20), "float32", 2), random((5, 20), "float32", 3)
    views = x.transpose(0, 2, 1, 3), cos[:, :10], sin[:, 10:]
    out = poisoned((2, 5, 3, 24), "float32").transpose(0, 2, 1, 3)[..., 2:22]
    run(NAME, views, [out], {"interleaved": interleaved})
    np.testing.assert_array_equal(out, rotary(*(np.ascontiguousarray(v) for v in views), interleaved))


@INTERLEAVED
def test_nan_stays_in_its_pair(interleaved: int) -> None:
    x, table = random((2, 40), "float32", 1), random((20,), "float32", 2)
    x[0, 7] = np.nan
    np.testing.assert_array_equal(
        np.isnan(rotary(x, table, table, interleaved)), np.isnan(wanted(x, table, table, interleaved))
    )


@pytest.mark.parametrize(
    ("x", "cos", "sin", "out"),
    [
        ((3, 5), (3, 2), (3, 2), (3, 5)),
        ((3, 6), (3, 6), (3, 6), (3, 6)),
        ((3, 6), (2, 3), (2, 3), (3, 6)),
        ((3, 6), (3, 3), (3, 2), (3, 6)),
        ((3, 6), (1, 3, 3), (1, 3, 3), (3, 6)),
        ((3, 6), (3, 3), (3, 3), (3, 3)),
        ((), (), (), ()),
    ],
)
def test_rotary_refuses_shapes_that_do_not_fit(x: Any, cos: Any, sin: Any, out: Any) -> None:
    with pytest.raises(Error, match=rf"\[{NAME}\]"):
        run(NAME, [np.ones(s, "f") for s in (x, cos, sin)], [np.ones(out, "f")], {"interleaved": 0})
