"""One description for training and evaluation: dropout, and what `evaluating` makes of training ops."""

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array

RNG = np.random.default_rng(5)
X = RNG.standard_normal((64, 100)).astype(np.float32)


def kept(y: Array, x: Array) -> Array:
    """Which elements were kept, all of them scaled by the same factor."""
    found = y != 0
    np.testing.assert_allclose(y[found], (x / 0.75)[found], rtol=1e-6)
    return found


def test_dropout_drops_other_elements_in_every_call() -> None:
    net = hx.compile(hx.graph(hx.dropout(hx.input("x", X.shape), hx.stream(3), p=0.25)))
    first, second = kept(net(X), X), kept(net(X), X)
    assert 0.73 < first.mean() < 0.77
    assert 0.5 < (first == second).mean() < 0.7
    net.reset_state()
    np.testing.assert_array_equal(kept(net(X), X), first)


def test_the_gradient_of_dropout_has_the_elements_of_the_same_call() -> None:
    x = hx.input("x", X.shape)
    y = hx.dropout(x, hx.stream(3), p=0.25)
    net = hx.compile(hx.graph({"y": y, "dx": hx.grad(hx.reduce_sum(y, keep_dims=False), x)}))
    assert isinstance(net, hx.Model)
    assert len([s for s in net.steps if s["kernel"] == "random"]) == 1
    for _ in range(3):
        found = net(X)
        np.testing.assert_array_equal(found["dx"] != 0, found["y"] != 0)
        np.testing.assert_allclose(found["dx"][found["dx"] != 0], 1 / 0.75, rtol=1e-6)


def test_the_gradient_alone_moves_the_stream_on() -> None:
    x = hx.input("x", X.shape)
    net = hx.compile(hx.graph(hx.grad(hx.reduce_sum(hx.dropout(x, hx.stream(3)), keep_dims=False), x)))
    assert not np.array_equal(net(), net())


def test_two_dropouts_on_one_stream_are_refused() -> None:
    stream, x = hx.stream(1), hx.input("x", X.shape)
    with pytest.raises(hx.Error, match="need one of its own"):
        hx.graph(hx.dropout(hx.dropout(x, stream), stream))


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_probability_out_of_range_is_refused(p: float) -> None:
    with pytest.raises(hx.Error, match="need 0 or more, and less than 1"):
        hx.dropout(hx.input("x", (3,)), hx.stream(1), p=p)


def test_a_stream_has_the_name_it_is_given() -> None:
    net = hx.compile(hx.graph(hx.dropout(hx.input("x", (3,)), hx.stream(1, "drop"))))
    assert list(net.state_names) == ["drop"]


def network(x: hx.Tensor) -> hx.Tensor:
    p = {n: hx.param(n, RNG.uniform(0.5, 1.5, 100).astype(np.float32)) for n in ("mean", "variance", "gamma", "beta")}
    y = hx.dropout(hx.train.batch_norm(hx.relu(x), *p.values(), epsilon=1e-3), hx.stream(2), p=0.25)
    return hx.linear(y, hx.param("w", RNG.standard_normal((3, 100)).astype(np.float32)))


def test_evaluating_uses_running_statistics_and_drops_nothing() -> None:
    x = hx.input("x", X.shape)
    y = network(x)
    got = hx.graph({"trained": y, "evaluated": hx.train.evaluating(y)})
    leaves = {str(n.attrs["name"]): n for n in got.nodes if n.op == "param"}
    assert set(leaves) == {"mean", "variance", "gamma", "beta", "w"}
    only = hx.graph(hx.train.evaluating(y))
    assert only.ops.isdisjoint({"dropout", "batch_norm_training", "state"})
    mean, variance, gamma, beta, w = (leaves[n].data for n in ("mean", "variance", "gamma", "beta", "w"))
    assert mean is not None
    assert variance is not None
    assert gamma is not None
    assert w is not None
    want = ((np.maximum(X, 0) - mean) / np.sqrt(variance + 1e-3) * gamma + beta) @ w.T
    for graph in (only, got):
        found = hx.compile(graph)(X)
        np.testing.assert_allclose(
            found if isinstance(found, np.ndarray) else found["evaluated"], want, rtol=1e-4, atol=1e-5
        )


