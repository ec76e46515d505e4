"""Arithmetic of integers in the C99 runtime, remainders of floats, sums along an axis and whole reductions."""

from typing import Any

import numpy as np
import pytest
from test_c99_choices import NAMES, numbers, one_step
from test_c99_kernels import assert_near, assert_same_bits, both
from test_c99_promises import plan_of

import hexane as hx
from hexane.emit.c99 import generate
from hexane.emit.plan_view import PlanView
from plans import PlanBuilder

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]
SIGNED = [name for name in INTEGERS if name[0] == "i"]
FUSED = ("add", "sub", "mul", "real_div")
BINARY = [*FUSED, "floor_div", "mod", "fmod", "maximum", "minimum", "pow", "prelu"]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kernel", [*BINARY, *BITS])
def test_integers_have_the_hosts_bits(c99, kernel: str, dtype: str) -> None:
    a, b = numbers(dtype, (3, 1, 60)), numbers(dtype, (5, 60), 1)
    ends = np.iinfo(dtype)
    edges = np.array([ends.min, ends.min + 1, -1 if ends.min else 1, 0, 1, ends.max], dtype)
    a[0, 0, :36], b[0, :36] = np.repeat(edges, 6), np.tile(edges, 6)
    attrs: dict[str, Any] = {"epilogue": []} if kernel in FUSED else {}
    assert_same_bits(*both(one_step(kernel, [a, b], (3, 5, 60), NAMES[dtype], **attrs), [a, b], c99))


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("kernel", ["abs", "neg", "sign", "relu", "square"])
def test_functions_of_integers_have_the_hosts_bits(c99, kernel: str, dtype: str) -> None:
    x = numbers(dtype, (4, 50))
    x[0, :3] = np.iinfo(dtype).min, np.iinfo(dtype).max, 0
    assert_same_bits(*both(one_step(kernel, [x], (4, 50), NAMES[dtype]), [x], c99))


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("bounds", [(-3.5, 2.5), (0, np.inf), (-np.inf, -1.25), (1e30, 1e31), (-2, 3)])
def test_integers_are_clipped_as_on_the_host(c99, dtype: str, bounds: tuple[float, float]) -> None:
    x = numbers(dtype, (4, 50))
    assert_same_bits(*both(one_step("clip", [x], (4, 50), NAMES[dtype], alpha=bounds[0], beta=bounds[1]), [x], c99))


@pytest.mark.parametrize("kernel", ["floor_div", "mod", "fmod"])
def test_remainders_of_floats_have_the_hosts_bits(c99, kernel: str) -> None:
    rng = np.random.default_rng(3)
    a, b = numbers("float32", (4000,)), numbers("float32", (4000,), 1)
    a[:1000] = rng.integers(-(1 << 24), 1 << 24, 1000)
    b[:1000] = rng.choice([0.1, -0.1, 3, -3, 7.25, 1e-3], 1000)
    a[1000:1200], b[1000:1100] = rng.standard_normal(200) * 1e-41, 3e-42
    got, need = both(one_step(kernel, [a, b], a.shape, "fp32"), [a, b], c99)
    assert np.array_equal(got, need, equal_nan=True)
    numeric = need == need
    assert np.array_equal(np.signbit(got[numeric]), np.signbit(need[numeric]))


@pytest.mark.parametrize("dtype", [*SIGNED, "uint8", "float32"])
@pytest.mark.parametrize(("axis", "exclusive", "reverse"), [(-1, 0, 0), (1, 1, 0), (0, 0, 1), (2, 1, 1)])
def test_sums_along_an_axis_have_the_hosts_bits(c99, dtype: str, axis: int, exclusive: int, reverse: int) -> None:
    x = (
        numbers(dtype, (3, 7, 40))
        if dtype != "float32"
        else np.float32(np.random.default_rng(1).normal(0, 9, (3, 7, 40)))
    )
    plan = one_step("cumsum", [x], x.shape, NAMES[dtype], axis=axis, exclusive=exclusive, reverse=reverse)
    assert_same_bits(*both(plan, [x], c99))


@pytest.mark.parametrize("dtype", [*SIGNED, "uint8"])
@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"])
@pytest.mark.parametrize(("axes", "shape"), [([-1], (3, 5)), ([0, 2], (5,)), ([], ())])
def test_reductions_of_integers_have_the_hosts_bits(c99, op: str, dtype: str, axes: list[int], shape: Any) -> None:
    x = numbers(dtype, (3, 5, 40))
    plan = one_step(op, [x], shape, NAMES[dtype], axes=axes, keep_dims=0)
    assert_same_bits(*both(plan, [x], c99))


def test_products_are_near_the_hosts(c99) -> None:
    x = np.random.default_rng(5).uniform(0.5, 1.5, (6, 300)).astype(np.float32)
    assert_near(*both(one_step("reduce_prod", [x], (6,), "fp32", axes=[1], keep_dims=0), [x], c99))


def test_only_a_plan_that_computes_with_integers_has_their_arithmetic() -> None:
    """Its code is an app's only where a step needs it; a plan with it is refused elsewhere."""

    def made(dtype: str) -> tuple[PlanView, str]:
        x, y = (hx.input(name, (4,), dtype) for name in "xy")
        net = hx.compile(hx.graph(x + y), target="host", threads=1, memory=hx.Memory(runtime="c99"))
        data = plan_of(net)
        return PlanView(data), generate(data, "net", app=True)["Makefile"]

    (floats, without), (integers, whole) = made("fp32"), made("int32")
    assert (floats.has_integers(), "-DHX_NO_INTEGERS" in without) == (False, True)
    assert (integers.has_integers(), "-DHX_NO_INTEGERS" in whole) == (True, False)


def test_a_kernel_of_floats_refuses_a_mixture(c99) -> None:
    a, b = numbers("int32", (4,)), numbers("int64", (4,))
    plan: PlanBuilder = one_step("add", [a, b], (4,), "int32", epilogue=[])
    with pytest.raises(hx.Error):
        both(plan, [a, b], c99)
