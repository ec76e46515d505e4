"""Partial results over blocks of a reduced axis: the same bits whoever makes which."""

import numpy as np
import pytest
from tests.support.kernels import Array, same_bits

from hexane import _core
from hexane.attrs import Strings, pack

COMBINED = ("sum", "mean", "max", "min", "prod", "sum_square", "l1_norm", "l2_norm", "log_sum")
SHAPES = [
    ((4, 300, 200), (1,)),
    ((90, 1000), (0,)),
    ((200000,), ()),
    ((40, 3, 50, 30), (0, 2)),
    ((2, 64, 64, 7), (1, 2)),
]


def by_blocks(
    name: str, x: Array, axes: tuple[int, ...], order: list[int], keep_dims: bool = False
) -> tuple[int, Array]:
    reduced = axes or tuple(range(x.ndim))
    shape = [1 if i in reduced else n for i, n in enumerate(x.shape) if keep_dims or i not in reduced]
    out = np.zeros(shape, x.dtype)
    attrs = pack("axes:L keep_dims:i", {"axes": axes, "keep_dims": keep_dims}, Strings())
    return _core.run_blocks(f"reduce_{name}", [x], [out], attrs, b"\0", order), out


def at_once(name: str, x: Array, axes: tuple[int, ...], out: Array) -> Array:
    result = np.zeros_like(out)
    attrs = pack("axes:L keep_dims:i", {"axes": axes, "keep_dims": out.ndim == x.ndim}, Strings())
    _core.run_kernel(f"reduce_{name}", [x], [result], attrs)
    return result


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("name", COMBINED)
def test_partial_results_combine_to_the_same_bits_in_any_order(
    name: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str
) -> None:
    x = np.random.default_rng(3).uniform(0.9, 1.1, shape).astype(dtype)
    x = x.astype("f").clip(0.9995, 1.0005).astype(dtype) if name == "prod" else x
    count, _ = by_blocks(name, x, axes, [])
    assert count > 1
    _, first = by_blocks(name, x, axes, list(range(count)))
    for order in (list(range(count))[::-1], np.random.default_rng(5).permutation(count).tolist()):
        assert same_bits(by_blocks(name, x, axes, order)[1], first)
    whole = at_once(name, x, axes, first)
    if name in ("max", "min"):
        assert same_bits(first, whole)
    else:
        np.testing.assert_allclose(first, whole, rtol=2e-3 if dtype == "float16" else 1e-4 if name == "prod" else 1e-5)


@pytest.mark.parametrize("keep_dims", [False, True])
def test_whole_numbers_are_exact_in_blocks_too(keep_dims: bool) -> None:
    x = np.random.default_rng(7).integers(-8, 9, (3, 700, 60)).astype("f").transpose(0, 2, 1)
    count, _ = by_blocks("sum", x, (2,), [], keep_dims)
    assert count > 1
    _, got = by_blocks("sum", x, (2,), list(range(count))[::-1], keep_dims)
    assert same_bits(got, x.sum(2, keepdims=keep_dims))


def test_a_nan_in_any_block_is_the_maximum() -> None:
    x = np.zeros((50, 2000), "f")
    x[37, 5] = np.nan
    count, _ = by_blocks("max", x, (0,), [])
    assert np.isnan(by_blocks("max", x, (0,), list(range(count)))[1][5])


@pytest.mark.parametrize(("name", "shape"), [("sum", (3, 4)), ("log_sum_exp", (400, 400)), ("sum", (1, 1))])
def test_small_and_other_reductions_have_no_partial_results(name: str, shape: tuple[int, ...]) -> None:
    assert by_blocks(name, np.ones(shape, "f"), (0,), [])[0] == 0
