"""Networks as files spell them whose numbers leave fp16, and what is claimed of each form that repairs one."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import hexane as hx
from hexane.build import graph
from hexane.passes.repair import repair, repairs_of, without_repair
from hexane.targets import load_target

Array = np.ndarray[Any, Any]
Build = Callable[[hx.Tensor], hx.Tensor]
CHIPS = [("h13", "engine"), ("h13", "ieee"), ("h17s", "engine"), ("h17s", "ieee")]
MOST = 4e-3  # relative L2


@dataclass(frozen=True)
class Case:
    """build: a network as files spell it. numbers: what it is given. want: the same in fp64. wrong: what the risky form
    is wrong in, "engine", "ieee", both, or neither: it is repaired by another pass already. most: relative L2; more for a layer_norm of a large mean, which the layer rounds."""

    build: Build
    numbers: Array
    want: Callable[[Array], Array]
    wrong: str = "engine ieee"
    most: float = MOST


def normal(deviation: float, mean: float = 0.0, shape: tuple[int, ...] = (4, 256)) -> Array:
    """Numbers of fp16, so that what is measured is the network's arithmetic."""
    return np.random.default_rng(7).normal(mean, deviation, shape).astype(np.float16).astype(np.float32)


def spiky(deviation: float) -> Array:
    """Hidden states of a language model: a few channels are far larger than the rest."""
    x = normal(deviation)
    x[:, 3], x[1, 77] = 20000, -3000
    return x


LAST: dict[str, Any] = {"axes": (1,), "keep_dims": True}


def mean(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_mean(x, **LAST)


def total(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_sum(x, **LAST)


def rms(x: Array, epsilon: float = 1e-6) -> Array:
    return x / np.sqrt((x**2).mean(1, keepdims=True) + epsilon)


def off(case: Case, target: str, numerics: str, repairs: bool) -> float:
    """Relative L2 from fp64; infinite where a number is not finite."""
    x = hx.input("x", case.numbers.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.FallbackWarning)
        net = hx.compile(case.build(x), target=target, numerics=numerics, repair=repairs)
    got, want = np.asarray(net(case.numbers), np.float64), case.want(case.numbers.astype(np.float64))
    return float(np.linalg.norm(got - want) / np.linalg.norm(want)) if np.isfinite(got).all() else np.inf


def assert_holds(case: Case) -> None:
    """Right on every chip, and wrong where it is not repaired."""
    for target, numerics in CHIPS:
        assert off(case, target, numerics, True) < case.most, (target, numerics)
    for numerics in case.wrong.split():
        assert off(case, "h13", numerics, False) > 3 * case.most, numerics


def assert_same_function(case: Case) -> None:
    """In fp32 on the host, at the ranges of the case and at small ones."""
    x = hx.input("x", case.numbers.shape)
    made = repair(graph(case.build(x)), load_target("h13"))
    for scale in (1.0, 2.0**-6):
        numbers = case.numbers * np.float32(scale)
        got = np.asarray(hx.compile(made)(numbers), np.float64)
        want = np.asarray(hx.compile(case.build(x))(numbers), np.float64)
        exact = case.want(numbers.astype(np.float64))
        allowed = 1e-4 * np.linalg.norm(exact) + 2 * np.linalg.norm(want - exact)
        assert np.linalg.norm(got - exact) <= allowed


def assert_decided(case: Case, is_repaired: bool = True) -> None:
    """Each change is a Decision with a place in a file, and a second run changes nothing."""
    chip = load_target("h13")
    model = graph(case.build(hx.input("x", case.numbers.shape)))
    made = repair(model, chip)
    assert repair(made, chip) is made or [n.op for n in repair(made, chip).nodes] == [n.op for n in made.nodes]
    assert bool(repairs_of(made)) == is_repaired
    assert all(d.verdict == "repaired" and d.reason and ".py:" in d.node for d in repairs_of(made))
    assert repair(without_repair(model), chip).nodes == model.nodes
