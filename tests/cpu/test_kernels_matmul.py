"""matmul against NumPy in fp64, rounded once."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from kernels import Array, poisoned, run, same_bits

TOLERANCE = {"float32": 1e-5, "float16": 1e-3}  # of the largest result; fp16 is one rounding of an fp32 sum
CONSTANT = pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
DTYPE = pytest.mark.parametrize("dtype", ["float32", "float16"])


def random(shape: Sequence[int], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def integers(shape: Sequence[int], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def matmul(
    x: Array,
    y: Array,
    bias: Array | None = None,
    *extra: Array,
    transpose_x: bool = False,
    transpose_y: bool = False,
    constant: bool = True,
    epilogue: Sequence[tuple[str, float, float, int]] = (),
    result: str = "",
) -> Array:
    """Computed whole, and the same bits in pieces of every cut."""
    a, b = (np.swapaxes(v, -1, -2) if swap else v for v, swap in ((x, transpose_x), (y, transpose_y)))
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    attrs = {"transpose_x": int(transpose_x), "transpose_y": int(transpose_y), "epilogue": epilogue}
    inputs = [x, y, bias, *extra]
    cut: dict[str, Any] = {"constants": [1, 2] if constant else []}
    kind = np.dtype(result or x.dtype)
    out = poisoned(shape, kind)
    run("matmul", inputs, [out], attrs, **cut)
    for which in range(len(shape)):
        for pieces in (3, 7):
            again = poisoned(shape, kind)
            run("matmul", inputs, [again], attrs, pieces=pieces, which=which, **cut)
            assert same_bits(out, again), f"{pieces} pieces of cut {which} differ from the whole"
    return out


def close(got: Array, want: Array) -> bool:
    scale = max(float(np.abs(want).max(initial=0)), 1e-30)
    return bool(np.abs(got - want).max(initial=0) <= TOLERANCE[got.dtype.name] * scale)


@CONSTANT
@DTYPE
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((1, 1), (1, 1)),
        ((5, 7), (7, 9)),
        ((1, 100), (100, 333)),
        ((3, 64), (64, 64)),
        ((7, 65), (65, 63)),
        ((17, 130), (130, 1000)),
        ((100, 33), (33, 17)),
        ((2, 3, 17, 65), (3, 65, 63)),
        ((2, 1, 5, 8), (1, 4, 8, 20)),
        ((6, 2, 33), (33, 40)),
        ((9, 1, 33), (9, 33, 129)),
        ((40, 30), (4, 30, 16)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
        ((3, 4), (4, 0)),
    ],
)
def test_matmul_is_numpys(dtype: str, constant: bool, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    a, b, bias = random(x, dtype, 1), random(y, dtype, 2), random(y[-1:], dtype, 3)
    want = a.astype(float) @ b.astype(float) + bias
    assert close(matmul(a, b, bias, constant=constant), want)


@CONSTANT
@DTYPE
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 20])
@pytest.mark.parametrize(("transpose_x", "transpose_y"), [(False, True), (True, False), (True, True)])
def test_matmul_of_transposed_operands(
    dtype: str, constant: bool, rows: int, transpose_x: bool, transpose_y: bool
) -> None:
    a, b = random((2, rows, 77), dtype, 1), random((2, 77, 70), dtype, 2)
    x = np.ascontiguousarray(np.swapaxes(a, 1, 2)) if transpose_x else a
    y = np.ascontiguousarray(np.swapaxes(b, 1, 2)) if transpose_y else b
    got = matmul(x, y, transpose_x=transpose_x, transpose_y=transpose_y, constant=constant)
    assert close(got, a.astype(float) @ b.astype(float))


@CONSTANT
@DTYPE
@pytest.mark.parametrize("rows", [1, 3, 13, 64])
def test_matmul_of_small_integers_is_exact(dtype: str, constant: bool, rows: int) -> None:
    x, y = integers((rows, 50), dtype, 1), integers((50, 35), dtype, 2)
    assert same_bits(matmul(x, y, constant=constant), (x.astype(float) @ y.astype(float)).astype(dtype))


@pytest.mark.parametrize("rows", [1, 2, 33])
def test_matmul_takes_fp16_weights_for_fp32_activations(rows: int) -> None:
    x, y, bias = random((rows, 70), "float32", 1), random((70, 90), "float16", 2), random((90,), "float32", 3)
    assert close(matmul(x, y, bias), x.astype(float) @ y.astype(float) + bias)
    assert close(matmul(x, y, bias, constant=False), x.astype(float) @ y.astype(float) + bias)


def test_matmul_reads_and_writes_strided_rows() -> None:
    x, y = random((3, 9, 80), "float32", 1)[:, 1::2, 5:45], random((3, 40, 50), "float32", 2)[:, :, 7:30]
    out = poisoned((3, 4, 40), "float32")[:, :, 3:26]
    run("matmul", [x, y, None], [out], {"transpose_x": 0, "transpose_y": 0, "epilogue": ()})
    assert close(out, x.astype(float) @ y.astype(float))


@DTYPE
@pytest.mark.parametrize("rows", [1, 20])
def test_matmul_bias_may_be_one_row(dtype: str, rows: int) -> None:
    x, y, bias = random((rows, 8), dtype, 1), random((8, 20), dtype, 2), random((1, 20), dtype, 3)
    assert close(matmul(x, y, bias, constant=False), x.astype(float) @ y.astype(float) + bias)


@CONSTANT
@DTYPE
@pytest.mark.parametrize("rows", [1, 2, 20])
@pytest.mark.parametrize("columns", [1, 16, 37, 64, 100])
def test_matmul_epilogue_applies_slots_in_order(dtype: str, constant: bool, rows: int, columns: int) -> None:
    x, y = random((2, rows, 8), dtype, 1), random((2, 8, columns), dtype, 2)
    bias, residual = random((columns,), dtype, 3), random((2, rows, columns), dtype, 4)
    sums = x.astype(float) @ y.astype(float) + bias
    add, relu, clip = ("add", 0.0, 0.0, 3), ("relu", 0.0, 0.0, -1), ("clip", -0.5, 1.5, -1)
    for epilogue, want in [
        ([relu], np.maximum(sums, 0)),
        ([add, relu], np.maximum(sums + residual, 0)),
        ([relu, add], np.maximum(sums, 0) + residual),
        ([add, clip], np.clip(sums + residual, -0.5, 1.5)),
        ([("tanh", 0.0, 0.0, -1), add], np.tanh(sums) + residual),
    ]:
        assert close(matmul(x, y, bias, residual, epilogue=epilogue, constant=constant), want)


@pytest.mark.parametrize("rows", [1, 8])
def test_matmul_carries_nan_and_infinity(rows: int) -> None:
    x, y = np.zeros((rows, 4), "float32"), np.ones((4, 3), "float32")
    x[0] = [np.nan, 1, 1, 1]
    relu = [("relu", 0.0, 0.0, -1)]
    assert np.isnan(matmul(x, y, epilogue=relu)[0]).all()
    x[0] = [np.inf, 1, 1, 1]
    assert np.isposinf(matmul(x, y, epilogue=relu)[0]).all()
    assert np.isposinf(matmul(np.full((rows, 4), 200, "float16"), np.full((4, 3), 200, "float16"))).all()


@pytest.mark.parametrize(
    ("x", "y", "bias", "out"),
    [
        ((4, 5), (6, 7), None, (4, 7)),
        ((4, 5), (5, 7), None, (4, 8)),
        ((4, 5), (5, 7), (6,), (4, 7)),
        ((4, 5), (5, 7), (4, 7), (4, 7)),
        ((2, 4, 5), (3, 5, 7), None, (2, 4, 7)),
        ((5,), (5, 7), None, (7,)),
        ((4, 5), (5, 7), None, (1, 4, 7)),
    ],
)
def test_matmul_refuses_shapes_that_do_not_fit(x: Any, y: Any, bias: Any, out: Any) -> None:
    operands = [np.ones(x, "float32"), np.ones(y, "float32"), None if bias is None else np.ones(bias, "float32")]
    with pytest.raises(Error, match=r"\[matmul\]"):
        run("matmul", operands, [np.ones(out, "float32")], {"transpose_x": 0, "transpose_y": 0, "epilogue": ()})


def test_matmul_refuses_an_epilogue_operand_of_another_shape() -> None:
    with pytest.raises(Error, match="epilogue"):
        matmul(
            np.ones((4, 5), "float32"),
            np.ones((5, 6), "float32"),
            None,
            np.ones((1, 6), "float32"),
            epilogue=[("add", 0.0, 0.0, 3)],
        )


def test_matmul_refuses_sizes_that_overflow() -> None:
    x = np.lib.stride_tricks.as_strided(np.ones(2, "float32"), (2**58, 2), (0, 4))
    y = np.lib.stride_tricks.as_strided(np.ones(1, "float32"), (2**58, 1), (0, 4))
    attrs = {"transpose_x": 1, "transpose_y": 0, "epilogue": ()}
    with pytest.raises(Error, match=r"2\^40"):
        run("matmul", [x, y, None], [np.zeros((2, 1), "float32")], attrs)


def test_matmul_packs_a_broadcast_batch_once() -> None:
    x, y = random((2**14, 1, 3), "float32", 1), random((3, 70), "float32", 2)
    everywhere = np.lib.stride_tricks.as_strided(y, (2**14, 3, 70), (0, *y.strides))
    assert close(matmul(x, everywhere), x.astype(float) @ y.astype(float))


@CONSTANT
@pytest.mark.parametrize(("rows", "terms"), [(16, 16), (37, 50), (15, 64), (200, 33), (1, 40), (48, 1)])
def test_a_transposed_left_operand_is_read_in_squares(rows: int, terms: int, constant: bool) -> None:
    """Whole squares of 16 x 16, and what is left of them at both edges. Integers: every sum is exact."""
    x, y = integers((terms, rows), "float32", rows), integers((terms, 21), "float32", terms)
    got = matmul(x, y, transpose_x=True, constant=constant)
    np.testing.assert_array_equal(got, x.T.astype(np.float64) @ y)


@DTYPE
@pytest.mark.parametrize(("transpose_x", "transpose_y"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(
    ("rows", "terms", "columns"),
    [(5, 512, 64), (30, 513, 33), (300, 40, 320), (270, 1100, 290), (40, 3000, 200), (700, 520, 30)],
)
def test_a_computed_operand_gives_the_bits_of_a_constant_one(
    dtype: str, transpose_x: bool, transpose_y: bool, rows: int, terms: int, columns: int
) -> None:
    """The first is packed block by block, with sums that are kept from one block to the next."""
    x = random((terms, rows) if transpose_x else (rows, terms), dtype, 1)
    y = random((columns, terms) if transpose_y else (terms, columns), dtype, 2)
    bias, extra = random((columns,), dtype, 3), random((rows, columns), dtype, 4)
    epilogue = [("add", 0.0, 0.0, 3), ("relu", 0.0, 0.0, -1)]
    constant, computed = (
        matmul(x, y, bias, extra, transpose_x=transpose_x, transpose_y=transpose_y, constant=c, epilogue=epilogue)
        for c in (True, False)
    )
    assert same_bits(constant, computed)


@pytest.mark.parametrize("extra", [(), (2,), (2, 3)], ids=str)
def test_computed_operands_of_many_matrices_give_the_bits_of_constant_ones(extra: tuple[int, ...]) -> None:
    x, y = random((*extra, 640, 33), "float32", 1), random((*extra[:1], *(1,) * len(extra[1:]), 640, 70), "float32", 2)
    assert same_bits(matmul(x, y, transpose_x=True), matmul(x, y, transpose_x=True, constant=False))


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "transpose_x"),
    [(500, 700, 96, False), (96, 200, 400, True), (400, 520, 96, True)],
    ids=["y is packed first", "x is converted first", "long, and x is converted in pieces"],
)
def test_threads_that_share_a_product_of_computed_operands_give_its_bits(
    rows: int, terms: int, columns: int, transpose_x: bool
) -> None:
    x = random((terms, rows) if transpose_x else (rows, terms), "float32", 1)
    y = random((terms, columns), "float32", 2)
    product = hx.matmul(hx.input("x", x.shape), hx.input("y", y.shape), transpose_x=transpose_x)
    one, three = (hx.compile({"z": product}, threads=n)(x=x, y=y) for n in (1, 3))
    assert same_bits(one, three)


HALVES = pytest.mark.parametrize("halves", [(True, True), (True, False), (False, True)], ids=["both", "x", "y"])


@HALVES
@CONSTANT
@pytest.mark.parametrize(("transpose_x", "transpose_y"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((1, 40), (40, 33)),
        ((3, 70), (70, 64)),
        ((16, 16), (16, 16)),
        ((30, 513), (513, 33)),
        ((270, 256), (256, 290)),
        ((700, 1100), (1100, 30)),
        ((2, 3, 17, 65), (3, 65, 63)),
        ((5, 3, 8), (8, 20)),
        ((40, 30), (4, 30, 16)),
        ((3, 0), (0, 5)),
    ],
)
def test_a_product_of_halves_in_fp32_has_the_bits_of_one_of_floats(
    x: tuple[int, ...],
    y: tuple[int, ...],
    transpose_x: bool,
    transpose_y: bool,
    constant: bool,
    halves: tuple[bool, bool],
) -> None:
    def operand(shape: tuple[int, ...], turned: bool, half: bool, seed: int) -> Array:
        made = random((*shape[:-2], shape[-1], shape[-2]) if turned else shape, "float16", seed)
        return made if half else made.astype("float32")

    a, b = operand(x, transpose_x, halves[0], 1), operand(y, transpose_y, halves[1], 2)
    shape = (*np.broadcast_shapes(x[:-2], y[:-2]), x[-2], y[-1])
    bias, extra = random(shape[-1:], "float32", 3), random(shape, "float32", 4)
    epilogue = [("add", 0.0, 0.0, 3), ("relu", 0.0, 0.0, -1)]
    want, got = (
        matmul(
            *operands, bias, extra, transpose_x=transpose_x, transpose_y=transpose_y, constant=constant,
            epilogue=epilogue, result="float32",
        )
        for operands in ((a.astype("float32"), b.astype("float32")), (a, b))
    )  # fmt: skip
    assert same_bits(want, got)


@pytest.mark.parametrize(("transpose_x", "transpose_y"), [(False, True), (True, False)])
def test_a_product_of_halves_reads_strided_rows(transpose_x: bool, transpose_y: bool) -> None:
    x, y = random((3, 90, 80), "float16", 1)[:, 1::2, 5:50], random((3, 50, 90), "float16", 2)[:, 3:48, 7:52]
    attrs = {"transpose_x": int(transpose_x), "transpose_y": int(transpose_y), "epilogue": ()}
    want, got = poisoned((3, 45, 45), "float32"), poisoned((3, 45, 50), "float32")[:, :, 2:47]
    run("matmul", [x, y, None], [got], attrs)
    run("matmul", [x.astype("float32"), y.astype("float32"), None], [want], attrs)
    assert same_bits(want, np.ascontiguousarray(got))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float16", "float16"), ("float16", "float32")])
@pytest.mark.parametrize(
    "shapes", [((3, 40), (40, 37)), ((70, 9), (9, 150)), ((2, 65, 1500), (2, 1500, 33)), ((4, 0), (0, 5))]
)
def test_a_product_is_added_where_the_sum_lies(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], dtypes: tuple[str, str], first: bool
) -> None:
    """With the bits of a product that is added afterwards; what the sum held before the first one does not matter."""
    x, y = (random(s, d, i) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True)))
    for turned in (False, True):
        operands = [np.ascontiguousarray(np.swapaxes(v, -1, -2)) if turned else v for v in (x, y)]
        attrs = {"transpose_x": turned, "transpose_y": turned}
        product = matmul(*[v.astype("float32") for v in operands], **attrs, constant=False)
        old = np.full_like(product, np.nan) if first else random(product.shape, "float32", 7)
        want = product if first else old + product
        given = [*operands, old, np.array([first])]
        out = poisoned(want.shape, np.dtype("float32"))
        run("accumulating_matmul", given, [out], attrs)
        assert same_bits(out, want)
        for which in range(want.ndim):
            over = old.copy()
            run("accumulating_matmul", [*operands, over, given[3]], [over], attrs, pieces=3, which=which)
            assert same_bits(over, want)


@pytest.mark.parametrize(
    ("s", "first", "message"),
    [
        (np.zeros((2, 3), "float32"), np.array([True]), "another shape or dtype"),
        (np.zeros((2, 4), "float32"), np.array([True, False]), "first: got the shape"),
    ],
)
def test_a_sum_that_does_not_fit_is_refused(s: Array, first: Array, message: str) -> None:
    x, y, out = np.zeros((2, 5), "float32"), np.zeros((5, 4), "float32"), np.zeros((2, 4), "float32")
    with pytest.raises(Error, match=message):
        run("accumulating_matmul", [x, y, s, first], [out], {"transpose_x": 0, "transpose_y": 0})


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 24, 25, 61])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (33, 17), (70, 130), (600, 65), (1100, 16), (0, 5)])
@pytest.mark.parametrize("transpose_y", [False, True])
@CONSTANT
def test_a_matrix_in_bf16_is_widened_as_it_is_read(
    rows: int, k: int, n: int, transpose_y: bool, constant: bool
) -> None:
    """The bits of fp32, of subnormal numbers and infinities too, in pieces of every cut."""
    x, bias = random((rows, k), "float32", 1), random((n,), "float32", 2)
    y = (random((k, n), "float32", 3) * 0.1).astype(ml_dtypes.bfloat16)
    y.reshape(-1)[::5] = 1e-40
    y.reshape(-1)[7:8] = np.inf
    given = np.ascontiguousarray(y.T if transpose_y else y)
    attrs = {"transpose_x": 0, "transpose_y": int(transpose_y), "epilogue": [("relu", 0.0, 0.0, -1)]}
    cut: dict[str, Any] = {"constants": [1, 2] if constant else []}
    want, out = (poisoned((rows, n), np.dtype("float32")) for _ in range(2))
    run("matmul", [x, given.astype(np.float32), bias], [want], attrs, constants=[1, 2])
    run("widening_matmul", [x, given, bias], [out], attrs, **cut)
    assert same_bits(out, want)
    for which in range(2):
        again = poisoned((rows, n), np.dtype("float32"))
        run("widening_matmul", [x, given, bias], [again], attrs, pieces=3, which=which, **cut)
        assert same_bits(again, want)


@pytest.mark.parametrize("rows", [1, 24, 25, 70])
def test_a_large_matrix_in_fp16_is_widened_for_many_rows(rows: int) -> None:
    x, y = random((rows, 700), "float32", 1), random((700, 200), "float16", 2)
    wide = matmul(x, y.astype(np.float32))
    assert same_bits(matmul(x, y), wide)
