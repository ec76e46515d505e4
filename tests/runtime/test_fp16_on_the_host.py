"""Networks of the host in fp16: what fp16 holds comes out, though the squares or sums on the way are beyond it."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.ops.reference import run_reference

LAST = {"axes": (-1,)}
FORMS: dict[str, Callable[[hx.Tensor], hx.Tensor]] = {
    "l2_norm": hx.l2_norm,
    "lp_norm of squares": lambda x: hx.lp_norm(x, p=2, axis=-1),
    "lp_norm of sizes": lambda x: hx.lp_norm(x, p=1, axis=-1),
    "mean_variance_norm": lambda x: hx.mean_variance_norm(x, axes=-1),
    "a distance": lambda x: hx.sqrt(hx.reduce_sum(hx.square(x), **LAST)),
    "x over its root mean square": lambda x: x * hx.rsqrt(hx.reduce_mean(x * x, **LAST) + 1e-9),
    "E[x^2] - E[x]^2": lambda x: (
        (x - hx.reduce_mean(x, **LAST))
        / hx.sqrt(hx.reduce_mean(x * x, **LAST) - hx.square(hx.reduce_mean(x, **LAST)) + 1e-9)
    ),
    "sum / n": lambda x: hx.reduce_sum(hx.abs(x), **LAST) / 256.0,
    "pow and reduce_sum": lambda x: x / hx.pow(hx.reduce_sum(hx.pow(x, 2.0), **LAST), 0.5),
}


@pytest.mark.parametrize("size", [3e-4, 1.0, 300.0, 10_000.0])
@pytest.mark.parametrize("name", FORMS)
def test_a_result_within_fp16_is_right(name: str, size: float) -> None:
    graph = hx.graph(FORMS[name](hx.input("x", (2, 8, 256))))
    x = (np.random.default_rng(3).standard_normal((2, 8, 256)) * size).astype(np.float16).astype(np.float32)
    (want,) = run_reference(graph, {"x": x}).values()
    if np.abs(want).max() > 65504:
        pytest.skip("fp16 does not hold the result")
    got = np.asarray(hx.compile(graph, dtype="fp16")(x), np.float64)
    assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("large", [5.0, 20.0, 60.0])
def test_exponentials_beyond_fp16_are_divided_or_made_logarithms(large: float) -> None:
    x = hx.input("x", (4, 32))
    e = hx.exp(x)
    graph = hx.graph({
        "softmax": e / hx.reduce_sum(e, **LAST),
        "logarithm": hx.log(hx.reduce_sum(e, **LAST)),
        "softplus": hx.log(1.0 + e),
        "sigmoid": 1.0 / (1.0 + hx.exp(-x)),
    })  # fmt: skip
    data = np.random.default_rng(2).uniform(-large, large, (4, 32)).astype(np.float16).astype(np.float32)
    want = run_reference(graph, {"x": data})
    got = hx.compile(graph, dtype="fp16")(data)
    for name, array in got.items():
        assert np.linalg.norm(array - want[name]) <= 3e-3 * np.linalg.norm(want[name]), name
