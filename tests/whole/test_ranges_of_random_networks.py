"""Random networks whose numbers reach 1e6 between their layers are as right on chips as with numbers near 1, or a
HazardWarning says where they are not."""

import warnings
from typing import Any

import numpy as np
import pytest
from test_chips import check_agrees

import hexane as hx
from hexane.build import graph
from ranged_networks import COLUMNS, FORMS, ROWS, network, normed_network

Array = np.ndarray[Any, Any]
CHIPS = [(target, numerics) for target in ("h13", "h17s") for numerics in ("engine", "ieee")]
TIMES, MORE = 5.0, 2e-3  # the error allowed of large numbers, by that of numbers near 1
LARGEST_INPUT = 12000.0  # four deviations are within fp16


def on_chip(net: hx.Tensor, x: Array, target: str, numerics: str) -> tuple[Array, bool]:
    """Its results, and whether it was warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        got = np.asarray(hx.compile(net, target=target, numerics=numerics)(x), np.float64)
    return got, any(issubclass(w.category, hx.HazardWarning) for w in said)


def off(got: Array, want: Array) -> float:
    """Relative L2; infinite where a number is not finite, or 0 where it should be large."""
    vanished = (got == 0) & (np.abs(want) > 0.05 * np.abs(want).max())
    return (
        float(np.linalg.norm(got - want) / np.linalg.norm(want))
        if np.isfinite(got).all() and not vanished.any()
        else np.inf
    )


def assert_as_right(seed: int, names: list[str], sizes: list[float], first: bool, chips: list[tuple[str, str]]) -> None:
    x = np.random.default_rng(seed).normal(0, 1, (ROWS, COLUMNS)).astype(np.float16).astype(np.float32)
    given = (x * np.float32(sizes[0])).astype(np.float16).astype(np.float32) if first else x
    near, far = network(seed, names, [1.0] * len(names), first), network(seed, names, sizes, first)
    want, wanted = (np.asarray(hx.compile(n)(v), np.float64) for n, v in ((near, x), (far, given)))
    if not np.isfinite(wanted).all():
        return  # fp32 does not hold the numbers either
    for target, numerics in chips:
        plain, _ = on_chip(near, x, target, numerics)
        got, warned = on_chip(far, given, target, numerics)
        assert warned or off(got, wanted) <= TIMES * off(plain, want) + MORE, (names, sizes, first, target, numerics)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_of_large_numbers_is_as_right_as_one_of_small(name: str) -> None:
    """Of an input of that size, and behind a factor."""
    rng = np.random.default_rng(len(name))
    chips = CHIPS[:1] + CHIPS[3:]
    assert_as_right(3, [name], [LARGEST_INPUT], True, chips)
    assert_as_right(3, [name], [float(10 ** rng.uniform(1, 6))], False, chips)


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(s, marks=pytest.mark.slow) for s in range(30, 300))])
def test_a_random_network_of_large_numbers_is_as_right_as_one_of_small(seed: int) -> None:
    rng = np.random.default_rng(2000 + seed)
    names = [str(n) for n in rng.choice(list(FORMS), int(rng.integers(2, 4)))]
    first = bool(rng.random() < 0.5)
    sizes = [float(10 ** rng.uniform(0, 6)) for _ in names]
    sizes[0] = min(sizes[0], LARGEST_INPUT) if first else sizes[0]
    assert_as_right(seed, names, sizes, first, [CHIPS[seed % 4]])


def test_a_square_with_an_end_a_little_beyond_fp16_between_layers_is_as_right_as_one_of_small() -> None:
    names = ["distance", "square, divided twice", "layer with a bias"]
    assert_as_right(262, names, [6966.0, 261.98, 1.62], True, CHIPS)


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
@pytest.mark.parametrize("target", ["h11", "h13"])
@pytest.mark.parametrize("seed", [*range(16), *(pytest.param(s, marks=pytest.mark.slow) for s in range(16, 80))])
def test_each_op_that_its_numbers_leave_to_the_host_has_a_verdict_with_the_reason(seed: int, target: str) -> None:
    """Of norms that a chip has as a product and a sum too, of which the host may compute one."""
    model = graph(normed_network(seed))
    net = hx.compile(model, target=target, numerics="ieee")
    check_agrees(model, net)
    refused = [entry.verdict for entry in hx.preflight(model, target).entries if not entry.verdict.runs]
    assert all(verdict.reason and verdict.source for verdict in refused)
