"""Gradients of a training step take memory only until their params are updated, where nothing else needs them."""

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array

DEPTH, WIDTH, ROWS = 8, 64, 2
GRADIENT = WIDTH * WIDTH * 4  # bytes of one
X = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


def deep(rows: int = ROWS) -> tuple[hx.Tensor, list[hx.Tensor]]:
    rng = np.random.default_rng(1)
    params = [hx.param(f"w{i}", (rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32)) for i in range(DEPTH)]
    y = hx.input("x", (rows, WIDTH))
    for w in params:
        y = hx.tanh(hx.matmul(y, w))
    return hx.reduce_mean(hx.square(y), axes=(0, 1)), params


def compiled(rows: int = ROWS, **options: object) -> hx.Model:
    loss, params = deep(rows)
    net = hx.compile(hx.train.step(loss, params, hx.train.adamw(1e-2), **options), threads=1)  # type: ignore[arg-type]
    assert isinstance(net, hx.Model)
    return net


def contents(net: hx.Model) -> dict[str, Array]:
    return {name: net.read_state(name) for name in net.state_names}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_right_after_its_gradient_has_the_same_bits_in_less_arena(accumulate: int) -> None:
    late, early = compiled(accumulate=accumulate), compiled(accumulate=accumulate, guard="each")
    for _ in range(4):
        late(x=X)
        early(x=X)
    np.testing.assert_equal(contents(early), contents(late))
    if accumulate == 1:
        assert late.memory["arena"] >= DEPTH * GRADIENT
        assert early.memory["arena"] < 2.5 * GRADIENT


def test_a_norm_that_clips_needs_all_gradients() -> None:
    plain, guarded = compiled(clip=0.1), compiled(clip=0.1, guard="each")
    assert guarded.memory == plain.memory
    guarded(x=np.full_like(X, np.nan))
    assert guarded.read_state("step")[0] == 0
    np.testing.assert_array_equal(guarded.read_state("w0"), deep()[1][0].value.node.data)


def test_updates_written_by_hand_run_right_after_their_gradients() -> None:
    """Whatever order the updates are given in."""
    arenas = []
    for backwards in (False, True):
        loss, params = deep()
        made = hx.grad(loss, params)
        updates = [hx.write_state(w, w - g * 0.1, np.array(0)) for w, g in zip(params, made, strict=True)]
        net = hx.compile(hx.graph({"loss": loss}, updates[::-1] if backwards else updates), threads=1)
        assert isinstance(net, hx.Model)
        arenas.append(net.memory["arena"])
    assert max(arenas) < 2.5 * GRADIENT


def test_activations_die_while_gradients_are_kept() -> None:
    """A layer's input is gone once its weight has its gradient, though every gradient waits for the norm."""
    rows = 8 * WIDTH  # an activation takes as much as 8 gradients
    assert compiled(rows).memory["arena"] < (DEPTH + 3) * rows * WIDTH * 4


def test_a_gradient_that_is_not_finite_stops_its_own_update() -> None:
    x, y = hx.input("x", (4,)), hx.input("y", (4,))
    a, b = (hx.param(name, np.ones(4, np.float32)) for name in "ab")
    loss = hx.reduce_sum(a * x + b * y)
    net = hx.compile(hx.train.step(loss, [a, b], hx.train.adamw(0.1), guard="each"), threads=1)
    assert isinstance(net, hx.Model)
    ones = np.ones(4, np.float32)
    assert not np.isfinite(net(x=ones, y=np.full(4, np.nan, np.float32))["norm"])
    np.testing.assert_array_equal(net.read_state("b"), ones)
    np.testing.assert_array_equal(net.read_state("b.m"), np.zeros(4, np.float32))
    assert (net.read_state("a") < 1).all()
    assert net.read_state("step")[0] == 1


def test_another_guard_is_an_error() -> None:
    with pytest.raises(hx.Error, match=r"guard: got 'none', need 'all' or 'each'"):
        compiled(guard="none")
