"""attention_gradient against the formula in fp64, and against finite differences of the attention itself."""

from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from hexane.graph import Array
from hexane.ops import OPS
from kernels import poisoned, run, same_bits

OP = OPS["attention_gradient"]


def operands(shape: tuple[int, ...], seed: int = 0) -> list[Array]:
    return list(np.random.default_rng(seed).standard_normal((4, *shape)).astype(np.float32))


def gradients(given: list[Array], mask: Array | None = None, **attrs: Any) -> list[Array]:
    """Computed whole, and the same bits in pieces of every cut."""
    attrs = {"scale": 1.0, "causal": 0, "hidden": -np.inf} | attrs
    shape = given[0].shape
    made = [poisoned(shape, "float32") for _ in range(3)]
    run("attention_gradient", [*given, mask], made, attrs)
    for which in range(sum(n > 1 for n in shape[:-2])):
        again = [poisoned(shape, "float32") for _ in range(3)]
        run("attention_gradient", [*given, mask], again, attrs, pieces=2, which=which)
        assert all(map(same_bits, made, again))
    return made


def check(given: list[Array], mask: Array | None = None, **attrs: Any) -> None:
    wide = [a.astype(np.float64) for a in given]
    exact = mask if mask is None or mask.dtype == np.bool_ else mask.astype(np.float64)
    assert OP.ref is not None
    want = OP.ref(*wide, exact, **{"scale": 1.0, "causal": False, "hidden": -np.inf} | attrs)
    for one, right in zip(gradients(given, mask, **attrs), want, strict=True):
        assert np.abs(one - right).max(initial=0) <= 4e-6 * max(np.abs(right).max(initial=0), 1e-30)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (3, 5), (48, 16), (49, 17), (2, 3, 100, 40), (2, 1, 33, 130), (600, 24), (0, 4, 8), (2, 0, 8), (2, 4, 0)],
)
def test_gradients_are_those_of_the_formula(shape: tuple[int, ...], causal: bool) -> None:
    check(operands(shape), scale=0.3, causal=causal)


@pytest.mark.parametrize("hidden", [-np.inf, -1.5])
@pytest.mark.parametrize("shape", [(70, 70), (1, 70), (70, 1), (3, 70, 70), (2, 1, 1, 70)])
def test_a_bool_mask_hides_scores(shape: tuple[int, ...], hidden: float) -> None:
    mask = np.random.default_rng(1).random(shape) > 0.4
    if not np.isfinite(hidden):
        mask[..., 0] = True  # a row without any score has no gradient
    check(operands((2, 3, 70, 20)), mask, scale=0.25, hidden=hidden)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("shape", [(70, 70), (70,), (3, 1, 70)])
def test_a_mask_of_numbers_is_added(shape: tuple[int, ...], causal: bool) -> None:
    check(operands((3, 70, 20)), np.random.default_rng(1).standard_normal(shape).astype(np.float32), causal=causal)


def test_operands_may_be_views_whose_rows_are_dense() -> None:
    whole = np.random.default_rng(2).standard_normal((2, 60, 4, 3, 16)).astype(np.float32)
    given = [whole[:, :, i].transpose(0, 2, 1, 3) for i in range(4)]
    dense = [np.ascontiguousarray(a) for a in given]
    assert all(map(same_bits, gradients(given, scale=0.5), gradients(dense, scale=0.5)))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_gradients_are_slopes_of_the_attention(causal: bool) -> None:
    """By finite differences of the op itself, whose reference shares no line with the formula."""
    given = [a.astype(np.float64) for a in operands((2, 6, 3))]
    attention = OPS["scaled_dot_product_attention"].ref
    assert attention is not None

    def total(*inputs: Array) -> float:
        y = attention(*inputs, None, scale=0.7, causal=causal, zero_hidden=False, hidden=-np.inf)
        return float((y * given[3]).sum())

    made = gradients([a.astype(np.float32) for a in given], scale=0.7, causal=int(causal))
    for place, gradient in enumerate(made):
        for index in np.ndindex(gradient.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = [a.copy() for a in given[:3]]
                moved[place][index] += step
                sides.append(total(*moved))
            assert gradient[index] == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=2e-5)


def test_what_is_not_finite_stays_so() -> None:
    given = operands((40, 8))
    given[3][5, 2] = np.nan
    made = gradients(given)
    assert np.isnan(made[0][5]).all()
    assert np.isfinite(made[0][np.arange(40) != 5]).all()
    assert np.isnan(made[1]).all()
    assert np.isnan(made[2][:, 2]).all()


@pytest.mark.parametrize(
    ("shapes", "mask", "error"),
    [
        ([(8, 4), (9, 4), (8, 4), (8, 4)], None, "shape"),
        ([(4,)] * 4, None, "query rank"),
        ([(8, 4)] * 4, (7, 8), "mask"),
        ([(8, 4)] * 4, (2, 8, 8), "mask"),
    ],
)
def test_operands_that_do_not_fit_are_refused(shapes: Any, mask: Any, error: str) -> None:
    given = [np.zeros(s, np.float32) for s in shapes]
    outputs = [np.zeros(shapes[0], np.float32) for _ in range(3)]
    with pytest.raises(Error, match=error):
        run(
            "attention_gradient",
            [*given, None if mask is None else np.ones(mask, np.bool_)],
            outputs,
            {"scale": 1.0, "causal": 0, "hidden": -np.inf},
        )
