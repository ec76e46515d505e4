"""Repairs of sums of squares whose numbers have a bound: behind a norm and constant weights."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.bounds.any_input import ends
from hexane.build import graph
from hexane.cost.estimate import estimate_program
from hexane.passes.repair import repair, repairs_of, without_repair
from hexane.report.estimate import program_for
from hexane.targets import Chip, load_target
from repair_cases import Array, Case, assert_decided, assert_holds, assert_same_function, normal

TOKENS, WIDE, HIDDEN = 64, 48, 96
Part = Callable[[hx.Tensor, float], hx.Tensor]


def weights(size: float, *shape: int) -> Array:
    return np.random.default_rng(3).normal(0, size, shape).astype(np.float32)


def hidden(x: hx.Tensor, size: float) -> hx.Tensor:
    """GELU of a linear layer behind a LayerNorm."""
    gamma, beta = 1 + weights(0.3, WIDE), weights(0.1, WIDE)
    return hx.gelu(hx.linear(hx.layer_norm(x, gamma, beta, axes=(2,), epsilon=1e-6), weights(size, HIDDEN, WIDE)))


def queries(x: hx.Tensor, size: float) -> hx.Tensor:
    """Channels of XCiT: a product behind an RMSNorm, turned."""
    return hx.transpose(hx.rms_norm(x, axes=(2,), epsilon=1e-6) @ weights(size, WIDE, HIDDEN), perm=(0, 2, 1))


def planes(x: hx.Tensor, size: float) -> hx.Tensor:
    """A 3x3 convolution behind a norm over channels."""
    y = hx.reshape(hx.transpose(hx.layer_norm(x, axes=(2,), epsilon=1e-6), perm=(0, 2, 1)), shape=(1, WIDE, 8, 8))
    return hx.conv(y, weights(size, HIDDEN, WIDE, 3, 3), pad=(1, 1, 1, 1))


def response(x: hx.Tensor, size: float) -> hx.Tensor:
    """ConvNeXt V2's norm of each channel over all tokens."""
    h = hidden(x, size)
    norms = hx.reduce_l2_norm(h, axes=(1,), keep_dims=True)
    return h * (norms / (hx.reduce_mean(norms, axes=(2,), keep_dims=True) + 1e-6))


def unit(x: hx.Tensor, axes: tuple[int, ...]) -> hx.Tensor:
    return x / hx.maximum(hx.sqrt(hx.reduce_sum(x * x, axes=axes, keep_dims=True)), 1e-12)


NETWORKS: dict[str, Part] = {
    "response": response,
    "queries": lambda x, size: unit(queries(x, size), (2,)),
    "planes": lambda x, size: unit(planes(x, size), (2, 3)),
}


def on_the_host(build: Part, size: float, x: Array) -> Array:
    return np.asarray(hx.compile(build(hx.input("x", x.shape), size))(x.astype(np.float32)), np.float64)


def case(name: str, size: float) -> Case:
    build = NETWORKS[name]
    numbers = normal(30, 5, shape=(1, TOKENS, WIDE))
    wrong = "" if size < 12 else "engine" if name == "response" else "engine ieee"
    return Case(lambda x: build(x, size), numbers, lambda x: on_the_host(build, size, x), wrong, most=1e-2)


@pytest.mark.parametrize("size", [0.02, 1.0])
@pytest.mark.parametrize("part", [hidden, queries, planes])
def test_no_result_exceeds_its_bound_and_some_come_near(part: Part, size: float) -> None:
    low, high = ends(part(hx.input("x", (1, TOKENS, WIDE)), size).value)
    along = weights(size, HIDDEN, WIDE)[:TOKENS] if part is hidden else weights(size, WIDE, HIDDEN).T[:TOKENS]
    if part is planes:
        along = weights(size, HIDDEN, WIDE, 3, 3)[:TOKENS, :, 1, 1]
    largest = 0.0
    for x in (normal(1, shape=(TOKENS, WIDE)), along * 1000 / size):
        got = on_the_host(part, size, x[None])
        assert low <= got.min()
        assert got.max() <= high
        largest = max(largest, np.abs(got).max())
    assert high < (12 if part is planes else 3) * largest


