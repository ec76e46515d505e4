"""Unary, binary and select kernels against NumPy: floats in fp64 rounded once, integers bit for bit."""

import warnings
from collections.abc import Callable
from math import erf, erfc, sqrt
from pathlib import Path

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error
from instruction_sets import assert_passes_on, on_others
from kernels import Array, integers, poisoned, run, run_every_cut, same_bits

SEED = 11
ULPS = {"float32": 4.5, "float16": 1.0}
FLOATS = ["float32", "float16"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int64"]
SHAPES = [(), (1,), (17,), (63,), (65,), (1000,), (3, 1, 5), (0,), (4, 0, 3), (2, 3, 4, 5)]

erf64 = np.vectorize(erf, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


def normal(x: Array) -> Array:
    return np.where(x > -4, 0.5 * (1 + erf64(x / sqrt(2))), np.nan)  # further out 1 + erf has too few digits


UNARY: dict[str, tuple[Callable[[Array], Array], dict[str, float]]] = {
    "abs": (np.abs, {}),
    "neg": (np.negative, {}),
    "ceil": (np.ceil, {}),
    "floor": (np.floor, {}),
    "round": (np.rint, {}),
    "sign": (np.sign, {}),
    "sqrt": (np.sqrt, {}),
    "rsqrt": (lambda x: 1 / np.sqrt(x), {}),
    "inverse": (lambda x: 1 / x, {}),
    "square": (np.square, {}),
    "exp": (np.exp, {}),
    "exp2": (np.exp2, {}),
    "log": (np.log, {}),
    "erf": (erf64, {}),
    "sin": (np.sin, {}),
    "cos": (np.cos, {}),
    "tan": (np.tan, {}),
    "asin": (np.arcsin, {}),
    "acos": (np.arccos, {}),
    "atan": (np.arctan, {}),
    "sinh": (np.sinh, {}),
    "cosh": (np.cosh, {}),
    "tanh": (np.tanh, {}),
    "asinh": (np.arcsinh, {}),
    "acosh": (np.arccosh, {}),
    "atanh": (np.arctanh, {}),
    "sigmoid": (sigmoid, {}),
    "silu": (lambda x: x * sigmoid(x), {}),
    "gelu": (lambda x: x * normal(x), {}),
    "gelu_tanh": (lambda x: x * sigmoid(2 * sqrt(2 / np.pi) * (x + 0.044715 * x**3)), {}),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), {}),
    "softplus": (lambda x: np.logaddexp(0, x), {}),
    "softsign": (lambda x: x / (1 + np.abs(x)), {}),
    "relu": (lambda x: np.maximum(x, 0), {}),
    "relu6": (lambda x: np.clip(x, 0, 6), {}),
    "hard_swish": (lambda x: x * (np.clip(x + 3, 0, 6) / 6), {}),
    "leaky_relu": (lambda x: np.where(x < 0, 0.25 * x, x), {"alpha": 0.25}),
    "elu": (lambda x: np.where(x < 0, 0.5 * np.expm1(x), x), {"alpha": 0.5}),
    "celu": (lambda x: np.where(x < 0, 2 * np.expm1(x / 2), x), {"alpha": 2.0}),
    "selu": (lambda x: 1.25 * np.where(x < 0, 1.5 * np.expm1(x), x), {"alpha": 1.5, "beta": 1.25}),
    "sigmoid_hard": (lambda x: np.clip(0.25 * x + 0.5, 0, 1), {"alpha": 0.25, "beta": 0.5}),
    "clip": (lambda x: np.clip(x, -1.5, 2), {"alpha": -1.5, "beta": 2.0}),
    "scaled_tanh": (lambda x: 1.5 * np.tanh(0.5 * x), {"alpha": 1.5, "beta": 0.5}),
    "thresholded_relu": (lambda x: np.where(x > 1, x, 0), {"alpha": 1.0}),
    "threshold": (lambda x: np.maximum(x, 1), {"alpha": 1.0}),
    "linear_activation": (lambda x: 2 * x + 0.5, {"alpha": 2.0, "beta": 0.5}),
}
LOSES_DIGITS = {"gelu", "gelu_tanh"}  # NumPy's formula, far below 0


def in_double(function: Callable[..., Array], *inputs: Array) -> Array:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(function(*(x.astype(np.float64) for x in inputs)), np.float64)


