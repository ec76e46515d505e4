"""The products of one element: against the op's own reference, and the accumulator against exact integers."""

import numpy as np
import pytest

import engine_model
from cases import arrays, graph_of
from hexane.graph import Array
from hexane.ops import OPS, evaluate
from hexane.ops.spec import Case
from hexane.runtime.products import accumulate, has_products, sum_of

CASES = [(name, case) for name in ("conv", "conv_transpose", "matmul", "linear") for case in OPS[name].cases]


@pytest.mark.parametrize(("name", "case"), CASES, ids=lambda v: v if isinstance(v, str) else str(v.shapes)[:40])
def test_products_of_an_element_add_up_to_it(name: str, case: Case) -> None:
    given = arrays(OPS[name], case)
    if any(a is not None and a.dtype != np.float32 for a in given) or given[0] is None or given[0].ndim < 2:
        pytest.skip("not a product of fp32 matrices")
    node = graph_of(OPS[name], case, given).outputs[0].value.node
    given += [None] * (len(node.inputs) - len(given))
    assert has_products(node)
    (want,) = evaluate(node, given)
    rng = np.random.default_rng(0)
    for flat in rng.choice(want.size, min(want.size, 12), replace=False):
        index = tuple(int(i) for i in np.unravel_index(flat, want.shape))
        assert np.isclose(sum_of(node, index, given).exact, want[index], rtol=1e-6, atol=1e-6)


def numbers(rng: np.random.Generator, count: int, scale: float) -> Array:
    return (rng.standard_normal(count) * scale * np.exp2(rng.integers(-8, 1, count))).astype(np.float16)


@pytest.mark.parametrize("scale", [1e-4, 2e-3, 0.1, 4.0, 120.0])
def test_the_accumulator_is_that_of_exact_integers(scale: float) -> None:
    rng = np.random.default_rng(int(scale * 1e4))
    for _ in range(30):
        x, w, bias = numbers(rng, 40, scale), numbers(rng, 40, scale), numbers(rng, 1, scale)
        found = accumulate([((k,), (k,)) for k in range(40)], x, w, float(bias[0]))
        start = int(engine_model.number(bias)[0])
        terms = engine_model.products(x, w)
        np.testing.assert_array_equal(found.counted, terms * 2.0**-16)
        over = np.flatnonzero(np.abs(start + np.cumsum(terms)) >= engine_model.LIMIT)
        assert found.overflow == (int(over[0]) if over.size else None)
        total = found.exact - found.lost_by_drops - found.lost_by_rounding
        assert np.isclose(total, float(bias[0]) + terms.sum() * 2.0**-16, rtol=1e-12, atol=1e-12)


def test_drops_and_overflow_known_by_hand() -> None:
    tiny = np.float16(
        [2.0**-9, 2.0**-9, 1.0]
    )  # 2^-9 * 2^-9 is below half of 2^-16, 2^-9 * 2^-8 is dropped at exponents of -17
    found = accumulate([((0,), (0,)), ((1,), (1,)), ((2,), (2,))], tiny, np.float16([2.0**-9, 1.9 * 2.0**-8, 1.0]))
    assert found.dropped.tolist() == [True, True, False]
    assert found.partial.tolist() == [0.0, 0.0, 1.0]
    full = np.full(4, 128.0, np.float16)
    over = accumulate([((k,), (k,)) for k in range(4)], full, full)
    assert over.overflow == 1  # 128 * 128 twice is 32768
    assert accumulate([((0,), (0,))], full, full, bias=40000.0).overflow == -1
