"""WHILE and IF of TFLite whose course the data decide, against LiteRT."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.tflite.opened import open_model
from tflite_references import reference
from tflite_writer import TfliteModel

RNG = np.random.default_rng(9)
W = RNG.uniform(0, 0.25, (8, 8)).astype(np.float32)


def graph_of(m: TfliteModel) -> Graph:
    model = open_model(m.tobytes())
    return model.graph(next(iter(model.signatures)), {})


def compared(m: TfliteModel, *feeds: np.ndarray) -> None:
    made = hx.compile(m.tobytes(), threads=1)(*feeds)
    got = [made] if isinstance(made, np.ndarray) else list(made.values())
    for array, want in zip(got, reference(m.tobytes(), *feeds), strict=True):
        assert (array.shape, array.dtype) == (want.shape, want.dtype)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(array, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
        else:
            np.testing.assert_array_equal(array, want)


def loop(steps: Any = None, *, quantised: bool = False) -> TfliteModel:
    """While k < n and the largest of s is below 20,000: s = 1.1 |s W| + x, k = k + 1. steps: n as a constant; None: it
    is an input."""
    m = TfliteModel()
    grid: dict[str, Any] = {"kind": "int8", "scales": 0.9, "zero": -3} if quantised else {}

    def begin() -> tuple[int, int, int, int]:
        m.subgraph()
        k, n, s, x = m.tensor((), "int32"), m.tensor((), "int32"), m.tensor((2, 8), **grid), m.tensor((2, 8), **grid)
        m.graph["inputs"] = [k, n, s, x]
        return k, n, s, x

    m.subgraph()
    n = m.tensor((), "int32", None if steps is None else np.int32(steps))
    x = m.tensor((2, 8), **grid)
    zero = m.tensor((), "int32", np.int32(0))
    results = [m.tensor((), "int32"), m.tensor((), "int32"), m.tensor((2, 8), **grid), m.tensor((2, 8), **grid)]
    m.op("WHILE", [zero, n, x, x], results, cond_subgraph_index=1, body_subgraph_index=2)
    m.graph["inputs"] = [x] if steps is not None else [n, x]
    m.graph["outputs"] = [results[0], results[2]]

    k, n, s, _ = begin()
    less, most, small, both = m.tensor((), "bool"), m.tensor((), **grid), m.tensor((), "bool"), m.tensor((), "bool")
    m.op("LESS", [k, n], [less])
    m.op("REDUCE_MAX", [s, m.tensor((2,), "int32", np.array([0, 1]))], [most], keep_dims=False)
    limit = m.tensor((), data=np.int8(100) if quantised else np.float32(20_000), **grid)
    m.op("LESS", [most, limit], [small])
    m.op("LOGICAL_AND", [less, small], [both])
    m.graph["outputs"] = [both]

    k, n, s, x = begin()
    k2, product, positive, s2 = m.tensor((), "int32"), m.tensor((2, 8), **grid), m.tensor((2, 8), **grid), 0
    m.op("ADD", [k, m.tensor((), "int32", np.int32(1))], [k2])
    if quantised:
        w = m.tensor((8, 8), "int8", np.clip(np.round(1.1 * W / 0.01), -127, 127), scales=0.01)
        m.op("FULLY_CONNECTED", [s, w, -1], [product])
    else:
        m.op("FULLY_CONNECTED", [s, m.tensor((8, 8), data=1.1 * W), -1], [product])
    m.op("ABS", [product], [positive])
    s2 = m.tensor((2, 8), **grid)
    m.op("ADD", [positive, x], [s2])
    m.graph["outputs"] = [k2, n, s2, x]
    return m


@pytest.mark.parametrize("steps", [0, 1, 6, 300])
def test_a_loop_ends_where_the_data_say(steps: int, tmp_path: Path) -> None:
    m = loop()
    assert "loop" in graph_of(m).ops
    x = RNG.uniform(0, 255, (2, 8)).astype(np.float32)
    compared(m, np.array(steps, np.int32), x)
    net = hx.compile(m.tobytes(), threads=1)
    assert isinstance(net, hx.Model)
    net.save(tmp_path / "net.hxp")
    again = hx.load(tmp_path / "net.hxp")(np.array(steps, np.int32), x)
    for name, array in net(np.array(steps, np.int32), x).items():
        np.testing.assert_array_equal(again[name], array)


def test_a_loop_of_integers_has_the_bits_of_litert() -> None:
    for steps in (0, 2, 9):
        compared(loop(quantised=True), np.array(steps, np.int32), RNG.integers(-100, 40, (2, 8)).astype(np.int8))


def counted(steps: int, more: int) -> TfliteModel:
    """While k < steps: s = tanh(s) + x, `more` times over."""
    m = TfliteModel()
    for role in range(3):
        m.subgraph()
        k, s, x = m.tensor((), "int32", np.int32(0) if role == 0 else None), m.tensor((3,)), m.tensor((3,))
        m.graph["inputs"] = [x] if role == 0 else [k, s, x]
        if role == 0:
            results = [m.tensor((), "int32"), m.tensor((3,)), m.tensor((3,))]
            m.op("WHILE", [k, x, x], results, cond_subgraph_index=1, body_subgraph_index=2)
            m.graph["outputs"] = [results[1]]
        elif role == 1:
            less = m.tensor((), "bool")
            m.op("LESS", [k, m.tensor((), "int32", np.int32(steps))], [less])
            m.graph["outputs"] = [less]
        else:
            k2 = m.tensor((), "int32")
            m.op("ADD", [k, m.tensor((), "int32", np.int32(1))], [k2])
            for _ in range(more):
                t, s2 = m.tensor((3,)), m.tensor((3,))
                m.op("TANH", [s], [t])
                m.op("ADD", [t, x], [s2])
                s = s2
            m.graph["outputs"] = [k2, s, x]
    return m


@pytest.mark.parametrize(("steps", "more", "stays"), [(5, 3, False), (200, 20, True), (5000, 1, True)])
def test_a_loop_of_a_known_count_is_written_out_unless_it_is_long(steps: int, more: int, stays: bool) -> None:
    m = counted(steps, more)
    assert ("loop" in graph_of(m).ops) == stays
    compared(m, RNG.standard_normal(3).astype(np.float32))


def branches(*, same: bool = True) -> TfliteModel:
    """Where the sum of x is above 1,000, a product; else a row of a table, whose index may be out of range."""
    m = TfliteModel()
    m.subgraph()
    x, i = m.tensor((1, 8)), m.tensor((1,), "int32")
    total, above, y = m.tensor(()), m.tensor((), "bool"), m.tensor((1, 8))
    m.op("SUM", [x, m.tensor((2,), "int32", np.array([0, 1]))], [total], keep_dims=False)
    m.op("GREATER", [total, m.tensor((), data=np.float32(1000))], [above])
    m.op("IF", [above, x, i], [y], then_subgraph_index=1, else_subgraph_index=2)
    m.graph["inputs"], m.graph["outputs"] = [x, i], [y]
    for role in range(2):
        m.subgraph()
        x, i, y = m.tensor((1, 8)), m.tensor((1,), "int32"), m.tensor((1, 8) if same or role else (8,))
        if role == 0:
            m.op("FULLY_CONNECTED", [x, m.tensor((8, 8), data=W), -1], [y])
        else:
            m.op("GATHER", [m.tensor((8, 8), data=100 * W), i], [y])
        m.graph["inputs"], m.graph["outputs"] = [x, i], [y]
    return m


@pytest.mark.parametrize("above", [True, False])
def test_only_the_chosen_branch_is_computed(above: bool) -> None:
    m = branches()
    assert "cond" in graph_of(m).ops
    x = np.full((1, 8), 255 if above else 3, np.float32)
    index = np.array([10**6 if above else 5], np.int32)
    if not above:
        compared(m, x, index)
    got = np.asarray(hx.compile(m.tobytes(), threads=1)(x, index))
    np.testing.assert_allclose(got[0], x[0] @ W.T if above else 100 * W[5], rtol=1e-5)


def test_a_variable_that_a_branch_writes_is_refused() -> None:
    m = TfliteModel()
    m.subgraph()
    x, total, above, y = m.tensor((3,)), m.tensor(()), m.tensor((), "bool"), m.tensor((3,))
    m.op("SUM", [x, m.tensor((1,), "int32", np.array([0]))], [total], keep_dims=False)
    m.op("GREATER", [total, m.tensor((), data=np.float32(0))], [above])
    m.op("IF", [above, x], [y], then_subgraph_index=1, else_subgraph_index=2)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    m.subgraph()
    x = m.tensor((3,))
    m.graph["inputs"], m.graph["outputs"] = [x], [x]
    m.subgraph()
    x, handle, y = m.tensor((3,)), m.tensor((1,), "RESOURCE"), m.tensor((3,))
    m.op("VAR_HANDLE", [], [handle], shared_name="last")
    m.op("ADD", [x, m.tensor((), data=np.float32(1))], [y])
    m.op("ASSIGN_VARIABLE", [handle, y], [])
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    with pytest.raises(Error, match="got a branch that writes a variable"):
        hx.compile(m.tobytes())


def test_a_variable_that_a_body_reads_is_its_newest_value() -> None:
    """total = total + x at each call, then doubled until its sum is above 100."""
    m = TfliteModel()
    m.subgraph()
    x, handle, old, new = m.tensor((3,)), m.tensor((1,), "RESOURCE"), m.tensor((3,)), m.tensor((3,))
    m.op("VAR_HANDLE", [], [handle], shared_name="total")
    m.op("READ_VARIABLE", [handle], [old])
    m.op("ADD", [old, x], [new])
    m.op("ASSIGN_VARIABLE", [handle, new], [])
    h2, y = m.tensor((1,), "RESOURCE"), m.tensor((3,))
    m.op("WHILE", [handle, x], [h2, y], cond_subgraph_index=1, body_subgraph_index=2)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    m.subgraph()
    h, s, total, less = m.tensor((1,), "RESOURCE"), m.tensor((3,)), m.tensor(()), m.tensor((), "bool")
    m.op("SUM", [s, m.tensor((1,), "int32", np.array([0]))], [total], keep_dims=False)
    m.op("LESS", [total, m.tensor((), data=np.float32(100))], [less])
    m.graph["inputs"], m.graph["outputs"] = [h, s], [less]
    m.subgraph()
    h, s, kept, s2 = m.tensor((1,), "RESOURCE"), m.tensor((3,)), m.tensor((3,)), m.tensor((3,))
    m.op("READ_VARIABLE", [h], [kept])
    m.op("ADD", [s, kept], [s2])
    m.graph["inputs"], m.graph["outputs"] = [h, s], [h, s2]
    net, total_now, x = hx.compile(m.tobytes(), threads=1), np.zeros(3, np.float32), np.array([1, 2, 3], np.float32)
    for _ in range(3):
        total_now = total_now + x
        want = x
        while want.sum() < 100:
            want = want + total_now
        np.testing.assert_array_equal(np.asarray(net(x)), want)
