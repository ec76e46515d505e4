"""A training step: what PyTorch's optimisers give, accumulation, scaling, and steps that change nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array

RNG = np.random.default_rng(7)
WEIGHT, X, Y = (RNG.standard_normal(s).astype(np.float32) for s in ((2, 3), (5, 3), (5, 2)))
STEPS = 20

# The weight after 20 steps of torch.optim (2.13.0, CPU, fp32) on mean((x w^T - y)^2).
TORCH: dict[str, tuple[hx.train.Optimizer, dict[str, Any], list[list[float]]]] = {
    "sgd": (hx.train.sgd(0.1, weight_decay=0.01), {},
            [[-0.11974059, 0.161418453, -0.0582593158], [0.183055431, 0.280398637, 0.405545503]]),
    "sgd with momentum": (hx.train.sgd(0.05, momentum=0.9, weight_decay=0.01), {},
            [[-0.347320229, 0.0372717157, 0.300084442], [-0.240029812, -0.409395456, 0.494345278]]),
    "sgd with Nesterov's momentum": (hx.train.sgd(0.05, momentum=0.9, nesterov=True), {},
            [[-0.356383979, 0.0399697572, 0.29421401], [-0.0755492076, -0.11254473, 0.716360867]]),
    "adam": (hx.train.adam(0.03, weight_decay=0.1), {},
            [[-0.327832341, 0.0590280034, 0.24681887], [-0.316593736, 0.108904257, -0.416019171]]),
    "adamw": (hx.train.adamw(0.03, betas=(0.8, 0.99), weight_decay=0.1), {},
            [[-0.352896363, 0.0578656793, 0.24718371], [-0.300351948, 0.0959826857, -0.392699659]]),
    "adamw, clipped": (hx.train.adamw(0.03, weight_decay=0.1), {"clip": 0.5},
            [[-0.390884519, 0.0424065925, 0.29465127], [-0.254126906, 0.147848576, -0.347772986]]),
    "adamw on a cosine": (hx.train.adamw(hx.train.cosine(0.03, 30)), {},
            [[-0.278043061, 0.0974221453, 0.147993892], [-0.463618636, -0.0335230529, -0.563615024]]),
}  # fmt: skip


def linear_loss(rows: int = 5) -> tuple[hx.Tensor, hx.Tensor]:
    w = hx.param("w", WEIGHT)
    return hx.mse(hx.linear(hx.input("x", (rows, 3)), w), hx.input("y", (rows, 2))), w


def compiled(optimizer: hx.train.Optimizer, rows: int = 5, **options: Any) -> hx.Model:
    loss, w = linear_loss(rows)
    net = hx.compile(hx.train.step(loss, [w], optimizer, **options), threads=1)
    assert isinstance(net, hx.Model)
    return net


@pytest.mark.parametrize("name", TORCH)
def test_twenty_steps_are_those_of_torch(name: str) -> None:
    optimizer, options, want = TORCH[name]
    net = compiled(optimizer, **options)
    for _ in range(STEPS):
        net(x=X, y=Y)
    got = net.read_state("w")
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())
    assert net.read_state("step")[0] == STEPS


def test_calls_that_accumulate_are_one_update_of_their_mean() -> None:
    whole, parts = compiled(hx.train.adamw(0.02), clip=0.3), compiled(hx.train.adamw(0.02), 1, clip=0.3, accumulate=5)
    for _ in range(3):
        whole(x=X, y=Y)
        for i in range(5):
            before = parts.read_state("w")
            parts(x=X[i : i + 1], y=Y[i : i + 1])
            assert np.array_equal(before, parts.read_state("w")) == (i < 4)
    np.testing.assert_allclose(parts.read_state("w"), whole.read_state("w"), rtol=2e-6, atol=1e-6)
    assert parts.read_state("step")[0] == 3


def test_the_norm_of_a_call_that_does_not_update_is_0() -> None:
    whole, parts = compiled(hx.train.sgd(0.1)), compiled(hx.train.sgd(0.1), 1, accumulate=5)
    want = whole(x=X, y=Y)["norm"]
    norms = [float(parts(x=X[i : i + 1], y=Y[i : i + 1])["norm"]) for i in range(5)]
    assert norms[:4] == [0, 0, 0, 0]
    assert norms[4] == pytest.approx(float(want), rel=1e-5)


def test_a_gradient_that_is_not_finite_stops_the_update_of_all_its_batches() -> None:
    net = compiled(hx.train.sgd(0.1), 1, accumulate=3)
    before = net.read_state("w")
    for i, bad in enumerate((1.0, np.nan, 1.0)):
        norm = net(x=X[:1] * np.float32(bad), y=Y[:1])["norm"]
        assert np.isfinite(norm) == (i < 2)
    np.testing.assert_array_equal(net.read_state("w"), before)
    for _ in range(3):
        net(x=X[:1], y=Y[:1])
    assert not np.array_equal(net.read_state("w"), before)


def test_a_step_whose_gradients_are_not_finite_changes_nothing() -> None:
    net = compiled(hx.train.adamw(0.02))
    net(x=X, y=Y)
    before = {name: net.read_state(name) for name in ("w", "w.m", "w.v", "step")}
    for bad in (np.inf, np.nan):
        assert not np.isfinite(net(x=np.full_like(X, bad), y=Y)["norm"])
    for name, array in before.items():
        np.testing.assert_array_equal(net.read_state(name), array)
    net(x=X, y=Y)
    assert not np.array_equal(net.read_state("w"), before["w"])


def test_a_loss_scale_that_is_a_power_of_two_changes_no_bit() -> None:
    plain, scaled = compiled(hx.train.sgd(0.1), clip=0.5), compiled(hx.train.sgd(0.1), clip=0.5, loss_scale=1024.0)
    for _ in range(3):
        a, b = plain(x=X, y=Y), scaled(x=X, y=Y)
        assert a["norm"] == b["norm"]
    np.testing.assert_array_equal(plain.read_state("w"), scaled.read_state("w"))


def test_elements_are_clipped_before_the_norm() -> None:
    loss, w = linear_loss()
    gradient = hx.compile(hx.graph(hx.grad(loss, w)))(x=X, y=Y)
    norm = compiled(hx.train.sgd(0.1), clip_value=0.1)(x=X, y=Y)["norm"]
    np.testing.assert_allclose(norm, np.linalg.norm(np.clip(gradient, -0.1, 0.1)), rtol=1e-6)


def rates(schedule: Any, count: int) -> list[float]:
    net = compiled(hx.train.sgd(schedule))
    return [float(net(x=X, y=Y)["lr"]) for _ in range(count)]


@pytest.mark.parametrize(
    ("schedule", "want"),
    [
        (0.25, lambda t: 0.25),
        (hx.train.cosine(0.5, 4, least=0.1), lambda t: 0.1 + 0.4 * (1 + np.cos(np.pi * min(t / 4, 1))) / 2),
        (hx.train.warm_up(0.5, 4), lambda t: 0.5 * min((t + 1) / 4, 1)),
        (hx.train.warm_up(hx.train.cosine(0.5, 4), 2),
         lambda t: 0.5 * min((t + 1) / 2, 1) * (1 + np.cos(np.pi * min(max(t - 2, 0) / 4, 1))) / 2),
        (hx.train.steps(0.5, 3, 0.5), lambda t: 0.5 * 0.5 ** (t // 3)),
    ],
)  # fmt: skip
def test_a_schedule_follows_the_count_of_updates(schedule: Any, want: Callable[[int], float]) -> None:
    np.testing.assert_allclose(rates(schedule, 8), [want(t) for t in range(8)], rtol=1e-6)


def test_a_trained_param_is_read_replaced_and_put_back() -> None:
    net = compiled(hx.train.sgd(0.1))
    net(x=X, y=Y)
    other: Array = np.ones_like(WEIGHT)
    net.update(w=other)
    np.testing.assert_array_equal(net.read_state("w"), other)
    net.reset_state()
    np.testing.assert_array_equal(net.read_state("w"), WEIGHT)
    with pytest.raises(hx.Error, match="w"):
        net.update(w=np.ones((3, 3), np.float32))


def test_several_params_train_on_two_threads_with_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    shapes = {"w1": (32, 16), "b1": (32,), "w2": (4, 32)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) * 0.3 for n, s in shapes.items()}
    x, labels = rng.standard_normal((64, 16)).astype(np.float32), rng.integers(0, 4, 64).astype(np.int32)
    found = []
    for threads in (1, 2):
        p = {n: hx.param(n, a) for n, a in arrays.items()}
        hidden = hx.relu(hx.linear(hx.input("x", (64, 16)), p["w1"], p["b1"]))
        loss = hx.cross_entropy(hx.linear(hidden, p["w2"]), hx.input("labels", (64,), "int32"))
        net = hx.compile(hx.train.step(loss, list(p.values()), hx.train.adamw(0.01), clip=1.0), threads=threads)
        losses = [float(net(x=x, labels=labels)["loss"]) for _ in range(30)]
        assert losses[-1] < 0.5 * losses[0]
        found.append({n: net.read_state(n) for n in shapes})
    for name in shapes:
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda loss, w: hx.train.step(loss, [], hx.train.sgd(0.1)), "params: got none"),
        (lambda loss, w: hx.train.step(loss, [loss], hx.train.sgd(0.1)), "need tensors made by hx.param"),
        (lambda loss, w: hx.train.step(loss, [w, w], hx.train.sgd(0.1)), "need each once"),
        (lambda loss, w: hx.train.step(w, [w], hx.train.sgd(0.1)), "need a tensor of one number"),
        (lambda loss, w: hx.train.step(loss, [w], hx.train.sgd(0.1), clip=-1.0), "clip: got -1.0"),
        (lambda loss, w: hx.train.step(loss, [w], hx.train.sgd(0.1), accumulate=0), "accumulate: got 0"),
        (lambda loss, w: hx.train.step(loss, [hx.param("u", WEIGHT)], hx.train.sgd(0.1)), "does not depend on param"),
        (lambda loss, w: hx.train.sgd("fast"), "lr: got 'fast'"),
        (lambda loss, w: hx.train.sgd(0.1, nesterov=True), "nesterov"),
        (lambda loss, w: hx.train.adamw(0.1, betas=(1.0, 0.9)), "betas: got 1.0"),
        (lambda loss, w: hx.train.cosine(0.1, 0), "steps: got 0"),
    ],
)
def test_bad_settings_say_what_is_needed(change: Callable[[hx.Tensor, hx.Tensor], object], words: str) -> None:
    with pytest.raises(hx.Error, match="need") as told:
        change(*linear_loss())
    assert words in str(told.value)


def test_params_of_a_pattern_do_not_decay() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3)).astype(np.float32)

    def trained(decay: float, no_decay: str = "") -> dict[str, Array]:
        w, gamma = hx.param("w", np.full((3, 3), 0.5, np.float32)), hx.param("norm.weight", np.ones(3, np.float32))
        loss = hx.mse(hx.rms_norm(hx.linear(hx.input("x", (4, 3)), w), gamma), x)
        optimizer = hx.train.adamw(0.01, weight_decay=decay, no_decay=no_decay)
        net = hx.compile(hx.train.step(loss, [w, gamma], optimizer))
        net(x=x)
        return {name: net.read_state(name) for name in ("w", "norm.weight")}

    all_decay, none, some = trained(0.5), trained(0.0), trained(0.5, "*norm*|norm.?eight")
    assert np.array_equal(some["w"], all_decay["w"])
    assert np.array_equal(some["norm.weight"], none["norm.weight"])
    assert not np.array_equal(all_decay["norm.weight"], none["norm.weight"])
    with pytest.raises(hx.Error, match=r"\[train.step\].*'gama'"):
        trained(0.5, "gama")
