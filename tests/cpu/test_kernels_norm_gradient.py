"""rms_norm_gradient against the formula in fp64, and against finite differences of the norm itself."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from hexane.graph import Array
from hexane.ops import OPS
from hexane.ops.reference import run_reference
from kernels import poisoned, run, same_bits

OP = OPS["rms_norm_gradient"]


def operands(shape: tuple[int, ...], scale: float = 1.0) -> list[Array]:
    rng = np.random.default_rng(sum(shape))
    x, g = rng.standard_normal((2, *shape))
    return [(x * scale).astype(np.float32), g.astype(np.float32), rng.uniform(0.5, 2, shape[-1:]).astype(np.float32)]


def gradients(given: list[Array], epsilon: float) -> list[Array]:
    """Computed whole, and the same bits in pieces of every cut."""
    shape = given[0].shape
    made = [poisoned(shape, "float32") for _ in range(2)]
    run("rms_norm_gradient", given, made, {"epsilon": epsilon})
    for which in range(sum(n > 1 for n in shape[:-1])):
        again = [poisoned(shape, "float32") for _ in range(2)]
        run("rms_norm_gradient", given, again, {"epsilon": epsilon}, pieces=2, which=which)
        assert all(map(same_bits, made, again))
    return made


@pytest.mark.parametrize("scale", [1.0, 1e-4, 300.0])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 16), (5, 33), (2, 3, 768), (2, 1, 2, 5000), (1, 20001), (0, 4)])
def test_gradients_are_those_of_the_formula(shape: tuple[int, ...], scale: float) -> None:
    """To the digits of what is subtracted."""
    given = operands(shape, scale)
    x, g, gamma = (a.astype(np.float64) for a in given)
    assert OP.ref is not None
    want = OP.ref(x, g, gamma, epsilon=1e-5)
    root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    sizes = [np.abs(g * gamma / root).max(initial=0), np.abs(g * x / root).max(initial=0)]
    for one, right, size in zip(gradients(given, 1e-5), want, sizes, strict=True):
        assert np.abs(one - right).max(initial=0) <= 2e-6 * size


def test_gradients_are_differences_of_the_norm() -> None:
    x, g, gamma = (a.astype(np.float64) for a in operands((3, 6)))

    def loss(x: Array) -> Array:
        root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-3)
        return np.sum(x / root * gamma * g)

    made = gradients([a.astype(np.float32) for a in (x, g, gamma)], 1e-3)
    step = 1e-5
    for at in np.ndindex(x.shape):
        one = np.zeros_like(x)
        one[at] = step
        assert made[0][at] == pytest.approx((loss(x + one) - loss(x - one)) / (2 * step), abs=2e-5)


@pytest.mark.parametrize("rows", [(4,), (2, 3)])
def test_a_step_computes_them_in_one_pass(rows: tuple[int, ...]) -> None:
    """With the numbers of the ops that they are written out in."""
    gamma, w = (hx.param(n, operands((24,))[i]) for n, i in (("gamma", 2), ("w", 0)))
    x = hx.input("x", (*rows, 24))
    loss = hx.reduce_sum(hx.square(hx.rms_norm(x * w, gamma)))
    graph = hx.graph(dict(zip(("gamma", "w"), hx.grad(loss, [gamma, w]), strict=True)))
    net = hx.compile(graph, threads=1)
    assert isinstance(net, hx.Model)
    assert [s["kernel"] for s in net.steps].count("rms_norm_gradient") == 1
    feeds = {"x": operands((*rows, 24))[1]}
    want = run_reference(graph, feeds)
    for name, array in net(**feeds).items():
        np.testing.assert_allclose(array, want[name], rtol=2e-5, atol=2e-5)


WRONG: list[tuple[dict[int, Any], str]] = [
    ({1: np.zeros((3, 5), np.float32)}, r"input|\(3, 5\)"),
    ({2: np.zeros(5, np.float32)}, r"gamma: got the shape \(5,\), need one number"),
    ({2: np.zeros((1, 4), np.float32)}, "gamma: got the shape"),
]


@pytest.mark.parametrize(("changed", "told"), WRONG)
def test_operands_that_do_not_fit_are_refused(changed: dict[int, Array], told: str) -> None:
    given = operands((3, 4))
    for i, array in changed.items():
        given[i] = array
    with pytest.raises(Error, match=told):
        run("rms_norm_gradient", given, [np.zeros((3, 4), np.float32) for _ in range(2)], {"epsilon": 1e-5})
