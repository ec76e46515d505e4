"""log_softmax_at and cross_entropy_gradient: the bits of the kernels that they replace, and their errors."""

import numpy as np
import pytest
from tests.support.kernels import poisoned, run, run_every_cut, same_bits

import hexane as hx
from hexane.errors import Error

SHAPES = [(1, 1), (3, 5), (4, 8), (7, 33), (5, 1000), (2, 32000)]


def rows(shape: tuple[int, int], wide: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(shape[1])
    x = (rng.standard_normal(shape) * 6).astype(np.float32)
    at = rng.integers(-shape[1], shape[1], (shape[0], 1)).astype(np.int64 if wide else np.int32)
    share = rng.standard_normal((shape[0], 1)).astype(np.float32)
    return x, at, share


def by_softmax(name: str, x: np.ndarray) -> np.ndarray:
    made = poisoned(x.shape, np.float32)
    run(name, [x], [made], {"axis": 1})
    return made


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_logarithm_at_a_place_is_that_of_log_softmax(shape: tuple[int, int], wide: bool) -> None:
    x, at, _ = rows(shape, wide)
    got = poisoned(at.shape, np.float32)
    run_every_cut("log_softmax_at", [x, at], [got])
    assert same_bits(got, np.take_along_axis(by_softmax("log_softmax", x), at, 1))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_softmax_with_less_at_a_place(shape: tuple[int, int], wide: bool) -> None:
    x, at, share = rows(shape, wide)
    got = poisoned(x.shape, np.float32)
    run_every_cut("cross_entropy_gradient", [x, at, share], [got])
    want = by_softmax("softmax", x) * share
    want[np.arange(len(x)), at[:, 0]] -= share[:, 0]
    assert same_bits(got, want)


def test_numbers_that_are_not_finite_stay_in_their_rows() -> None:
    x, at, share = rows((4, 33))
    x[1, 7], x[2, 3] = np.nan, np.inf
    logs, gradient = poisoned(at.shape, np.float32), poisoned(x.shape, np.float32)
    run("log_softmax_at", [x, at], [logs], {})
    run("cross_entropy_gradient", [x, at, share], [gradient], {})
    for found in (logs, gradient):
        assert np.isnan(found[1:3]).all(axis=1).tolist() == [True, True]
        assert np.isfinite(found[[0, 3]]).all()


@pytest.mark.parametrize("place", [5, -6, 2**31 - 1])
@pytest.mark.parametrize("name", ["log_softmax_at", "cross_entropy_gradient"])
def test_a_place_beyond_the_row_is_an_error(name: str, place: int) -> None:
    x, at, share = rows((3, 5))
    at[1] = place
    given, made = ([x, at], at.shape) if name == "log_softmax_at" else ([x, at, share], x.shape)
    with pytest.raises(Error, match=rf"{name}.*index: got {place}, need -5 to 4"):
        run(name, given, [np.empty(made, np.float32)], {})


@pytest.mark.parametrize(
    ("name", "given", "made", "told"),
    [
        ("log_softmax_at", [(3, 5), (2, 1)], (2, 1), r"operand 1 shape: got \(2, 1\), need \(3, 1\)"),
        ("log_softmax_at", [(3, 5), (3, 1)], (3, 5), "shape|extent"),
        ("log_softmax_at", [(3, 0), (3, 1)], (3, 1), "columns"),
        ("cross_entropy_gradient", [(3, 5), (3, 1), (3, 5)], (3, 5), "operand 2 shape"),
        ("cross_entropy_gradient", [(3, 5), (3, 1), (3, 1)], (3, 4), "shape|extent"),
        ("cross_entropy_gradient", [(2, 3, 5), (2, 3, 1), (2, 3, 1)], (2, 3, 5), "input shape"),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    name: str, given: list[tuple[int, ...]], made: tuple[int, ...], told: str
) -> None:
    arrays = [np.zeros(shape, np.int32 if i == 1 else np.float32) for i, shape in enumerate(given)]
    with pytest.raises(Error, match=told):
        run(name, arrays, [np.zeros(made, np.float32)], {})


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_and_its_gradient_never_hold_softmax(reduction: str) -> None:
    """Rows that are ignored, and threads: against the definition in fp64."""
    rng = np.random.default_rng(3)
    feeds = {"x": (3 * rng.standard_normal((9, 700))).astype(np.float32), "labels": rng.integers(0, 700, 9, np.int32)}
    feeds["labels"][4] = -100
    x, labels = hx.input("x", (9, 700)), hx.input("labels", (9,), "int32")
    loss = hx.cross_entropy(x, labels, reduction=reduction)
    graph = hx.graph({"loss": loss, "dx": hx.grad(hx.reduce_sum(loss), [x])[0]})
    counts = feeds["labels"] != -100
    logits = feeds["x"].astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    known = np.where(counts, feeds["labels"], 0)
    each = np.where(counts, -logs[np.arange(9), known], 0)
    dx = (np.exp(logs) - (np.arange(700) == known[:, None])) * counts[:, None]
    want = {"mean": each.sum() / 8, "sum": each.sum(), "none": each}[reduction]
    for threads in (1, 2):
        net = hx.compile(graph, threads=threads)
        assert isinstance(net, hx.Model)
        kernels = [step["kernel"] for step in net.steps]
        assert {"log_softmax_at", "cross_entropy_gradient"} <= {*kernels}
        assert not {"softmax", "log_softmax"} & {*kernels}
        got = net(feeds)
        np.testing.assert_allclose(np.squeeze(got["loss"]), want, rtol=1e-6)
        np.testing.assert_allclose(got["dx"], dx / (8 if reduction == "mean" else 1), rtol=2e-6, atol=1e-8)
