"""Kernels of fp64 against the records: elementwise over special values, reductions and products over shapes and
strides."""

from typing import Any

import numpy as np
import pytest

from hexane import _core
from hexane.graph import Array
from hexane.ops import OPS
from kernels import poisoned, run_every_cut

FP64 = [row["name"] for row in _core.kernels() if row["dtypes"].startswith("fp64") and row["dtypes"].endswith("fp64")]
BINARY = {"add", "sub", "mul", "real_div", "floor_div", "mod", "fmod", "maximum", "minimum", "pow", "prelu"}
REDUCE = {name for name in FP64 if name.startswith("reduce_")}
UNARY = set(FP64) - BINARY - REDUCE - {"matmul", "cumsum"}
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.5, 1e-9, -1e-9, 5e-324, -5e-324, 1e-300, 39.0, -39.0, 41.0,
     -41.0, 709.0, -709.0, -745.0, 800.0, -800.0, 1e9, -1e9, 1e300, -1e300, np.inf, -np.inf, np.nan]
)  # fmt: skip
EXACT = {"abs", "neg", "ceil", "floor", "round", "sign", "relu", "relu6", "clip", "sqrt", "square", "threshold"}


def assert_near(got: Array, want: Array, relative: float, absolute: float = 1e-300) -> None:
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=relative, atol=absolute, equal_nan=True)


def meaning(name: str, *inputs: Array, **attrs: Any) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(OPS[name].ref(*inputs, **attrs), np.float64)


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary_ops_of_fp64(name: str) -> None:
    attrs = dict.fromkeys(OPS[name].attrs or (), 0.75) | ({"beta": 1.5} if "beta" in (OPS[name].attrs or ()) else {})
    x = np.concatenate([SPECIAL, np.random.default_rng(1).uniform(-6, 6, 1000)])
    out = poisoned(x.shape, np.float64)
    run_every_cut(name, [x], [out], **attrs)
    want = meaning(name, x, **attrs)
    # The record of GELU loses digits of small results.
    assert_near(out, want, 0 if name in EXACT else 1e-13, 1e-15 if "gelu" in name else 1e-300)


@pytest.mark.parametrize("name", sorted(BINARY))
def test_binary_ops_of_fp64(name: str) -> None:
    x, y = np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size)
    attrs = {"epilogue": ()} if OPS[name].epilogue else {}
    out = poisoned(x.shape, np.float64)
    run_every_cut(name, [x, y], [out], **attrs)
    assert_near(out, meaning(name, x, y), 1e-15 if name == "pow" else 0)
    wide = poisoned((3, 5, 4), np.float64)
    a, b = np.random.default_rng(2).uniform(0.5, 3, (2, 3, 10, 4))
    run_every_cut(name, [a[:, ::2, :], b[0, 5:, :1]], [wide], **attrs)
    assert_near(wide, meaning(name, a[:, ::2, :], b[0, 5:, :1]), 1e-15)


@pytest.mark.parametrize(
    ("shape", "axes"), [((17,), (0,)), ((5, 63), (0,)), ((2, 3, 4, 5), (1, 3)), ((4, 0), (1,)), ((), ())]
)
@pytest.mark.parametrize("name", sorted(REDUCE))
def test_reductions_of_fp64(name: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).uniform(0.1, 2, shape)
    kept = tuple(1 if i in axes or not axes else d for i, d in enumerate(shape))
    out = poisoned(kept, np.float64)
    run_every_cut(name, [x], [out], axes=axes, keep_dims=True)
    assert_near(out, meaning(name, x, axes=axes, keep_dims=True), 1e-13)


@pytest.mark.parametrize("name", sorted(REDUCE))
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_reductions_of_fp64_meet_special_values(name: str, special: float) -> None:
    x = np.array([[1.0, special, 2.0], [special, special, special], [special, 1.0, -special]])
    out = poisoned((3, 1), np.float64)
    run_every_cut(name, [x], [out], axes=(1,), keep_dims=True)
    assert_near(out, meaning(name, x, axes=(1,), keep_dims=True), 1e-13)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (7, 5, 33), (13, 0, 4), (20, 17, 40)])
def test_products_of_fp64(m: int, k: int, n: int, transposed: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(4)
    x, y, bias = rng.standard_normal((2, 3, m, k)), rng.standard_normal((3, k, n)), rng.standard_normal(n)
    want = x @ y + bias
    operands = [np.ascontiguousarray(a.swapaxes(-1, -2)) if t else a for a, t in zip((x, y), transposed, strict=True)]
    out = poisoned(want.shape, np.float64)
    attrs = {"transpose_x": transposed[0], "transpose_y": transposed[1], "epilogue": ()}
    run_every_cut("matmul", [*operands, bias], [out], **attrs)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-13 * max(np.abs(want).max(initial=0), 1))
