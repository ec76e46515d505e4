"""Loops and branches of ONNX whose course the data decide, against onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

import hexane as hx
from hexane import _core
from hexane.importers.onnx import import_onnx
from hexane.ops.reference import run_reference
from hexane.report.estimate import remarks

W = np.random.default_rng(5).normal(size=(8, 8)).astype(np.float32) / 3


def info(name: str, dtype: int, shape: list[int]) -> Any:
    return h.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, value: Any) -> Any:
    return numpy_helper.from_array(np.asarray(value), name)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any] | None = None) -> bytes:
    made = h.make_model(
        h.make_graph(nodes, "g", inputs, outputs, constants or []), opset_imports=[h.make_opsetid("", 17)]
    )
    made.ir_version = 10
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def check(net: hx.Model, made: bytes, feeds: dict[str, Any]) -> None:
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    got = net(**feeds)
    for array, want in zip(
        [got] if isinstance(got, np.ndarray) else got.values(), session.run(None, feeds), strict=True
    ):
        assert (array.shape, array.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(array, want, rtol=1e-5, atol=1e-5)


def while_loop() -> bytes:
    """Until the largest element is 1.2 or n steps are done; b is of the graph around."""
    body = h.make_graph(
        [
            h.make_node("MatMul", ["s", "W"], ["m"]),
            h.make_node("Tanh", ["m"], ["t"]),
            h.make_node("Add", ["t", "b"], ["s2"]),
            h.make_node("ReduceMax", ["s2"], ["largest"], keepdims=0),
            h.make_node("Less", ["largest", "end"], ["c2"]),
            h.make_node("Add", ["k", "i"], ["k2"]),
            h.make_node("Not", ["odd"], ["odd2"]),
        ],
        "body",
        [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, [2, 8]), info("k", T.INT64, []), info("odd", T.BOOL, [])],
        [info("c2", T.BOOL, []), info("s2", T.FLOAT, [2, 8]), info("k2", T.INT64, []), info("odd2", T.BOOL, [])],
        [tensor("W", W), tensor("end", np.float32(1.2))],
    )  # fmt: skip
    return model(
        [h.make_node("Mul", ["x", "tenth"], ["b"]), h.make_node("Loop", ["n", "go", "x", "k0", "odd0"], ["y", "k", "odd"], body=body)],
        [info("x", T.FLOAT, [2, 8]), info("n", T.INT64, []), info("go", T.BOOL, [])],
        [info("y", T.FLOAT, [2, 8]), info("k", T.INT64, []), info("odd", T.BOOL, [])],
        [tensor("tenth", np.float32(0.1)), tensor("k0", np.int64(0)), tensor("odd0", np.array(False))],
    )  # fmt: skip


@pytest.mark.parametrize("go", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 7, 100])
def test_a_loop_runs_as_often_as_limit_and_condition_say(steps: int, go: bool, tmp_path: Path) -> None:
    made, rng = while_loop(), np.random.default_rng(steps)
    net = hx.compile(made)
    assert isinstance(net, hx.Model)
    net.save(tmp_path / "net.hxp")
    feeds = {"x": rng.normal(size=(2, 8)).astype(np.float32), "n": np.array(steps), "go": np.array(go)}
    check(net, made, feeds)
    loaded = hx.load(tmp_path / "net.hxp")
    assert isinstance(loaded, hx.Model)
    check(loaded, made, feeds)


def test_the_text_of_a_loop_has_its_body_and_reads_back() -> None:
    graph = import_onnx(while_loop())
    assert "  body: graph body (%step: int64[]" in str(graph)
    again = hx.parse(str(graph), graph.constants())
    assert str(again) == str(graph)
    feeds = {"x": np.ones((2, 8), np.float32), "n": np.array(3), "go": np.array(True)}
    np.testing.assert_allclose(run_reference(again, feeds)["y"], hx.compile(graph)(**feeds)["y"], rtol=1e-5)


def test_a_long_scan_is_one_op() -> None:
    body = h.make_graph(
        [
            h.make_node("MatMul", ["s", "W"], ["m"]),
            h.make_node("Add", ["m", "piece"], ["a"]),
            h.make_node("Sigmoid", ["a"], ["gate"]),
            h.make_node("Tanh", ["a"], ["t"]),
            h.make_node("Mul", ["gate", "t"], ["s2"]),
            h.make_node("Neg", ["s2"], ["row"]),
        ],
        "body",
        [info("s", T.FLOAT, [1, 8]), info("piece", T.FLOAT, [1, 8])],
        [info("s2", T.FLOAT, [1, 8]), info("row", T.FLOAT, [1, 8])],
        [tensor("W", W)],
    )
    node = h.make_node(
        "Scan", ["s0", "x"], ["y", "rows"], body=body, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[-1],
        scan_input_directions=[1], scan_output_directions=[1],
    )  # fmt: skip
    made = model([node], [info("x", T.FLOAT, [1, 512, 8])], [info("y", T.FLOAT, [1, 8]), info("rows", T.FLOAT, [1, 8, 512])],
                 [tensor("s0", np.zeros((1, 8), np.float32))])  # fmt: skip
    assert "loop" in import_onnx(made).ops
    check(hx.compile(made), made, {"x": np.random.default_rng(1).normal(size=(1, 512, 8)).astype(np.float32)})


def test_a_loop_in_a_loop_reads_both_graphs_around_it() -> None:
    inner = h.make_graph(
        [h.make_node("Mul", ["z", "x"], ["p"]), h.make_node("Add", ["p", "s"], ["z2"]), h.make_node("Identity", ["d"], ["d2"])],
        "inner",
        [info("j", T.INT64, []), info("d", T.BOOL, []), info("z", T.FLOAT, [4])],
        [info("d2", T.BOOL, []), info("z2", T.FLOAT, [4])],
    )  # fmt: skip
    outer = h.make_graph(
        [h.make_node("Loop", ["i", "", "s"], ["s2"], body=inner), h.make_node("Identity", ["c"], ["c2"])],
        "outer",
        [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, [4])],
        [info("c2", T.BOOL, []), info("s2", T.FLOAT, [4])],
    )
    made = model([h.make_node("Loop", ["n", "", "x"], ["y"], body=outer)], [info("x", T.FLOAT, [4]), info("n", T.INT64, [])],
                 [info("y", T.FLOAT, [4])])  # fmt: skip
    net = hx.compile(made)
    for steps in (0, 1, 4):
        check(net, made, {"x": np.linspace(0.1, 0.9, 4).astype(np.float32), "n": np.array(steps)})


@pytest.mark.parametrize("positive", [True, False])
def test_only_the_chosen_branch_is_computed(positive: bool) -> None:
    """The other one would read an index out of range."""
    then = h.make_graph(
        [h.make_node("Gather", ["W", "index"], ["a"])], "then", [], [info("a", T.FLOAT, [8])], [tensor("W", W)]
    )
    other = h.make_graph(
        [h.make_node("ReduceMax", ["x"], ["b"], axes=[0], keepdims=0)], "else", [], [info("b", T.FLOAT, [8])]
    )
    made = model(
        [h.make_node("ReduceSum", ["x"], ["sum"], keepdims=0), h.make_node("Greater", ["sum", "zero"], ["c"]),
         h.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [info("x", T.FLOAT, [2, 8]), info("index", T.INT64, [])], [info("y", T.FLOAT, [8])], [tensor("zero", np.float32(0))],
    )  # fmt: skip
    sign = 1 if positive else -1
    x = sign * np.random.default_rng(3).uniform(0.5, 1, (2, 8)).astype(np.float32)
    check(hx.compile(made), made, {"x": x, "index": np.array(5 if positive else 99)})


def chosen(rows: int, fixed: bool = True) -> bytes:
    """A matrix of two, by an input."""
    then = h.make_graph([h.make_node("MatMul", ["x", "W"], ["a"])], "then", [], [info("a", T.FLOAT, [2, 8])])
    other = h.make_graph(
        [h.make_node("Slice", ["x", "from", "to", "axes"], ["b"])], "else", [],
        [info("b", T.FLOAT, [rows, 8] if fixed else ["rows", 8])],
        [tensor("from", [0]), tensor("to", [rows]), tensor("axes", [0])],
    )  # fmt: skip
    return model(
        [h.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [info("x", T.FLOAT, [2, 8]), info("c", T.BOOL, [])], [info("y", T.FLOAT, [None, 8])], [tensor("W", W)],
    )  # fmt: skip


@pytest.mark.parametrize("truth", [True, False])
def test_an_input_chooses_between_branches_of_one_type_at_run_time(truth: bool, tmp_path: Path) -> None:
    made, x = chosen(2), np.random.default_rng(5).normal(size=(2, 8)).astype(np.float32)
    net = hx.compile(made)
    assert isinstance(net, hx.Model)
    check(net, made, {"x": x, "c": np.array(truth)})
    fixed = hx.compile(made, input_values={"c": np.array(truth)})
    assert "cond" not in str(fixed.program)
    np.testing.assert_array_equal(fixed(x), net(x=x, c=np.array(truth)))
    hx.save_coreml(made, tmp_path / "net.mlpackage", compute="fp32")
    read = hx.compile(tmp_path / "net.mlpackage")
    given = {port.name: np.full(port.shape, truth if port.name == "c" else x, port.dtype.numpy) for port in read.inputs}
    np.testing.assert_allclose(read(**given), net(x=x, c=np.array(truth)), rtol=1e-6)


@pytest.mark.parametrize(("rows", "fixed"), [(1, True), (2, False)])
def test_branches_of_other_shapes_need_the_value_that_chooses(rows: int, fixed: bool) -> None:
    made = chosen(rows, fixed)
    net = hx.compile(made)
    assert isinstance(net, hx.OpenModel)
    check(net, made, {"x": np.ones((2, 8), np.float32), "c": np.array(False)})


def test_stacked_outputs_of_an_unknown_number_of_steps_are_refused() -> None:
    body = h.make_graph(
        [h.make_node("Identity", ["c"], ["c2"]), h.make_node("Add", ["s", "s"], ["s2"]), h.make_node("Identity", ["s2"], ["r"])],
        "body",
        [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, [1, 2])],
        [info("c2", T.BOOL, []), info("s2", T.FLOAT, [1, 2]), info("r", T.FLOAT, [1, 2])],
    )  # fmt: skip
    made = model(
        [h.make_node("ReduceMax", ["x"], ["m"], keepdims=0), h.make_node("Cast", ["m"], ["n"], to=T.INT64),
         h.make_node("Loop", ["n", "", "x"], ["y", "rows"], body=body)],
        [info("x", T.FLOAT, [1, 2])], [info("y", T.FLOAT, [1, 2]), info("rows", T.FLOAT, [None, 1, 2])],
    )  # fmt: skip
    with pytest.raises(hx.Error, match="need its largest value: give the trip count"):
        hx.compile(made)


def test_damaged_bodies_are_refused_or_run() -> None:
    plan = hx.compile(while_loop()).plan_bytes()
    read = _core.plan_read(plan)
    rng, ran = np.random.default_rng(11), 0
    feeds = {"x": np.ones((2, 8), np.float32), "n": np.array(3), "go": np.array(True)}
    for _ in range(300):
        weights = np.array(read["weights"])
        weights[rng.integers(len(weights), size=2)] = rng.integers(256, size=2)
        sections = {name: np.array(rows) for name, rows in read.items()} | {"weights": weights}
        try:
            _core.Program(sections, 1).run(feeds)
            ran += 1
        except hx.Error:
            pass
    assert ran < 300


def test_packages_and_chips_say_what_they_do_with_a_loop(tmp_path: Path) -> None:
    made, rng = while_loop(), np.random.default_rng(3)
    feeds = {"x": rng.normal(size=(2, 8)).astype(np.float32), "n": np.array(7), "go": np.array(True)}
    hx.save_coreml(made, tmp_path / "net.mlpackage", compute="fp32")
    with pytest.warns(hx.FallbackWarning, match="the engine runs no loops"):
        net = hx.compile(made, target="M4")
    want, got = hx.compile(made)(**feeds), net(**feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-2, atol=1e-2)
    whole = {"n": np.array([7], np.int32), "go": np.array([1], np.int32)}
    for name, array in hx.compile(tmp_path / "net.mlpackage")(**feeds | whole).items():
        np.testing.assert_array_equal(array.reshape(want[name].shape), want[name])


def test_an_estimate_says_that_a_loop_is_not_counted() -> None:
    found = hx.estimate(while_loop(), "M4")
    assert found.open_loops == 1
    assert any("the data decide the number of steps" in line for line in remarks(found))


def tensorflow_lstm(kind: str = "counter") -> bytes:
    """An LSTM as tf2onnx writes the while loop of Keras: no trip count, a condition on a carried counter, the length
    and the weights carried through, and padded steps that keep the state. kind: what the condition depends on."""
    size, rng = 8, np.random.default_rng(7)
    gates = [h.make_node("Split", ["z"], ["zi", "zf", "zc", "zo"], axis=1)]
    nodes = [
        h.make_node("Add", ["k", "one"], ["k2"]),
        h.make_node("Gather", ["x", "k"], ["piece"]),
        h.make_node("Gather", ["mask", "k"], ["here"]),
        h.make_node("MatMul", ["piece", "w"], ["from_x"]),
        h.make_node("MatMul", ["h", "r"], ["from_h"]),
        h.make_node("Add", ["from_x", "from_h"], ["sum"]),
        h.make_node("Add", ["sum", "bias"], ["z"]),
        *gates,
        h.make_node("Sigmoid", ["zi"], ["i"]),
        h.make_node("Sigmoid", ["zf"], ["f"]),
        h.make_node("Sigmoid", ["zo"], ["o"]),
        h.make_node("Tanh", ["zc"], ["g"]),
        h.make_node("Mul", ["f", "c"], ["kept"]),
        h.make_node("Mul", ["i", "g"], ["new"]),
        h.make_node("Add", ["kept", "new"], ["c_here"]),
        h.make_node("Tanh", ["c_here"], ["t"]),
        h.make_node("Mul", ["o", "t"], ["h_here"]),
        h.make_node("Where", ["here", "h_here", "h"], ["h2"]),
        h.make_node("Where", ["here", "c_here", "c"], ["c2"]),
        h.make_node("Identity", ["h2"], ["row"]),
        h.make_node("Cast", ["k2"], ["k_real"], to=T.FLOAT),
        h.make_node("Cast", ["length"], ["length_real"], to=T.FLOAT),
        h.make_node("Less", ["k_real", "length_real"], ["early"]),
    ]
    if kind == "data":
        nodes += [
            h.make_node("ReduceMax", ["h2"], ["largest"], keepdims=0),
            h.make_node("Less", ["largest", "most"], ["small"]),
            h.make_node("And", ["early", "small"], ["going2"]),
        ]
    else:
        nodes.append(h.make_node("Identity", ["early"], ["going2"]))
    state = [("k", T.INT64, []), ("h", T.FLOAT, [1, size]), ("c", T.FLOAT, [1, size]), ("length", T.INT64, []),
             ("w", T.FLOAT, [5, 4 * size]), ("r", T.FLOAT, [size, 4 * size]), ("bias", T.FLOAT, [4 * size])]  # fmt: skip
    after = {"k": "k2", "h": "h2", "c": "c2"}
    body = h.make_graph(
        nodes, "body", [info("step", T.INT64, []), info("going", T.BOOL, []), *(info(*s) for s in state)],
        [info("going2", T.BOOL, []), *(info(after.get(n, n + "_same"), t, s) for n, t, s in state),
         info("row", T.FLOAT, [1, size])],
        [tensor("one", np.int64(1)), tensor("most", np.float32(0.4))],
    )  # fmt: skip
    body.node.extend(h.make_node("Identity", [n], [n + "_same"]) for n, _, _ in state if n not in after)
    outer = [
        h.make_node("Shape", ["x"], ["shape"]),
        h.make_node("Gather", ["shape", "zero"], ["steps"]),
        h.make_node("Less", ["zero", "steps"], ["start"]),
        h.make_node("Cast", ["flags"], ["mask"], to=T.BOOL),
        h.make_node("Loop", ["", "start", "zero", "h0", "h0", "steps", "W", "R", "B"],
                    ["k_last", "h_last", "c_last", "l", "w_", "r_", "b_", "rows"], body=body),
    ]  # fmt: skip
    draw = {"W": (5, 4 * size), "R": (size, 4 * size), "B": (4 * size,)}
    return model(
        outer,
        [info("x", T.FLOAT, ["steps", 1, 5]), info("flags", T.FLOAT, ["steps", 1, 1])],
        [info("rows", T.FLOAT, ["steps", 1, size]), info("h_last", T.FLOAT, [1, size]), info("k_last", T.INT64, [])],
        [tensor("zero", np.int64(0)), tensor("h0", np.zeros((1, size), np.float32)),
         *(tensor(n, rng.normal(size=s).astype(np.float32) / 2) for n, s in draw.items())],
    )  # fmt: skip


@pytest.mark.parametrize("steps", [1, 20, 300])
def test_a_loop_of_tensorflow_that_ends_by_its_counter_has_a_trip_count(steps: int, tmp_path: Path) -> None:
    made, rng = tensorflow_lstm(), np.random.default_rng(steps)
    flags = (rng.random((steps, 1, 1)) < 0.8).astype(np.float32)
    feeds = {"x": rng.normal(size=(steps, 1, 5)).astype(np.float32), "flags": flags}
    net = hx.compile(made, input_shapes={"x": (steps, 1, 5), "flags": flags.shape})
    assert isinstance(net, hx.Model)
    check(net, made, feeds)
    graph = import_onnx(made, shapes={"x": (steps, 1, 5), "flags": flags.shape})
    loops = [node for node in graph.nodes if node.op == "loop"]
    if steps < 300:
        assert not loops  # unrolled
        return
    (loop,) = loops
    assert (loop.attrs["most"], loop.attrs["whole"], loop.attrs["carried"]) == (steps, True, 3)
    net.save(tmp_path / "net.hxp")
    check(hx.load(tmp_path / "net.hxp"), made, feeds)  # type: ignore[arg-type]


def test_a_loop_that_ends_by_its_data_has_no_trip_count() -> None:
    shapes = {"x": (300, 1, 5), "flags": (300, 1, 1)}
    with pytest.raises(hx.Error, match="outputs that are stacked and a trip count that is computed at run time"):
        import_onnx(tensorflow_lstm("data"), shapes=shapes)


def counting_loop(limit: int, end: int, rows: bool = False, start: str = "") -> bytes:
    """Ends after `end` steps of a carried counter, and after `limit` steps. end: 0 gives the constant condition False.
    start: the condition before the first step."""
    nodes = [
        h.make_node("Tanh", ["s"], ["s2"]),
        h.make_node("Add", ["k", "one"], ["k2"]),
        h.make_node("Less", ["k2", "end"], ["going2"]) if end else h.make_node("Identity", ["no"], ["going2"]),
        *[h.make_node("Identity", ["s2"], ["row"])] * rows,
    ]
    body = h.make_graph(
        nodes, "body",
        [info("step", T.INT64, []), info("going", T.BOOL, []), info("s", T.FLOAT, [2]), info("k", T.INT64, [])],
        [info("going2", T.BOOL, []), info("s2", T.FLOAT, [2]), info("k2", T.INT64, []),
         *[info("row", T.FLOAT, [2])] * rows],
    )  # fmt: skip
    outputs = [info("y", T.FLOAT, [2]), info("count", T.INT64, []), *[info("rows", T.FLOAT, ["n", 2])] * rows]
    return model(
        [h.make_node("Loop", ["limit", start, "x", "zero"], [o.name for o in outputs], body=body)],
        [info("x", T.FLOAT, [2]), *[info(start, T.BOOL, [])] * bool(start)],
        outputs,
        [tensor("limit", np.int64(limit)), tensor("zero", np.int64(0)), tensor("one", np.int64(1)),
         tensor("end", np.int64(end)), tensor("no", np.array(False))],
    )  # fmt: skip


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("end", [0, 1, 10, 64, 300])
@pytest.mark.parametrize("limit", [5000, 2**63 - 1])
def test_a_condition_ends_a_loop_long_before_its_limit(limit: int, end: int, rows: bool) -> None:
    """PyTorch writes `while` with the largest trip count."""
    made = counting_loop(limit, end, rows)
    net = hx.compile(made)
    assert isinstance(net, hx.Model)
    check(net, made, {"x": np.array([1, -2], np.float32)})


@pytest.mark.parametrize("go", [False, True])
@pytest.mark.parametrize("end", [0, 1, 10])
@pytest.mark.parametrize("limit", [-3, 0, 1])
def test_a_loop_without_steps_keeps_what_it_carries(limit: int, end: int, go: bool) -> None:
    made = counting_loop(limit, end, start="go")
    net = hx.compile(made)
    assert isinstance(net, hx.Model)
    check(net, made, {"x": np.array([1, -2], np.float32), "go": np.array(go)})