@pytest.mark.parametrize("name", NETWORKS)
def test_numbers_that_cannot_leave_fp16_are_not_repaired(name: str) -> None:
    small = case(name, 0.02)
    assert_decided(small, is_repaired=False)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("size", [3.0, 12.0])
def test_large_weights_are_right_on_every_chip(name: str, size: float) -> None:
    assert_holds(case(name, size))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_repair_is_the_same_function(name: str) -> None:
    assert_same_function(case(name, 3.0))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("chip", ["h13", "h17s"])
def test_norms_of_large_planes_cost_little(name: str, chip: str) -> None:
    """No norm layer, which is slow, and no pass over the whole tensor where a bound saves it."""
    target = load_target(chip)
    assert isinstance(target, Chip)
    model = graph(case(name, 2.0).build(hx.input("x", (1, TOKENS, WIDE))))
    made = [estimate_program(program_for(g, target), target).engine_us for g in (without_repair(model), model)]
    assert repairs_of(repair(model, target)) or name == "queries"
    assert made[1] < made[0] + 4, made  # microseconds
    assert not any("l2_norm" in step.node.op for step in program_for(model, target).steps if step.node.op[:4] == "anec")


def test_a_linear_layer_before_its_layer_scale_is_no_distance() -> None:
    """%h @ %w + %b with %b of 0 or more, times a small gamma: it had been scaled as a distance is, for 15 layers."""
    x = hx.input("x", (1, TOKENS, WIDE))
    layer = hx.linear(x * 3.0, weights(1, WIDE, WIDE), np.zeros(WIDE, np.float32)) * np.full(WIDE, 1e-6, np.float32)
    assert not any("distance" in d.reason for d in repairs_of(repair(graph(x + layer), load_target("h13"))))


def truths(x: hx.Tensor) -> hx.Tensor:
    """Each number is 1, however small it was before."""
    return hx.cast(hx.cast(hx.rms_norm(x, np.full(WIDE, 1e-3, np.float32), axes=(2,)), dtype="bool"), dtype="fp32")


def one_of_four(x: hx.Tensor) -> hx.Tensor:
    places = hx.cast(hx.clip(x, alpha=0.0, beta=3.0), dtype="int32")
    return hx.one_hot(places, axis=-1, depth=4, on=700.0, off=-5.0)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: truths(x) @ weights(3, WIDE, HIDDEN),
        lambda x: hx.linear(hx.transpose(hx.reshape(truths(x), shape=(1, WIDE, TOKENS)), perm=(0, 2, 1)), weights(3, 9, WIDE)),
        one_of_four,
        lambda x: hx.cast(hx.cast(hidden(x, 3), dtype="fp16"), dtype="fp32"),
    ],
    ids=["truths", "truths turned", "one of four", "rounded"],
)  # fmt: skip
def test_casts_and_one_hot_stay_in_their_bounds(build: Callable[[hx.Tensor], hx.Tensor]) -> None:
    """True is 1, and a one_hot's own numbers are its bound."""
    low, high = ends(build(hx.input("x", (1, TOKENS, WIDE))).value)
    for scale in (1.0, 100.0):
        x = normal(scale, shape=(1, TOKENS, WIDE))
        got = on_the_host(lambda x, _: build(x), 1.0, x)
        assert low <= got.min()
        assert got.max() <= high < 1e5


def test_large_numbers_of_a_one_hot_are_scaled() -> None:
    def build(x: hx.Tensor) -> hx.Tensor:
        return unit(one_of_four(x), (3,))

    numbers = normal(2, shape=(1, TOKENS, WIDE))
    assert_holds(Case(build, numbers, lambda x: on_the_host(lambda x, _: build(x), 1.0, x), "engine ieee"))
