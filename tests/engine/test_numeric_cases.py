"""Single numbers that others saw on silicon, one by one: products on M6 and M4, elementwise ops on M6, M4 and M1."""

from collections.abc import Sequence

import numpy as np
import pytest
from test_engine_planar import assert_same, binary, unary
from test_engine_products import engine_matmul

INF, NAN = float("inf"), float("nan")
UNIT = 2.0**-16
Factors = Sequence[tuple[float, float]]


def ones(*terms: float) -> Factors:
    return [(term, 1.0) for term in terms]


# Factors, bias, result.
PRODUCTS: list[tuple[Factors, float, float]] = [
    # Where the accumulator overflows.
    (ones(32752), 0, 32752),
    (ones(32768), 0, INF),
    (ones(32784), 0, INF),
    (ones(65504), 0, INF),
    (ones(-32752), 0, -32752),
    (ones(-32768), 0, -INF),
    (ones(16384, 16368), 0, 32752),
    (ones(16384, 16376), 0, 32768),
    (ones(16384, 16384), 0, INF),
    (ones(30000, 2768), 0, INF),
    (ones(16384, 16384, -16384, -16384, 1), 0, INF),
    (ones(30000, 30000, -30000, -30000, 1), 0, INF),
    ([(65504, 2.0**-4)], 0, 4094),
    ([(127, 256)], 0, 32512),
    ([(128, 256)], 0, INF),
    # What it keeps.
    ([(16384, 1), (UNIT, 1), (-16384, 1)], 0, UNIT),
    ([(16384, 1), (2.0**-18, 1), (-16384, 1)], 0, 0),
    ([(1024, 1), (UNIT, 1), (-1024, 1)], 0, UNIT),
    # How the result is rounded.
    (ones(2048, 1), 0, 2050),
    (ones(-2048, -1), 0, -2050),
    (ones(2050, 1), 0, 2052),
    (ones(1, 2.0**-11), 0, 1 + 2.0**-10),
    (ones(1, 2.0**-12), 0, 1),
    (ones(1, 2.0**-11, -(2.0**-13)), 0, 1),
    (ones(4096, 2), 0, 4100),
    (ones(4096, 6), 0, 4104),
    (ones(-4096, -2), 0, -4100),
    (ones(-0.0), 0, 0),
    # How a product is.
    (ones(2.0**-15), 0, 2.0**-15),
    (ones(2.0**-16), 0, UNIT),
    (ones(2.0**-17), 0, UNIT),
    (ones(2.0**-18), 0, 0),
    (ones(1.5 * 2.0**-16), 0, 2 * UNIT),
    (ones(1.5 * 2.0**-17), 0, UNIT),
    (ones(1.5 * 2.0**-18), 0, 0),
    ([(2.0**-8, 2.0**-8)], 0, UNIT),
    ([(2.0**-10, 2.0**-8)], 0, 0),
    # And when it is dropped.
    ([(1.875 * 2.0**-3, 1.875 * 2.0**-14)], 0, 0),
    ([(1.99 * 2.0**-3, 1.99 * 2.0**-14)], 0, 0),
    ([(0.125, 1.5 * 2.0**-13)], 0, 2 * UNIT),
    ([(0.25, 0.5 * 2.0**-14)], 0, UNIT),
    # The bias.
    (ones(16384, 16384), -16384, 16384),
    (ones(16384, 16384, 16384), -16384, INF),
    (ones(32752), 32, INF),
    (ones(0), 2.0**-20, 0),
    (ones(0), 2.0**-17, UNIT),
    (ones(2.0**-17), 2.0**-17, 2.0**-15),
    (ones(0.25), 1000.5, 1001),
    # Exponent 31 is a number.
    (ones(INF), 0, INF),
    (ones(NAN), 0, INF),
]


@pytest.mark.parametrize(("factors", "bias", "want"), PRODUCTS)
def test_products(factors: Factors, bias: float, want: float) -> None:
    x, w = (np.array(side, np.float16) for side in zip(*factors, strict=True))
    got = engine_matmul(x[None], w[:, None], np.array([bias], np.float16))
    assert_same(got, np.array([[want]], np.float16))


@pytest.mark.parametrize("terms", [4, 16, 128])
def test_the_sum_overflows_at_one_place_whatever_its_length(terms: int) -> None:
    """Equal terms of a total, each rounded to fp16: on every chip it becomes infinite near 32759."""
    for total, finite in ((32758, True), (32761, False)):
        x = np.full((1, terms), total / terms, np.float16)
        assert np.isfinite(engine_matmul(x, np.ones((terms, 1), np.float16)))[0, 0] == finite


BINARY = [
    ("add", 2048, 1, 2050),
    ("add", 65504, 0, 65504),
    ("add", 16384, 16384, 32768),
    ("add", 40000, 1, 40000),
    ("add", 2.0**-24, 0, 2.0**-24),
    ("mul", 2.0**-12, 2.0**-12, 2.0**-24),
    ("mul", 256, 256, INF),
    ("add", NAN, 1, INF),
    ("add", NAN, 0, INF),
    ("sub", INF, INF, 0),
    ("mul", 0, INF, 0),
    ("real_div", 1, -0.0, INF),
    ("add", -0.0, 0, 0),
]


@pytest.mark.parametrize(("op", "a", "b", "want"), BINARY)
def test_two_operands(op: str, a: float, b: float, want: float) -> None:
    assert_same(binary(op, np.float16([a]), np.float16([b])), np.float16([want]))


UNARY = [
    ("relu", NAN, INF),
    ("sigmoid", NAN, 1),
    ("tanh", NAN, 1),
    ("erf", NAN, 1),
    ("exp", NAN, INF),
    ("sqrt", -1, 0),
    ("rsqrt", -1, 0),
    ("log", -1, 0),
    ("inverse", -0.0, INF),
    ("rsqrt", -0.0, INF),
    ("sqrt", -0.0, 0),
    ("softplus", INF, 0),
    ("softplus", 10.3984375, 0),  # coremltools#2687: 0 above 10.394 on M3 Max and M4
    ("softplus", 10.390625, 10.390625),
    ("softsign", INF, 0),
    ("log", 0, -45440),
    ("exp", 11.0859375, 65184),
    ("exp", 11.09375, INF),
]


@pytest.mark.parametrize(("op", "x", "want"), UNARY)
def test_one_operand(op: str, x: float, want: float) -> None:
    assert_same(unary(op, np.float16([x])), np.float16([want]))
