"""Gradients of loops, branches and long recurrent networks: against the same steps written out, finite differences in
fp64, and PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph
from hexane.ops.reference import run_reference

F64 = "fp64"
KINDS = {"f": F64, "i": "int64", "b": "bool"}
Arrays = dict[str, Any]


def number(name: str = "step") -> hx.Tensor:
    return hx.input(name, (), "int64")


def body(inputs: Sequence[hx.Tensor], outputs: Sequence[hx.Tensor]) -> Graph:
    """A graph with these inputs in this order, whether it reads them or not."""
    graph = hx.graph({f"result{i}": t for i, t in enumerate(outputs)})
    return Graph(tuple(t.value for t in inputs), graph.outputs, name="body")


def going() -> hx.Tensor:
    return hx.input("condition", (), "bool")


def inputs_of(arrays: Arrays) -> dict[str, hx.Tensor]:
    return {name: hx.input(name, a.shape, KINDS[a.dtype.kind]) for name, a in arrays.items()}


def values(tensors: Sequence[hx.Tensor], arrays: Arrays, compiled: bool = False) -> list[Any]:
    graph = hx.graph({f"y{i}": t for i, t in enumerate(tensors)})
    feeds = {name: arrays[name] for name in graph.input_names()}
    if not compiled:
        return list(run_reference(graph, feeds).values())
    result: Any = hx.compile(graph)(**feeds)
    return [result] if isinstance(result, np.ndarray) else list(result.values())


def check_by_differences(outputs: Sequence[hx.Tensor], given: dict[str, hx.Tensor], arrays: Arrays) -> list[Any]:
    """Compares the gradients of all floats, in the reference and compiled, with finite differences; returns them."""
    rng = np.random.default_rng(len(arrays))
    floats = [name for name, a in arrays.items() if a.dtype.kind == "f"]
    seeds = [rng.uniform(0.5, 1.5, t.shape) for t in outputs]
    gradients = hx.grad(list(outputs), [given[name] for name in floats], seed=seeds)
    found = values(gradients, arrays)
    for got, want in zip(values(gradients, arrays, compiled=True), found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)

    def loss(moved: Arrays) -> float:
        return sum(float((s * y).sum()) for s, y in zip(seeds, values(outputs, moved), strict=True))

    step = 1e-5
    for name, gradient in zip(floats, found, strict=True):
        for _ in range(2):
            way = rng.standard_normal(arrays[name].shape)
            high, low = (loss(arrays | {name: np.asarray(arrays[name] + s * step * way)}) for s in (1, -1))
            want = (high - low) / (2 * step)
            assert abs(float((gradient * way).sum()) - want) < 1e-6 * max(1.0, abs(want)), name
    return found


def recurrence(
    given: dict[str, hx.Tensor], limit: Any, condition: hx.Tensor | None = None, most: int = -1, end: float = 1e9,
    back: bool = False, extent: int = 5,
) -> list[hx.Tensor]:  # fmt: skip
    """s = tanh(s @ w + x[step]) * a, with k counted in integers, until s.sum() reaches the end; stacks of s."""
    step, c, s, k = number(), going(), hx.input("s", (2, 3), F64), number("k")
    w, x, a = hx.input("w", (3, 3), F64), hx.input("x", (2, extent, 3), F64), hx.input("a", (), F64)
    at = extent - 1 - step if back else step
    after = hx.tanh(s @ w + hx.gather(x, at, axis=1)) * a * hx.cast(k, dtype=F64)
    again = hx.reduce_sum(after, axes=(0, 1), keep_dims=False) < end if end < 1e9 else hx.const(np.array(True))
    rows = [after * 2.0] if most >= 0 else []
    graph = body([step, c, s, k, w, x, a], [again, after, k + 1, *rows])
    outs = hx.loop(
        limit, condition, given["s"], hx.const(np.array(1)), given["w"], given["x"], given["a"],
        body=graph, carried=2, most=most,
    )  # fmt: skip
    return [t for t in outs if t.dtype.kind == "float"]


def arrays_of(seed: int = 0, extent: int = 5) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "s": rng.normal(size=(2, 3)), "w": rng.normal(size=(3, 3)), "x": rng.normal(size=(2, extent, 3)),
        "a": np.array(0.4),
    }  # fmt: skip


def written_out(given: dict[str, hx.Tensor], steps: int, back: bool = False) -> hx.Tensor:
    s, extent = given["s"], given["x"].shape[1]
    for t in range(steps):
        at = extent - 1 - t if back else t
        s = hx.tanh(s @ given["w"] + hx.gather(given["x"], np.array(at), axis=1)) * given["a"] * float(t + 1)
    return s


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_the_gradient_of_a_loop_is_that_of_its_steps_written_out(steps: int, back: bool) -> None:
    arrays = arrays_of(steps)
    given = inputs_of(arrays)
    (y,) = recurrence(given, np.array(steps), back=back)
    check_by_differences([y], given, arrays)
    tensors, rng = list(given.values()), np.random.default_rng(1)
    if not steps:
        return
    seed = rng.normal(size=y.shape)
    ours = values(hx.grad(y, tensors, seed=seed), arrays)
    wanted = values(hx.grad(written_out(given, steps, back), tensors, seed=seed), arrays)
    for got, want in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", [0, 2, 5])
def test_a_run_time_limit_with_a_capacity_has_gradients_of_the_steps_that_ran(steps: int) -> None:
    arrays = arrays_of(7) | {"n": np.array(steps)}
    given = inputs_of(arrays)
    outputs = recurrence(given, given["n"], most=5)[:1]
    gradients = hx.grad(outputs, [given[n] for n in "swa"], seed=[np.ones((2, 3))])
    wanted: Any = [np.ones((2, 3)), np.zeros((3, 3)), np.zeros(())]
    if steps:
        out = written_out(given, steps)
        wanted = values(hx.grad(out, [given[n] for n in "swa"], seed=np.ones((2, 3))), arrays)
    for compiled in (False, True):
        for got, want in zip(values(gradients, arrays, compiled), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_rows_of_stacks_have_gradients_and_a_condition_ends_both_loops() -> None:
    arrays = arrays_of(3) | {"go": np.array(True)}
    given = inputs_of(arrays)
    y, stack = recurrence(given, np.array(5), given["go"], most=5, end=0.9)
    row = hx.gather(hx.reduce_sum(stack, axes=(0,)), np.array(0), axis=0)
    tensors = [given[n] for n in "swa"]
    gradients = hx.grad([y, row], tensors, seed=[np.ones((2, 3))] * 2)
    found = values(gradients, arrays)
    for got, want in zip(values(gradients, arrays, compiled=True), found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    step, rng = 1e-5, np.random.default_rng(2)
    for name, gradient in zip("swa", found, strict=True):
        way = rng.standard_normal(arrays[name].shape)
        high, low = (
            sum(float(v.sum()) for v in values([y, row], arrays | {name: np.asarray(arrays[name] + s * step * way)}))
            for s in (1, -1)
        )
        assert abs(float((gradient * way).sum()) - (high - low) / (2 * step)) < 1e-6


LOSSES: dict[str, Callable[[hx.Tensor, hx.Tensor], hx.Tensor]] = {
    "squares": lambda rows, a: rows * rows,
    "logarithms": lambda rows, a: hx.log(rows * rows) * a,  # infinite where there is no row
    "quotients": lambda rows, a: a / rows + rows / a,
    "read twice": lambda rows, a: hx.tanh(rows) * a + hx.reduce_sum(rows * rows, axes=(1,), keep_dims=True) * rows,
    "products": lambda rows, a: hx.exp(hx.reshape(rows, shape=(5, 6)) @ (np.arange(12.0).reshape(6, 2) * 0.1)) * a,
}


@pytest.mark.parametrize("name", LOSSES)
def test_functions_of_stacks_whose_length_the_data_decide_have_gradients(name: str) -> None:
    arrays = arrays_of(3)
    given = inputs_of(arrays)
    _, stack = recurrence(given, np.array(5), most=5, end=0.9)
    found = LOSSES[name](stack, given["a"])
    loss = hx.reduce_sum(found, axes=tuple(range(len(found.shape))), keep_dims=False)
    (count,) = values([hx.reduce_sum(stack * 0.0 + 1.0, axes=(0, 1, 2))], arrays)
    assert 0 < count.sum() < 5 * 6
    assert all(np.abs(gradient).max() > 0 for gradient in check_by_differences([loss], given, arrays))


def test_a_loop_without_a_capacity_is_refused_with_its_way_out() -> None:
    given = inputs_of(arrays_of()) | {"n": number("n")}
    (y,) = recurrence(given, given["n"])
    with pytest.raises(hx.Error, match=r"\[grad\] loop .*only the data decide, need its largest"):
        hx.grad(y, given["w"], seed=np.ones((2, 3)))


def test_gradients_of_gradients_of_a_loop() -> None:
    arrays = arrays_of(4)
    given = inputs_of(arrays)
    (y,) = recurrence(given, np.array(5))
    first = hx.grad(hx.reduce_sum(y * y, axes=(0, 1)), [given["w"], given["x"]])
    check_by_differences(first, given, arrays)


def test_a_loop_in_a_loop_and_a_branch_in_it() -> None:
    rng = np.random.default_rng(6)
    arrays: Arrays = {"s": rng.normal(size=3), "w": rng.normal(size=3)}
    given = inputs_of(arrays)
    v, u = hx.input("v", (3,), F64), hx.input("u", (3,), F64)
    inner = body([number(), going(), v, u], [hx.const(np.array(True)), hx.sin(v * u) + v])
    p, q = hx.input("p", (3,), F64), hx.input("q", (3,), F64)
    then, otherwise = body([p, q], [hx.exp(p * 0.1) * q]), body([p, q], [p * p])
    step, c, s, w = number(), going(), hx.input("s", (3,), F64), hx.input("w", (3,), F64)
    turned = hx.cond(hx.reduce_sum(s, axes=(0,), keep_dims=False) < 0.5, s, w, then=then, otherwise=otherwise)
    turned = turned[0] if isinstance(turned, (tuple, list)) else turned
    after = hx.loop(np.array(2), None, turned, w, body=inner, carried=1)[0]
    outer = body([step, c, s, w], [hx.const(np.array(True)), after * 0.5])
    y = hx.loop(np.array(3), None, given["s"], given["w"], body=outer, carried=1)[0]
    check_by_differences([y], given, arrays)


@pytest.mark.parametrize("truth", [True, False])
def test_the_gradient_of_a_branch_is_that_of_the_chosen_one(truth: bool) -> None:
    rng = np.random.default_rng(8)
    arrays: Arrays = {"x": rng.normal(size=(2, 3)), "w": rng.normal(size=(3, 3)), "z": rng.normal(size=(2, 3))}
    given = inputs_of(arrays) | {"c": hx.input("c", (), "bool")}
    x, w, z = (hx.input(n, arrays[n].shape, F64) for n in "xwz")
    then = body([x, w, z], [hx.tanh(x @ w), x])
    otherwise = body([x, w, z], [hx.sin(z) * x, z])
    outputs = hx.cond(given["c"], given["x"], given["w"], given["z"], then=then, otherwise=otherwise)
    found = check_by_differences(list(outputs), given, arrays | {"c": np.array(truth)})
    assert found[1].any() == truth
    assert found[2].any() != truth


def test_the_branch_that_is_not_chosen_is_not_differentiated() -> None:
    """The logarithm of 0 would give an infinite gradient, and 0 times it NaN."""
    x = hx.input("x", (2,), "fp32")
    p, q = hx.input("p", (2,), "fp32"), hx.input("q", (2,), "fp32")
    then, otherwise = body([p], [hx.log(p) * p]), body([q], [q * 3.0])
    y = hx.cond(hx.reduce_min(x, axes=(0,), keep_dims=False) > 0.0, x, then=then, otherwise=otherwise)
    y = y[0] if isinstance(y, (tuple, list)) else y
    gradient = hx.grad(hx.reduce_sum(y, axes=(0,)), x)
    (got,) = values([gradient], {"x": np.array([0, 1], np.float32)}, compiled=True)
    np.testing.assert_array_equal(got, [3, 3])


# ---- recurrent networks of many steps ----


GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def network(kind: str, steps: int, directions: int, seed: int = 0) -> Arrays:
    rng, gates, hidden = np.random.default_rng(seed), GATES[kind], 4
    shapes = {"x": (steps, 2, 3), "w": (directions, gates * hidden, 3), "r": (directions, gates * hidden, hidden)}
    shapes |= {"b": (directions, 2 * gates * hidden)}
    return {name: rng.normal(size=shape) * (1 if name == "x" else 0.3) for name, shape in shapes.items()}


def applied(kind: str, given: dict[str, hx.Tensor], **attrs: Any) -> list[hx.Tensor]:
    run: Callable[..., Any] = getattr(hx, kind)
    return list(run(*(given[n] for n in "xwrb"), **attrs))


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_a_long_recurrent_network_has_the_gradient_of_its_steps_written_out(
    kind: str, direction: str, lengths: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = network(kind, 70, 1 + (direction == "bidirectional"))
    given, attrs = inputs_of(arrays), {"direction": direction}
    if lengths:
        attrs |= {"lengths": hx.const(np.array([70, 33]))}  # type: ignore[dict-item]
    outputs = applied(kind, given, **attrs)
    rng = np.random.default_rng(1)
    seeds = [rng.normal(size=t.shape) for t in outputs]
    ours = hx.grad(outputs, list(given.values()), seed=seeds)
    assert "loop" in hx.graph({f"y{i}": t for i, t in enumerate(ours)}).ops
    monkeypatch.setattr("hexane.ops.records.recurrent.LONG_STEPS", 100)
    steps = hx.grad(outputs, list(given.values()), seed=seeds)
    assert "loop" not in hx.graph({f"y{i}": t for i, t in enumerate(steps)}).ops
    wanted = values(steps, arrays)
    for compiled in (False, True):
        for got, want in zip(values(ours, arrays, compiled), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", GATES)
def test_a_long_recurrent_network_has_torchs_gradient(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    arrays, gates = network(kind, 300, 1, seed=5), GATES[kind]
    given = inputs_of(arrays)
    outputs = applied(kind, given, **({"linear_before_reset": True} if kind == "gru" else {}))
    seed = np.random.default_rng(2).normal(size=outputs[0].shape)
    found = values(hx.grad(outputs[0], list(given.values()), seed=seed), arrays, compiled=True)
    net = getattr(torch.nn, kind.upper())(3, 4).double()
    # Torch's gates: input, forget, new, output of an LSTM; reset, update, new of a GRU.
    order = {"rnn": [0], "gru": [1, 0, 2], "lstm": [0, 2, 3, 1]}[kind]

    def turned(a: Any) -> Any:
        return np.concatenate([np.split(a, gates)[i] for i in order])

    own = [turned(arrays["w"][0]), turned(arrays["r"][0]), *map(turned, np.split(arrays["b"][0], 2))]
    for p, a in zip(net.parameters(), own, strict=True):
        p.data = torch.from_numpy(a)
    x = torch.from_numpy(arrays["x"]).requires_grad_()
    net(x)[0].backward(torch.from_numpy(seed[:, 0]))
    w, r, bx, bh = (p.grad.numpy() for p in net.parameters())
    np.testing.assert_allclose(found[0], x.grad.numpy(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(turned(found[1][0]), w, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(turned(found[2][0]), r, rtol=1e-8, atol=1e-10)
    for got, want in zip(np.split(found[3][0], 2), (bx, bh), strict=True):
        np.testing.assert_allclose(turned(got), want, rtol=1e-8, atol=1e-10)


def trained(steps: int) -> hx.Model:
    """A step of a network of 16 units over a sequence, whose loss is of all outputs."""
    rng = np.random.default_rng(3)
    params = [
        hx.param(name, (rng.normal(size=shape) * 0.2).astype(np.float32))
        for name, shape in (("w", (1, 64, 8)), ("r", (1, 64, 16)), ("b", (1, 128)))
    ]
    y = hx.lstm(hx.input("x", (steps, 4, 8)), *params)[0]
    loss = hx.mse(y, hx.input("target", y.shape))
    net = hx.compile(hx.train.step(loss, params, hx.train.adamw(1e-2)), threads=1)
    assert isinstance(net, hx.Model)
    return net


def test_a_long_network_trains_with_the_memory_of_its_carried_values() -> None:
    """The gates of all steps take 4 x 64 numbers each step, and the states 2 x 64; of what a cell computes in between,
    nothing is kept."""
    net, steps = trained(256), 256
    row = 4 * 16 * 4  # bytes of one hidden state of the batch
    # y, its gradient and target; inputs' products and their gradients, 4 gates each; h and c.
    assert net.memory["arena"] < steps * row * (3 + 2 * 4 + 2 + 2)
    rng = np.random.default_rng(4)
    feeds = {
        "x": rng.normal(size=(steps, 4, 8)).astype(np.float32),
        "target": np.full((steps, 1, 4, 16), 0.1, np.float32),
    }
    losses = [float(net(**feeds)["loss"]) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
