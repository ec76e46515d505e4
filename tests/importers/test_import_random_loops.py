"""Random ops in ONNX loops and branches that stay one op draw the numbers of unrolled loops and of selects."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from hexane.errors import Error
from hexane.importers.onnx import import_onnx
from hexane.ops.reference import run_reference

node = helper.make_node
X = np.array([1, 2, 4], np.float32)


def info(name: str, kind: int = TensorProto.FLOAT, shape: Any = (3,)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def body(nodes: list[onnx.NodeProto], stacks: bool = False) -> onnx.GraphProto:
    """Reads the carried a and the counter i, and returns b, which is stacked too if asked."""
    ports = [info("i", TensorProto.INT64, ()), info("c", TensorProto.BOOL, ()), info("a")]
    nodes = [*nodes, node("Identity", ["c"], ["goes"])]
    if stacks:
        nodes.append(node("Identity", ["b"], ["row"]))
    results = [info("goes", TensorProto.BOOL, ()), info("b"), *[info("row")] * stacks]
    return helper.make_graph(nodes, "body", ports, results)


DRAW = [node("RandomNormal", [], ["r"], shape=[3], seed=7.0), node("Add", ["a", "r"], ["b"])]


def model(inner: onnx.GraphProto, count: int | None, outputs: int = 1) -> onnx.ModelProto:
    """A loop of `count` steps. None: of as many as the input n says."""
    names = ["y", "rows"][:outputs]
    inputs, constants = [info("x")], []
    if count is None:
        inputs.append(info("n", TensorProto.FLOAT, ()))
        nodes = [node("Cast", ["n"], ["m"], to=TensorProto.INT64)]
    else:
        nodes, constants = [], [numpy_helper.from_array(np.array(count), "m")]
    nodes.append(node("Loop", ["m", "", "x"], names, body=inner))
    results = [info(name, shape=None) for name in names]
    graph = helper.make_graph(nodes, "test", inputs, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def steps(count: int) -> dict[str, Any]:
    return {"x": X, "n": np.array(count, np.float32)}


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_loop_with_a_computed_trip_count_draws_what_the_unrolled_one_draws(count: int) -> None:
    unrolled, loop = (hx.compile(model(body(DRAW), n)) for n in (count, None))
    assert "loop" in import_onnx(model(body(DRAW), None)).ops
    seen = set()
    for _ in range(3):
        want = unrolled(x=X)
        np.testing.assert_array_equal(loop(**steps(count)), want)
        seen.add(want.tobytes())
    assert len(seen) == 3


def test_two_random_ops_of_a_body_have_streams_of_their_own() -> None:
    draws = [
        node("RandomUniform", [], ["r"], shape=[3], seed=7.0),
        node("RandomUniform", [], ["s"], shape=[3], seed=8.0),
        node("Sub", ["r", "s"], ["d"]),
        node("Add", ["a", "d"], ["b"]),
    ]
    unrolled, loop = (hx.compile(model(body(draws), n)) for n in (5, None))
    for _ in range(3):
        want = unrolled(x=X)
        assert not (want == X).any()
        np.testing.assert_array_equal(loop(**steps(5)), want)


def test_a_long_loop_draws_other_numbers_in_every_step() -> None:
    """Also beyond 4096 steps, in all calls."""
    draws = [node("RandomUniform", [], ["b0"], shape=[3], seed=3.0), node("Mul", ["a", "zero"], ["z"]),
             node("Add", ["b0", "z"], ["b"])]  # fmt: skip
    made = model(body(draws, stacks=True), 9000, outputs=2)
    made.graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
    net = hx.compile(made)
    rows = np.concatenate([net(X)["rows"] for _ in range(2)])
    assert rows.shape == (18000, 3)
    assert len({row.tobytes() for row in rows}) == 18000
    assert abs(rows.mean() - 0.5) < 0.01


def branch(name: str, seed: float) -> onnx.GraphProto:
    chain = [node("Tanh", [f"{name}{i}"], [f"{name}{i + 1}"]) for i in range(9)]
    nodes = [
        node("RandomUniform", [], [f"{name}0"], shape=[3], seed=seed),
        *chain,
        node("Add", [f"{name}9", "a"], [name]),
    ]
    return helper.make_graph(nodes, name, [], [info(name)])


def test_a_branch_inside_a_loop_draws_from_the_stream_of_its_step() -> None:
    """The branch is a body inside of the loop's body."""
    chosen = [
        node("ReduceSum", ["a"], ["t"], keepdims=0), node("Greater", ["t", "x_sum"], ["large"]),
        node("If", ["large"], ["b"], then_branch=branch("p", 4.0), else_branch=branch("q", 5.0)),
    ]  # fmt: skip
    models = [model(body(chosen), n) for n in (6, None)]
    for made in models:
        made.graph.initializer.append(numpy_helper.from_array(np.float32(8), "x_sum"))
    unrolled, loop = map(hx.compile, models)
    for _ in range(3):
        np.testing.assert_array_equal(loop(**steps(6)), unrolled(x=X))


def test_a_call_of_no_steps_counts_as_a_call() -> None:
    unrolled, loop = (hx.compile(model(body(DRAW), n)) for n in (3, None))
    unrolled(x=X)
    np.testing.assert_array_equal(loop(**steps(0)), X)
    np.testing.assert_array_equal(loop(**steps(3)), unrolled(x=X))


def test_a_saved_loop_goes_on_where_it_began(tmp_path: Path) -> None:
    net = hx.compile(model(body(DRAW), None))
    want = [net(**steps(4)) for _ in range(2)]
    net.save(tmp_path / "loop.hxp")
    again = hx.load(tmp_path / "loop.hxp")
    again.reset_state()
    for array in want:
        np.testing.assert_array_equal(again(**steps(4)), array)


def test_the_reference_draws_the_same_numbers() -> None:
    made = model(body(DRAW), None)
    found = run_reference(import_onnx(made), steps(4))["y"]
    np.testing.assert_allclose(found, hx.compile(made)(**steps(4)), rtol=1e-5)


def test_random_numbers_in_two_nested_loops_of_computed_counts_are_refused() -> None:
    inner = helper.make_graph(
        [node("RandomNormal", [], ["r"], shape=[3], seed=7.0), node("Add", ["a2", "r"], ["b2"]),
         node("Identity", ["c2"], ["goes2"])],
        "inner", [info("i2", TensorProto.INT64, ()), info("c2", TensorProto.BOOL, ()), info("a2")],
        [info("goes2", TensorProto.BOOL, ()), info("b2")],
    )  # fmt: skip
    with pytest.raises(Error, match="two nested loops with trip counts known only at run time"):
        hx.compile(model(body([node("Loop", ["m", "", "a"], ["b"], body=inner)]), None))
