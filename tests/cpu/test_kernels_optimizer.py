"""adam_step, lion_step, momentum_step and sgd_step: against their records, in pieces, and over their operands."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.build import FUNCTIONS
from hexane.graph import Array
from hexane.ops.reference import run_reference

STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "adam_step": (2, {"decay": 0.1}),
    "lion_step": (1, {"decay": 0.1}),
    "momentum_step": (1, {"nesterov": True, "decay": 0.1}),
    "sgd_step": (0, {"decay": 0.1}),
}
MOMENTS = ("m", "v")


def arrays(shape: tuple[int, ...], num_moments: int, apply: bool) -> dict[str, Array]:
    rng = np.random.default_rng(len(shape))
    w, g, m, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(4))
    rates = np.array([0.01, 1.5, 1.2, 0.5, apply], np.float32)
    moments = dict(zip(MOMENTS[:num_moments], (m, np.abs(v)), strict=False))
    return {"w": w, "g": g, **moments, "rates": rates}


@pytest.mark.parametrize("apply", [True, False])
@pytest.mark.parametrize("shape", [(1,), (17,), (3, 1029), (2, 5, 7, 9), (0, 4)])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_what_its_record_says(name: str, shape: tuple[int, ...], apply: bool) -> None:
    num_moments, attrs = STEPS[name]
    feeds = arrays(shape, num_moments, apply)
    results = FUNCTIONS[name](*[hx.input(n, a.shape) for n, a in feeds.items()], **attrs)
    outputs = results if isinstance(results, tuple) else (results,)
    graph = hx.graph({f"y{i}": t for i, t in enumerate(outputs)})
    want = list(run_reference(graph, feeds).values())
    for threads in (1, 2):
        got = hx.compile(graph, threads=threads)(feeds)
        for i, array in enumerate(want):
            one = got[f"y{i}"] if len(want) > 1 else got
            np.testing.assert_allclose(one, array, rtol=2e-6, atol=2e-6)
            if not apply:
                np.testing.assert_array_equal(one, list(feeds.values())[0 if i == 0 else i + 1])


@pytest.mark.parametrize("name", STEPS)
def test_a_step_lies_over_its_operands(name: str) -> None:
    """No step copies, and nothing but the gradient is in the arena."""
    num_moments, attrs = STEPS[name]
    feeds = arrays((64, 33), num_moments, True)
    kept = {n: hx.state(n, init=a) for n, a in feeds.items() if n in ("w", *MOMENTS)}
    given = [kept[n] if n in kept else hx.input(n, a.shape) for n, a in feeds.items()]
    results = FUNCTIONS[name](*given, **attrs)
    outputs = results if isinstance(results, tuple) else (results,)
    updates = [hx.write_state(s, t, np.array(0)) for s, t in zip(kept.values(), outputs, strict=True)]
    net = hx.compile(hx.graph({"doubled": given[1] * 2.0}, updates), threads=1)
    assert isinstance(net, hx.Model)
    assert [s["kernel"] for s in net.steps].count(name) == 1
    assert "write_slice" not in [s["kernel"] for s in net.steps]
    assert net.memory["arena"] == 0
    net(g=feeds["g"], rates=feeds["rates"])
    graph = hx.graph({f"y{i}": t for i, t in enumerate(outputs)})
    states = {n: feeds[n] for n in kept}
    want = run_reference(graph, {"g": feeds["g"], "rates": feeds["rates"]}, dict(states))
    for state, array in zip(kept, want.values(), strict=True):
        np.testing.assert_allclose(net.read_state(state), array, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("shape", [(1,), (17,), (3, 1029), (2, 5, 7, 9), (0, 4), ()])
def test_gradients_are_summed_where_the_sum_lies(shape: tuple[int, ...], first: bool) -> None:
    """What the sum held before the first gradient does not matter, NaN neither."""
    rng = np.random.default_rng(3)
    s, g = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    old = np.full_like(s, np.nan) if first else s
    made = np.full_like(s, 85)
    _core.run_kernel("accumulate_step", [old, g, np.array([first])], [made], b"", b"")
    np.testing.assert_array_equal(made, g if first else s + g)
    over = np.array(old)
    _core.run_kernel("accumulate_step", [over, g, np.array([first])], [over], b"", b"")
    np.testing.assert_array_equal(over, made)


@pytest.mark.parametrize("shape", [(1,), (17,), (3, 1029), (2, 5, 7, 9), (700, 300), (0, 4), ()])
def test_squares_are_summed_where_they_are_asked_for(shape: tuple[int, ...]) -> None:
    """What is not asked for is 0, whatever is there."""
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    made = np.full((), 85, np.float32)
    for when in (None, np.array([True])):
        _core.run_kernel("squared_norm", [x, when], [made], b"", b"")
        assert made == pytest.approx(np.sum(np.square(x, dtype=np.float64)), rel=1e-5)
    _core.run_kernel("squared_norm", [np.full_like(x, np.nan), np.array([False])], [made], b"", b"")
    assert made == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_large_sum_of_squares_has_the_bits_of_a_reduction(threads: int) -> None:
    x, when = hx.input("x", (3000, 1001)), hx.input("when", (1,), "bool")
    net = hx.compile({"norm": hx.squared_norm(x, when), "sum": hx.reduce_sum_square(x)}, threads=threads)
    array = np.random.default_rng(5).standard_normal((3000, 1001)).astype(np.float32)
    found = net(x=array, when=np.array([True]))
    assert found["norm"] == found["sum"].item()
    assert net(x=array, when=np.array([False]))["norm"] == 0


def test_a_step_of_several_batches_writes_no_sum_twice() -> None:
    """The product is added where the sum lies, in the memory of its state."""
    w = hx.param("w", np.ones((64, 33), np.float32))
    loss = hx.reduce_sum(hx.square(hx.input("x", (4, 64)) @ w))
    net = hx.compile(hx.train.step(loss, [w], hx.train.sgd(0.1), accumulate=2), threads=1)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    large = [step.kernel for step in net.program.steps if step.outputs[0].type.size >= 64 * 33]
    assert sorted(large) == ["accumulating_matmul", "sgd_step"]
    assert net.memory["arena"] < 0.5 * 4 * 64 * 33


def test_rows_of_a_large_embedding_are_added_where_the_sum_lies() -> None:
    """Its zeros are not even there while the graph is made."""
    weight = hx.param("table", np.zeros((1 << 20, 32), np.float32))
    loss = hx.reduce_sum(hx.gather(weight, hx.input("ids", (7,), "int32"), axis=0))
    step = hx.train.step(loss, [weight], hx.train.sgd(0.01), accumulate=3)
    (scattered,) = [node for node in step.nodes if node.op == "scatter_nd"]
    assert scattered.inputs[0] is not None
    assert scattered.inputs[0].node.op == "write_state"


@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_an_embedding_are_added_where_the_sum_lies(tied: bool) -> None:
    """Also where the matrix is the head as well: both uses add to one sum."""
    rng = np.random.default_rng(5)
    table, head = (rng.standard_normal((50, 8)).astype(np.float32) for _ in range(2))
    ids = rng.integers(0, 50, (6, 7)).astype(np.int32)
    weight = hx.param("table", table)
    rows = hx.gather(weight, hx.input("ids", (7,), "int32"), axis=0)
    y = hx.matmul(rows, weight if tied else hx.const(head), transpose_y=True)
    step = hx.train.step(hx.reduce_sum(hx.square(y)), [weight], hx.train.sgd(0.01), accumulate=3)
    net = hx.compile(step, threads=2)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    large = [step.kernel for step in net.program.steps if step.outputs[0].type.shape == (50, 8)]
    assert sorted(large) == sorted(["accumulating_matmul" if tied else "select", "scatter_nd", "sgd_step"])
    assert net.memory["weights"] < (1 if tied else 2) * table.nbytes  # no zeros
    want = table.astype(np.float64)
    for call, one in enumerate(ids):
        if call % 3 == 0:
            gradient = np.zeros_like(want)
        other = want if tied else head.astype(np.float64)
        out = want[one] @ other.T
        np.add.at(gradient, one, 2 * out @ other)
        if tied:
            gradient += 2 * out.T @ want[one]
        net(ids=one)
        if call % 3 == 2:
            want = want - 0.01 / 3 * gradient
            np.testing.assert_allclose(net.read_state("table"), want, rtol=1e-5, atol=1e-5)