def test_evaluating_keeps_the_form_of_what_it_is_given() -> None:
    x = hx.input("x", (2, 100))
    y, plain = network(x), x * 2
    one = hx.train.evaluating(y)
    many, named = hx.train.evaluating([y, plain]), hx.train.evaluating({"y": y, "plain": plain})
    assert isinstance(many, list)
    assert [t.value for t in many] == [one.value, plain.value]
    assert {n: t.value for n, t in named.items()} == {"y": one.value, "plain": plain.value}
    with pytest.raises(hx.Error, match="got int, need a tensor"):
        hx.train.evaluating(3)  # type: ignore[call-overload]


def test_evaluating_keeps_valid_lengths() -> None:
    dropped = hx.dropout(hx.input("z", (1, 1)), hx.stream(1))
    found = hx.cast(hx.non_zero(hx.input("x", (5,)))[0], dtype="fp32") * dropped
    made = hx.graph({"found": hx.train.evaluating(found)})
    assert [p.name for p in made.outputs] == ["found", "found.length"]
    assert hx.compile(made)(x=np.array([1, 0, 2, 0, 0], np.float32), z=np.ones((1, 1), np.float32)).shape == (1, 2)


def test_what_was_trained_is_evaluated() -> None:
    x = hx.input("x", X.shape)
    y = network(x)
    w = next(n for n in hx.graph(y).nodes if n.op == "param" and n.attrs["name"] == "w")
    step = hx.train.step(hx.mse(y, hx.input("t", (64, 3))), [hx.Tensor(w.values[0])], hx.train.sgd(0.01))
    net = hx.compile(step)
    assert isinstance(net, hx.Model)
    for _ in range(2):
        net(x=X, t=np.zeros((64, 3), np.float32))
    inference = hx.train.trained(y, net)
    assert "batch_norm" in inference.ops
    statistics = {str(n.attrs["name"]): n.data for n in inference.nodes if n.op == "param"}
    for name in ("mean", "variance", "w"):
        np.testing.assert_array_equal(statistics[name], net.read_state(name))


def test_a_param_that_is_written_or_trained_leaves_valid_lengths() -> None:
    w = hx.param("w", np.ones((1, 1), np.float32))
    found = hx.cast(hx.non_zero(hx.input("x", (5,)))[0], dtype="fp32") * w
    x = np.array([1, 0, 2, 0, 0], np.float32)
    made = hx.graph({"y": found}, [hx.write_state(w, hx.const(np.full((1, 1), 2, np.float32)), np.array(0))])
    assert [p.name for p in made.outputs] == ["y", "y.length"]
    net = hx.compile(made)
    assert isinstance(net, hx.Model)
    np.testing.assert_array_equal(net(x), [[0, 2]])
    inference = hx.train.trained({"y": found}, net)
    assert [p.name for p in inference.outputs] == ["y", "y.length"]
    np.testing.assert_array_equal(hx.compile(inference)(x), [[0, 4]])


@pytest.mark.filterwarnings("ignore")
def test_what_a_chip_wrote_in_fp16_is_inferred_in_the_dtype_of_the_params() -> None:
    x, w = hx.input("x", (4, 3)), hx.param("w", np.full((2, 3), 0.25, np.float32))
    y = hx.linear(x, w)
    loss = hx.mse(y, hx.input("t", (4, 2)))
    step = hx.graph({"loss": loss}, [hx.write_state(w, w - hx.grad(loss, w) * 0.125, np.array(0))])
    net = hx.compile(step, target="h13")  # no optimiser, whose params stay in fp32
    assert isinstance(net, hx.Model)
    net(x=X[:4, :3], t=X[:4, :2])
    assert net.read_state("w").dtype == np.float16
    (param,) = (n for n in hx.train.trained(y, net).nodes if n.op == "param")
    assert param.data is not None
    assert param.data.dtype == np.float32
    np.testing.assert_array_equal(param.data, net.read_state("w"))


def test_a_model_of_other_params_is_refused() -> None:
    def network(width: int) -> tuple[hx.Tensor, hx.Tensor]:
        w = hx.param("w", np.ones((2, width), np.float32))
        return hx.linear(hx.input("x", (4, width)), w), w

    y, w = network(3)
    net = hx.compile(hx.train.step(hx.mse(y, hx.input("t", (4, 2))), [w], hx.train.sgd(0.1)))
    assert isinstance(net, hx.Model)
    with pytest.raises(hx.Error, match=r"got a state of shape \(2, 3\), need \(2, 5\)"):
        hx.train.trained(network(5)[0], net)
