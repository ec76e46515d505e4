"""Elementwise ops in the engine's arithmetic, against fp64 rounded as the engine rounds: all inputs of one operand,
hostile pairs of two."""

import numpy as np
import pytest

import engine_planar as model
from engine_model import Array
from kernels import poisoned, run

NUMERICS = model.block()


def unary(op: str, x: Array, **how: object) -> Array:
    out = poisoned(x.shape, x.dtype)
    run(op, [x], [out], model.UNARY[op][1], family="engine", numerics=NUMERICS, **how)  # type: ignore[arg-type]
    return out


def binary(op: str, a: Array, b: Array, dtype: str = "float16", epilogue: tuple[str, ...] = ()) -> Array:
    out = poisoned(np.broadcast_shapes(a.shape, b.shape), dtype)
    slots = {"epilogue": [(slot, 0.0, 0.0, -1) for slot in epilogue]} if op in ("add", "sub", "mul", "real_div") else {}
    run(op, [a, b], [out], slots, family="engine", numerics=NUMERICS)
    return out


def assert_same(got: Array, want: Array, *operands: Array) -> None:
    bits = f"u{got.itemsize}"
    wrong = np.flatnonzero(got.view(bits) != want.view(bits))
    assert not wrong.size, [(*(x.ravel()[i] for x in (*operands, got, want)),) for i in wrong[:5]]


@pytest.mark.parametrize("op", model.UNARY)
def test_every_number_through_an_op_of_one_operand(op: str) -> None:
    assert_same(unary(op, model.EVERY), model.unary(op, model.EVERY), model.EVERY)


def pairs(seed: int, count: int = 1 << 17) -> tuple[Array, Array]:
    """Any bits; and numbers so near in size that sums and products often end in half a place, or cancel."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 1 << 16, (2, count), np.uint16).view(np.float16)
    near = rng.random(count) < 0.5
    shifted = np.ldexp(rng.integers(-63, 64, count), rng.integers(-16, 8, count)).astype(np.float16)
    return a, np.where(near, np.ldexp(shifted, np.frexp(np.nan_to_num(a))[1] - 8).astype(np.float16), b)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("op", model.BINARY)
def test_pairs_of_any_numbers(op: str) -> None:
    a, b = pairs(3)
    assert_same(binary(op, a, b), model.binary(op, a, b), a, b)
    assert_same(binary(op, b, a), model.binary(op, b, a), b, a)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("op", model.COMPARISON)
def test_comparisons_of_any_numbers(op: str) -> None:
    a, b = pairs(4)
    b[::3] = a[::3]
    assert_same(binary(op, a, b, "bool"), model.compare(op, a, b), a, b)


@pytest.mark.parametrize("op", ["add", "real_div", "maximum"])
def test_operands_may_be_broadcast_and_strided(op: str) -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal((7, 40)).astype(np.float16)
    for b in (a[:, ::2][:, :1], a[:1], rng.standard_normal((40, 7)).astype(np.float16).T, np.float16([[3]])):
        assert_same(binary(op, a, b), model.binary(op, a, b))


@pytest.mark.parametrize("op", ["relu", "gelu", "abs", "exp"])
def test_strides_and_pieces_change_nothing(op: str) -> None:
    x = np.random.default_rng(6).standard_normal((9, 64, 3)).astype(np.float16)[:, ::2]
    want = model.unary(op, x)
    for cut in ({}, {"pieces": 3, "which": 0}, {"pieces": 5, "which": 1}):
        assert_same(unary(op, x, **cut), want)


@pytest.mark.parametrize("op", ["add", "mul", "real_div"])
@pytest.mark.parametrize("slots", [("relu",), ("gelu",), ("hard_swish", "tanh")])
def test_what_is_fused_behind_an_op_meets_rounded_numbers(op: str, slots: tuple[str, ...]) -> None:
    a, b = np.random.default_rng(7).standard_normal((2, 3000)).astype(np.float16)
    want = model.binary(op, a, b)
    for slot in slots:
        want = model.unary(slot, want)
    assert_same(binary(op, a, b, epilogue=slots), want)


@pytest.mark.parametrize("slot", ["gelu", "leaky_relu", "sigmoid"])
def test_what_is_fused_behind_a_product_meets_rounded_numbers(slot: str) -> None:
    rng = np.random.default_rng(8)
    x, y = rng.standard_normal((9, 33)).astype(np.float16), rng.standard_normal((33, 21)).astype(np.float16)
    plain, fused = np.empty((9, 21), np.float16), np.empty((9, 21), np.float16)
    attributes = [*model.UNARY[slot][1].values(), 0.0, 0.0][:2]
    for out, slots in ((plain, []), (fused, [(slot, *attributes, -1)])):
        attrs = {"transpose_x": 0, "transpose_y": 0, "epilogue": slots}
        run("matmul", [x, y, None], [out], attrs, family="engine", numerics=NUMERICS)
    assert_same(fused, model.unary(slot, plain))


def cast(x: Array, dtype: str) -> Array:
    out = poisoned(x.shape, dtype)
    run("cast", [x], [out], {}, family="engine", numerics=NUMERICS)
    return out


def test_casts_round_halves_away() -> None:
    rng = np.random.default_rng(9)
    wide = np.concatenate(
        [
            [2049.0, -2049.0, 65519.99, 65520.0, 1e30, -np.inf, np.nan, 2.0**-25, 2.0**-25 * (1 - 2.0**-24), 0.0, -0.0],
            rng.standard_normal(5000) * 10.0 ** rng.integers(-9, 6, 5000),
            (rng.integers(-(1 << 11), 1 << 11, 5000) + 0.5) * 2.0 ** rng.integers(-24, 5, 5000),
        ]
    )
    for dtype in ("float32", "float64"):
        x = wide.astype(dtype)
        assert_same(cast(x, "float16"), model.write(x.astype(np.float64)), x)
    whole = rng.integers(-(1 << 20), 1 << 20, 5000)
    assert_same(cast(whole, "float16"), model.write(whole.astype(np.float64)), whole)


def test_casts_read_a_nan_as_infinity() -> None:
    for dtype in ("float32", "float16", "int8", "int32", "bool"):
        x = np.array([np.nan, -np.nan, np.inf, 1.5, -2.5, 0.0, -0.0], np.float16)
        out = cast(x, dtype)
        want = np.array([np.inf, np.inf, *x[2:]], np.float16)
        ieee = poisoned(x.shape, dtype)
        run("cast", [want], [ieee], {})
        assert_same(out, ieee, x)