def assert_close(got: Array, exact: Array, ulps: float) -> None:
    """`exact` in fp64: the rounding to the dtype of `got` costs up to half an ulp of these."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        step = np.spacing(np.minimum(np.abs(rounded), np.finfo(got.dtype).max)).astype(np.float64)
        off = np.abs(got.astype(np.float64) - exact) / step
        same = (got == rounded) | (np.isnan(got) & np.isnan(exact))
        if got.dtype == np.float16:
            off = np.abs(got.astype(np.float64) - rounded.astype(np.float64)) / step
    bad = ~(same | (off <= ulps))
    assert not bad.any(), f"{bad.sum()} of {bad.size}: got {got[bad][:5]}, need {exact[bad][:5]}"


def some_floats(shape: tuple[int, ...], dtype: str, seed: int = SEED) -> Array:
    print("seed", seed)
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal(shape) * np.exp(rng.uniform(-3, 2, shape))).astype(dtype)


def every_fp16() -> Array:
    return np.arange(65536, dtype=np.uint16).view(np.float16)


def fp32_sweep() -> Array:
    bits = np.arange(0, 2**32, 2**32 // 200_003, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, 88.7228, 88.73, -103.9, -104, 3.4e38, 8191.9, 8192, 1e5]
    return np.concatenate([bits, np.array(edges, np.float32), some_floats((100_000,), "float32")])


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", FLOATS)
def test_unary_is_accurate_over_the_whole_range(name: str, dtype: str) -> None:
    reference, attrs = UNARY[name]
    x = fp32_sweep() if dtype == "float32" else every_fp16()
    exact = in_double(reference, x)
    if name in LOSES_DIGITS:
        x, exact = x[np.isfinite(exact)], exact[np.isfinite(exact)]
    out = poisoned(x.shape, dtype)
    run(name, [x], [out], attrs)
    assert_close(out, exact, ULPS[dtype])


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "mish", "hard_swish"])
def test_gated_identities_are_products_with_their_gates(name: str) -> None:
    """-inf * 0 is not a number."""
    x = np.array([-np.inf, -3e38, -1e4, 1e30, np.inf, np.nan, 0.0, -0.0], np.float32)
    out = poisoned(x.shape, "float32")
    run(name, [x], [out], {})
    wanted = np.array([np.nan, -0.0, -0.0, 1e30, np.inf, np.nan, 0.0, -0.0], np.float32)
    assert np.array_equal(out, wanted, equal_nan=True)
    assert np.array_equal(np.signbit(out[1:5]), np.signbit(wanted[1:5]))


@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu_tanh"])
def test_a_gate_does_not_depend_on_its_neighbours(name: str) -> None:
    """A vector with a number beyond 69 takes a slower path, whose other lanes have the same bits."""
    x = np.concatenate([fp32_sweep(), np.linspace(-100, 100, 4001, dtype=np.float32)])
    x = x[np.isfinite(x)]
    among, out = np.full((x.size, 2), -90, np.float32), poisoned(x.shape, "float32")
    among[:, 0] = x
    spread = poisoned(among.shape, "float32")
    run(name, [x], [out], {})
    run(name, [among], [spread], {})
    assert same_bits(np.ascontiguousarray(spread[:, 0]), out)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["exp", "gelu", "sin"])
def test_unary_is_the_same_in_pieces(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    x = some_floats(shape, dtype)
    out = poisoned(shape, dtype)
    run_every_cut(name, [x], [out])
    flat = poisoned((x.size + 5,), dtype)
    run(name, [np.concatenate([np.zeros(5, dtype), x.ravel()])], [flat], {})
    assert same_bits(out.ravel(), flat[5:])


@pytest.mark.parametrize("dtype", FLOATS)
def test_unary_reads_and_writes_any_strides(dtype: str) -> None:
    wide = some_floats((6, 9, 10), dtype)
    x = wide[::2, 1:8, ::3].transpose(2, 0, 1)
    out = poisoned((4, 14, 3), dtype)[:, ::2, :].transpose(0, 2, 1)
    dense = poisoned(x.shape, dtype)
    run("tanh", [np.ascontiguousarray(x)], [dense], {})
    run_every_cut("tanh", [x], [out])
    assert np.array_equal(out, dense)


def test_unary_works_in_place() -> None:
    x = some_floats((1003,), "float32")
    out = poisoned(x.shape, "float32")
    run("exp", [x], [out], {})
    run("exp", [x], [x], {})
    assert same_bits(x, out)


INTEGER_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "neg": np.negative,
    "sign": np.sign,
    "relu": lambda x: np.maximum(x, np.zeros((), x.dtype)),
    "square": np.square,
}


@pytest.mark.parametrize("dtype", [*INTEGERS, "uint16", "uint32", "uint64"])
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("bitwise_and", np.bitwise_and),
        ("bitwise_or", np.bitwise_or),
        ("bitwise_xor", np.bitwise_xor),
        ("shift_left", np.left_shift),
        ("shift_right", np.right_shift),
    ],
)
def test_bits_are_those_of_numpy(name: str, reference: Callable[..., Array], dtype: str) -> None:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(SEED)
    x = rng.integers(info.min, info.max, 500, dtype, endpoint=True)
    y = rng.integers(info.min, info.max, 500, dtype, endpoint=True)
    if name.startswith("shift"):
        y[:400] = rng.integers(0, info.bits, 400).astype(dtype)  # the others are no number of bits
    out = poisoned(x.shape, dtype)
    run(name, [x, y], [out], {})
    np.testing.assert_array_equal(out, reference(x, y))


@pytest.mark.parametrize("name", INTEGER_UNARY)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_unary_is_numpy(name: str, dtype: str) -> None:
    x = integers((5, 67), dtype)
    out = poisoned(x.shape, dtype)
    run_every_cut(name, [x], [out])
    assert same_bits(out, INTEGER_UNARY[name](x))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_clip_takes_the_integers_between_its_bounds(dtype: str) -> None:
    x = integers((131,), dtype)
    out = poisoned(x.shape, dtype)
    run("clip", [x], [out], {"alpha": 0.5, "beta": 7.9})
    assert same_bits(out, np.clip(x, 1, 7).astype(dtype))
    run("clip", [x], [out], {"alpha": -np.inf, "beta": 1e30})
    assert same_bits(out, x)


def test_logical_not() -> None:
    x = np.random.default_rng(SEED).random(77) < 0.5
    out = poisoned(x.shape, bool)
    run("logical_not", [x], [out], {})
    assert same_bits(out, ~x)


# ---- two operands ----

BROADCASTS = [
    ((1, 64), (1, 64)),
    ((5,), (1,)),
    ((1,), (7,)),
    ((), (3,)),
    ((), ()),
    ((3, 17), (17,)),
    ((3, 17), (3, 1)),
    ((3, 1), (1, 17)),
    ((2, 3, 65), (3, 1)),
    ((2, 1, 4, 5), (6, 1, 5)),
    ((1000,), (1000,)),
    ((0, 3), (1, 3)),
    ((2, 8, 4, 4), (1, 8, 1, 1)),
]


def numpy_prelu(x: Array, alpha: Array) -> Array:
    return np.where(x < 0, x * alpha, x)


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "real_div": np.divide,
    "floor_div": np.floor_divide,
    "mod": np.mod,
    "fmod": np.fmod,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": np.power,
    "prelu": numpy_prelu,
}
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
}
FUSED = {"add", "sub", "mul", "real_div"}


def no_epilogue(name: str) -> dict[str, list[tuple[str, float, float, int]]]:
    return {"epilogue": []} if name in FUSED else {}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("a_shape", "b_shape"), BROADCASTS)
def test_binary_broadcasts(name: str, dtype: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    a, b = some_floats(a_shape, dtype), some_floats(b_shape, dtype, SEED + 1)
    out = poisoned(np.broadcast_shapes(a_shape, b_shape), dtype)
    run_every_cut(name, [a, b], [out], **no_epilogue(name))
    with np.errstate(all="ignore"):
        if name in {"floor_div", "mod", "fmod"}:  # not continuous: NumPy in fp32, as the kernel computes
            expected = BINARY[name](a.astype(np.float32), b.astype(np.float32)).astype(dtype)
            assert np.array_equal(out, expected)
        else:
            assert_close(out, in_double(BINARY[name], a, b), ULPS[dtype])


def test_fmod_is_exact_of_numbers_of_any_size_and_next_to_multiples() -> None:
    print("seed", SEED)
    rng, n = np.random.default_rng(SEED), 100_000
    bits = rng.integers(0, 2**32, (2, n), dtype=np.uint32).view(np.float32)
    b = rng.standard_normal(n).astype(np.float32)
    multiples = (b.astype(np.float64) * rng.integers(-(2**29), 2**29, n)).astype(np.float32)
    apart = (b * np.exp2(rng.uniform(-2, 32, n))).astype(np.float32)
    below = np.nextafter(multiples, np.float32(0))
    for x, y in ((*bits,), (multiples, b), (below, b), (apart, b)):
        out = poisoned(x.shape, "float32")
        run("fmod", [x, y], [out], {})
        with np.errstate(all="ignore"):
            wanted = np.fmod(x, y)
        assert ((out.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(out) & np.isnan(wanted))).all()


@pytest.mark.parametrize("exponent", [2, 3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_whole_power_is_the_same_beside_others_as_alone(exponent: int, dtype: str) -> None:
    x = some_floats((200,), dtype)
    alone, beside = poisoned(x.shape, dtype), poisoned(x.shape, dtype)
    run("pow", [x, np.array(exponent, dtype)], [alone], {})
    run("pow", [x, np.where(np.arange(200) % 3, exponent, 0.5).astype(dtype)], [beside], {})
    same = np.arange(200) % 3 > 0
    assert same_bits(alone[same], beside[same])
    assert_close(alone, in_double(np.power, x, np.array(exponent, dtype)), ULPS[dtype])


@pytest.mark.parametrize("name", BINARY)
def test_binary_treats_special_values_as_numpy_does(name: str) -> None:
    values = np.array([0, -0.0, 1, -1, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, 3e38], np.float32)
    a, b = values[:, None].copy(), values[None].copy()
    out = poisoned((len(values), len(values)), "float32")
    run(name, [a, b], [out], no_epilogue(name))
    with np.errstate(all="ignore"):
        expected = BINARY[name](a, b)
    if name == "pow":
        assert_close(out, expected.astype(np.float64), 1)
    else:
        assert np.array_equal(out, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["add", "pow"])
def test_binary_reads_and_writes_any_strides(name: str, dtype: str) -> None:
    a = np.abs(some_floats((7, 1300), dtype))[:, ::2].T
    b = some_floats((8, 650), dtype)[:7].T
    out = poisoned((650, 14), dtype)[:, ::2]
    dense = poisoned((650, 7), dtype)
    run(name, [np.ascontiguousarray(a), np.ascontiguousarray(b)], [dense], no_epilogue(name))
    run_every_cut(name, [a, b], [out], **no_epilogue(name))
    assert np.array_equal(out, dense, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", sorted(FUSED))
def test_an_epilogue_comes_before_the_one_rounding(name: str, dtype: str) -> None:
    a, b = some_floats((3, 1100), dtype), some_floats((1100,), dtype, SEED + 1)
    out = poisoned(a.shape, dtype)
    run_every_cut(name, [a, b], [out], epilogue=[("leaky_relu", 0.5, 0, -1), ("clip", -2, 1.5, -1)])
    with np.errstate(all="ignore"):
        exact = BINARY[name](a.astype(np.float32), b.astype(np.float32))
    exact = np.clip(np.where(exact < 0, 0.5 * exact, exact), -2, 1.5)
    assert np.array_equal(out, exact.astype(dtype))


def test_an_epilogue_that_is_unknown_or_needs_an_operand_is_refused() -> None:
    a = np.zeros(3, np.float32)
    for slot in [("add", 0, 0, 1), ("swirl", 0, 0, -1)]:
        with pytest.raises(Error):
            run("add", [a, a], [a.copy()], {"epilogue": [slot]})
    with pytest.raises(Error, match="epilogue"):
        run("add", [a.astype(int)] * 2, [a.astype(int)], {"epilogue": [("relu", 0, 0, -1)]})


def truncated_quotient(a: Array, b: Array) -> Array:
    quotient = [
        0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(*wide(a, b), strict=True)
    ]
    return wrapped(quotient, a)


def wide(a: Array, b: Array) -> tuple[list[int], list[int]]:
    a, b = np.broadcast_arrays(a, b)
    return [int(x) for x in a.ravel()], [int(x) for x in b.ravel()]


def wrapped(values: list[int], like: Array) -> Array:
    bits = 8 * like.dtype.itemsize
    unsigned = np.array([value % 2**bits for value in values], f"uint{bits}")
    return unsigned.view(like.dtype).reshape(like.shape)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_binary_is_numpy_bit_for_bit(name: str, dtype: str) -> None:
    a, b = integers((6, 131), dtype), integers((6, 131), dtype, SEED + 9)
    if name == "pow":
        b = np.abs(b % 6).astype(dtype)
    out = poisoned(a.shape, dtype)
    run_every_cut(name, [a, b], [out], **no_epilogue(name))
    with np.errstate(all="ignore"):
        expected = truncated_quotient(a, b) if name == "real_div" else BINARY[name](a, b)
    assert same_bits(out, expected)


def test_integer_powers_with_negative_exponents_are_truncated_fractions() -> None:
    base, exponent = np.array([1, -1, -1, 2, -2, 0], np.int32), np.array([-3, -3, -2, -1, -1, -1], np.int32)
    out = poisoned((6,), "int32")
    run("pow", [base, exponent], [out], {})
    assert out.tolist() == [1, -1, 1, 0, 0, 0]


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize(("a_shape", "b_shape"), [((67,), (67,)), ((5, 33), (33,)), ((5, 33), (5, 1)), ((), (4,))])
def test_comparisons_are_numpy(name: str, dtype: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(SEED)
    a, b = rng.integers(0, 4, a_shape).astype(dtype), rng.integers(0, 4, b_shape).astype(dtype)
    if dtype in FLOATS and a.size > 8:
        a.ravel()[:3] = np.nan, np.inf, -0.0
    out = poisoned(np.broadcast_shapes(a_shape, b_shape), bool)
    run_every_cut(name, [a, b], [out])
    assert same_bits(out, np.asarray(COMPARISONS[name](a, b)))


@pytest.mark.parametrize("name", ["equal", "not_equal", "logical_and", "logical_or", "logical_xor"])
def test_logic_is_numpy(name: str) -> None:
    rng = np.random.default_rng(SEED)
    a, b = rng.random((9, 31)) < 0.5, rng.random((9, 1)) < 0.5
    out = poisoned(a.shape, bool)
    run_every_cut(name, [a, b], [out])
    assert same_bits(out, getattr(np, name)(a, b))


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "int64"])
@pytest.mark.parametrize(
    "shapes", [((33,), (33,), (33,)), ((4, 1), (1, 9), ()), ((4, 9), (9,), (1,)), ((), (5,), (5,))]
)
def test_select_is_where(dtype: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(SEED)
    condition = np.asarray(rng.random(shapes[0]) < 0.5)
    a, b = (np.asarray(rng.integers(0, 2, shape)).astype(dtype) for shape in shapes[1:])
    out = poisoned(np.broadcast_shapes(*shapes), dtype)
    run_every_cut("select", [condition, a, b], [out])
    assert same_bits(out, np.where(condition, a, b))


@pytest.mark.parametrize(
    ("name", "inputs", "output"),
    [
        ("add", [(3,), (4,)], (3,)),
        ("add", [(3,), (3,)], (4,)),
        ("add", [(1,), (1,)], (4,)),
        ("add", [(2, 3), (3,)], (3,)),
        ("exp", [(3,)], (4,)),
        ("exp", [(1,)], (4,)),
        ("exp", [(2, 3)], (6,)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name: str, inputs: list[tuple[int, ...]], output: tuple[int, ...]) -> None:
    arrays = [np.zeros(shape, np.float32) for shape in inputs]
    with pytest.raises(Error, match=name):
        run(name, arrays, [np.zeros(output, np.float32)], no_epilogue(name))


def test_a_missing_operand_is_refused() -> None:
    with pytest.raises(Error, match="add"):
        run("add", [np.zeros(3, np.float32)], [np.zeros(3, np.float32)], no_epilogue("add"))
    with pytest.raises(Error, match="add"):
        run("add", [np.zeros(3, np.float32), None], [np.zeros(3, np.float32)], no_epilogue("add"))


def test_every_row_function_is_a_unary_kernel() -> None:
    names = {kernel["name"] for kernel in _core.kernels() if kernel["dtypes"] == "fp32->fp32"}
    assert set(UNARY) <= names


erfc64 = np.vectorize(erfc, otypes=[np.float64])
TAILS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * erfc64(-x / sqrt(2)),
    "gelu_tanh": lambda x: x * sigmoid(2 * sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "softplus": lambda x: np.log1p(np.exp(x)),
}
ENDS = {"gelu": (-15.0, -12.5), "gelu_tanh": (-11.5, -10.5), "exp2": (-152.0, -124.0)}


@pytest.mark.parametrize("name", TAILS)
def test_subnormal_results_are_rounded_once(name: str) -> None:
    """They are made without operations that underflow, which take a processor some 150 cycles each."""
    x = np.linspace(*ENDS.get(name, (-110.0, -85.0)), 20_001).astype(np.float32)
    got = np.empty_like(x)
    run(name, [x], [got], {})
    exact = TAILS[name](x.astype(np.float64))
    assert (np.abs(got - exact) <= 2.0**-149 + np.abs(exact) * 2.0**-21).all()
    tiny = np.abs(exact) < 2.0**-127
    assert tiny.sum() > 500
    assert (got[tiny] != 0).sum() > 100
    spread = np.full((16, x.size), 1.0, np.float32)  # each number in each lane, next to large ones
    for lane in range(16):
        spread[lane, :] = np.where(np.arange(x.size) % 16 == lane, x, 3.0)
    result = np.empty_like(spread)
    run(name, [spread], [result], {})
    for lane in range(16):
        same_bits(np.ascontiguousarray(result[lane, lane::16]), np.ascontiguousarray(got[lane::16]))


@on_others
def test_subnormal_results_on_an_instruction_set(name: str) -> None:
    assert_passes_on(name, "subnormal_results_are", [Path(__file__)])
