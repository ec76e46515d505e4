"""Loops and branches as ops, against the reference interpreter and integers counted by hand."""

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph, Port, tensor_type, unique
from hexane.ops import OPS, apply
from hexane.ops.reference import run_reference


def doubling(most: int) -> Graph:
    """x doubles while it is below 100; the values on the way are stacked."""
    step, going, x = (
        unique("input", n, tensor_type(d, ())) for n, d in (("i", "int64"), ("go", "bool"), ("x", "int64"))
    )
    (twice,) = apply(OPS["add"], [x, x], {})
    (on,) = apply(OPS["less"], [twice, hx.const(np.int64(100)).value], {})
    body = Graph((step, going, x), (Port("go", on), Port("x", twice), Port("row", twice)))
    limit, start = (unique("input", n, tensor_type("int64", ())) for n in ("limit", "start"))
    made = apply(OPS["loop"], [limit, None, start], {"body": body, "carried": 1, "most": most})
    return Graph((limit, start), tuple(Port(n, v) for n, v in zip(("x", "rows", "steps"), made, strict=True)))


@pytest.mark.parametrize(("limit", "rows"), [(0, []), (3, [6, 12, 24]), (99, [6, 12, 24, 48, 96, 192])])
def test_a_loop_stacks_as_many_rows_as_it_has_steps(limit: int, rows: list[int]) -> None:
    graph = doubling(8)
    feeds = {"limit": np.array(limit), "start": np.array(3)}
    got = hx.compile(graph)(**feeds)
    assert got["x"] == (rows or [3])[-1]
    assert got["steps"] == len(rows)
    assert got["rows"].tolist() == rows + [0] * (8 - len(rows))
    want = run_reference(graph, feeds)
    assert all((got[name] == want[name]).all() for name in want)


def test_a_loop_of_more_steps_than_its_stacks_hold_is_an_error() -> None:
    with pytest.raises(hx.Error, match="got more than 2 steps"):
        hx.compile(doubling(2))(limit=np.array(5), start=np.array(3))


def test_cond_computes_one_branch() -> None:
    flag, x = unique("input", "flag", tensor_type("bool", ())), unique("input", "x", tensor_type("int64", (3,)))
    bodies = []
    for op in ("add", "mul"):
        y = unique("input", "y", x.type)
        bodies.append(Graph((y,), (Port("z", apply(OPS[op], [y, y], {})[0]),)))
    (z,) = apply(OPS["cond"], [flag, x], {"then": bodies[0], "otherwise": bodies[1]})
    net = hx.compile(Graph((flag, x), (Port("z", z),)))
    assert net(flag=np.array(True), x=np.array([1, 5, 7])).tolist() == [2, 10, 14]
    assert net(flag=np.array(False), x=np.array([1, 5, 7])).tolist() == [1, 25, 49]
