"""Recurrent networks in the C99 runtime: one step of a plan that runs all steps of the network."""

import ctypes
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper
from test_c99_networks import load_unverified

import hexane as hx
from hexane.emit.c99 import generate
from hexane.errors import Error
from hexane.graph import Graph
from hexane.runtime.c99 import C99Model
from plans import PlanBuilder
from recurrent_networks import FORMS, GATES, network

Array = NDArray[Any]
SUM = 1e-5  # of the largest number, where terms are added in another order
DEVICE = hx.Memory(runtime="c99")


def compiled(graph: Graph | onnx.ModelProto, memory: hx.Memory | None = DEVICE) -> hx.Model:
    net = hx.compile(graph, target="host", threads=1, memory=memory)
    assert isinstance(net, hx.Model)
    return net


def kernels(net: hx.Model) -> list[str]:
    assert net.program is not None
    return [step.kernel for step in net.program.steps]


def named(net: hx.Model, feeds: dict[str, Array]) -> dict[str, Array]:
    found = net(feeds)
    return found if isinstance(found, dict) else {net.outputs[0].name: found}


def assert_near(got: Array, need: Array) -> None:
    assert got.shape == need.shape
    assert np.abs(got - need).max() <= SUM * max(np.abs(need).max(), 1e-30)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("op", GATES)
def test_a_loop_has_the_hosts_numbers(
    c99: ctypes.CDLL, c99_baseline: ctypes.CDLL, op: str, form: dict[str, Any]
) -> None:
    # 530 units: sums of more than one block.
    for extents in ((7, 1, 3, 5), (3, 2, 20, 530)):
        graph, feeds = network(op, extents, form)
        need, net = named(compiled(graph, None), feeds), compiled(graph)
        assert kernels(net)[-1] == "recurrent"
        for runtime in (c99, c99_baseline):
            got = C99Model(net.plan_bytes(), runtime)(feeds)
            for name, array in need.items():
                assert_near(got[name], array)
        for name, array in named(net, feeds).items():  # the same plan on the host
            np.testing.assert_array_equal(array, need[name])


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("LSTM", {}), ("LSTM", {"clip": 0.5}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {}),
        ("RNN", {"activations": ["Relu"]}),
    ],
)  # fmt: skip
def test_a_loop_has_the_numbers_of_onnxruntime(
    c99: ctypes.CDLL, op: str, attrs: dict[str, Any], direction: str
) -> None:
    rng = np.random.default_rng(5)
    time, batch, inputs, hidden = 30, 3, 10, 24
    directions = 2 if direction == "bidirectional" else 1
    width = GATES[op.lower()] * hidden
    if "activations" in attrs:
        attrs = {**attrs, "activations": attrs["activations"] * directions}
    tensors = {
        "w": rng.uniform(-0.3, 0.3, (directions, width, inputs)).astype(np.float32),
        "r": rng.uniform(-0.3, 0.3, (directions, width, hidden)).astype(np.float32),
        "b": rng.uniform(-0.3, 0.3, (directions, 2 * width)).astype(np.float32),
        "lengths": np.array([30, 1, 17], np.int32),
    }
    feeds = {"x": rng.standard_normal((time, batch, inputs)).astype(np.float32)}
    states = ["h", "c"][: 2 if op == "LSTM" else 1]
    for name in states:
        feeds[f"{name}0"] = rng.uniform(-1, 1, (directions, batch, hidden)).astype(np.float32)
    given = ["x", "w", "r", "b", "lengths", *(f"{name}0" for name in states)]
    node = helper.make_node(op, given, ["y", *states], hidden_size=hidden, direction=direction, **attrs)
    fp32 = onnx.TensorProto.FLOAT
    model = helper.make_model(
        helper.make_graph(
            [node],
            "net",
            [helper.make_tensor_value_info(name, fp32, array.shape) for name, array in feeds.items()],
            [helper.make_tensor_value_info(name, fp32, None) for name in ("y", *states)],
            [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    need = dict(zip(("y", *states), session.run(None, feeds), strict=True))
    net = compiled(model)
    assert kernels(net) == ["recurrent"]
    got = C99Model(net.plan_bytes(), c99)(feeds)
    for name, array in need.items():
        assert_near(got[name], array)


@pytest.mark.parametrize("op", GATES)
def test_200_steps_of_64_units_need_a_kilobyte(op: str) -> None:
    graph, _ = network(op, (200, 1, 64, 64), {})
    for outputs in ((0,), (1,), (0, 1)):
        net = compiled(hx.graph([hx.Tensor(graph.outputs[i].value) for i in outputs]))
        assert kernels(net) == ["recurrent"]
        assert net.memory["arena"] <= 1024


@pytest.mark.parametrize("op", ["lstm", "gru"])
def test_steps_that_come_in_parts_give_the_whole_sequence(c99: ctypes.CDLL, op: str) -> None:
    """25 calls of 8 steps, whose input is streamed and whose states stay between calls."""
    time, part, inputs, hidden = 200, 8, 64, 64
    rng = np.random.default_rng(2)
    gates = GATES[op]
    weights = [
        rng.uniform(-0.1, 0.1, shape).astype(np.float32)
        for shape in ((1, gates * hidden, inputs), (1, gates * hidden, hidden), (1, 2 * gates * hidden))
    ]
    x = rng.standard_normal((time, 1, inputs)).astype(np.float32)
    need = named(compiled(hx.graph([getattr(hx, op)(hx.input("x", x.shape), *weights)[0]]), None), {"x": x})
    states = {name: hx.state(name, (1, 1, hidden)) for name in (("h", "c") if op == "lstm" else ("h",))}
    initial = {f"initial_{name}": state for name, state in states.items()}
    y, *last = getattr(hx, op)(hx.input("x", (part, 1, inputs)), *weights, **initial)
    updates = [hx.write_state(state, value) for state, value in zip(states.values(), last, strict=True)]
    net = compiled(hx.graph([y], updates), hx.Memory(runtime="c99", stream_input=True))
    assert net.memory["arena"] + net.memory["state"] <= 4096
    model = C99Model(net.plan_bytes(), c99)
    got = [*(next(iter(model({"x": x[at : at + part]}).values())) for at in range(0, time, part))]
    np.testing.assert_array_equal(np.concatenate(got), next(iter(need.values())))


GOOD = {
    "cell": "lstm", "batch_first": 0, "reverse": 0, "linear_before_reset": 0, "clip": 0.0, "activations": [1, 5, 5],
}  # fmt: skip
SHAPES = (
    (6, 2, 5), (1, 28, 5), (1, 28, 7), (1, 56), (2,), (1, 2, 7), (1, 2, 7), (1, 21),
    (6, 1, 2, 7), (1, 2, 7), (1, 2, 7),
)  # fmt: skip


def lstm_plan(
    attrs: dict[str, Any],
    changed: dict[int, tuple[int, ...]] | None = None,
    same: tuple[int, int, int] | None = None,
    dtypes: dict[int, str] | None = None,
    inputs: int = 8,
    outputs: int = 3,
) -> bytes:
    """One step of ports. same: operand a lies in the memory of operand b, that many bytes behind its begin."""
    plan = PlanBuilder()
    ids = []
    for i, shape in enumerate(SHAPES):
        side = "inputs" if i < 8 else "outputs"
        dtype = (dtypes or {}).get(i, "int64" if i == 4 else "fp32")
        ids.append(plan.port(side, f"{side}{i}", (changed or {}).get(i, shape), dtype))
    if same is not None:
        a, b, offset = same
        if a < b:  # an input in the memory of an output has to be written before
            shape = SHAPES[b]
            plan.step("copy", [plan.port("inputs", "first", shape)], [ids[b]])
        space = plan.rows["tensors"][ids[b]][3]
        ids[a] = plan.tensor(space, SHAPES[a], offset=offset)
    plan.step("recurrent", ids[:inputs], ids[8 : 8 + outputs], **attrs)
    return bytes(plan.tobytes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": "lstn"}, "cell: need rnn, gru or lstm"),
        ({"clip": -1.0}, "clip: need 0 or more"),
        ({"clip": float("nan")}, "clip: need 0 or more"),
        ({"activations": [1, 5]}, "activations: need those of the cell"),
        ({"activations": [1, 5, 6]}, "activation"),
        ({"activations": [1, 5, -1]}, "activation"),
        ({"activations": [1, 5, 1 << 40]}, "activation"),
        ({"cell": "gru"}, "inputs: got too few, or too many"),
        ({"batch_first": 1}, "need"),
    ],
)
def test_a_plan_with_attributes_that_do_not_fit_is_refused(
    c99: ctypes.CDLL, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(Error, match=message):
        C99Model(lstm_plan({**GOOD, **change}), c99)


@pytest.mark.parametrize(
    ("operand", "shape"),
    [
        (0, (6, 2)), (0, (0, 2, 5)), (1, (1, 28, 6)), (1, (1, 27, 5)), (2, (1, 28, 8)), (2, (3, 28, 7)), (3, (1, 28)),
        (4, (3,)), (5, (1, 3, 7)), (6, (2, 1, 7)), (7, (1, 28)), (8, (5, 1, 2, 7)), (8, (6, 1, 2, 8)), (9, (1, 2, 8)),
        (10, (1, 1, 7)),
    ],
)  # fmt: skip
def test_a_plan_with_shapes_that_do_not_fit_is_refused(c99: ctypes.CDLL, operand: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(Error, match="need"):
        C99Model(lstm_plan(GOOD, {operand: shape}), c99)


def test_lengths_out_of_range_stay_inside_of_the_operands(c99: ctypes.CDLL) -> None:
    feeds = {f"inputs{i}": np.ones(shape, np.int64 if i == 4 else np.float32) for i, shape in enumerate(SHAPES[:8])}
    feeds["inputs4"] = np.array([-5, 1 << 40])
    got = C99Model(lstm_plan(GOOD), c99)(feeds)["outputs8"]
    assert not got[:, :, 0].any()
    assert got[:, :, 1].all()


@pytest.mark.parametrize("same", [(9, 5, 0), (10, 6, 0)])
def test_a_last_state_may_be_where_the_initial_one_was(c99: ctypes.CDLL, same: tuple[int, int, int]) -> None:
    def inside() -> bytes:
        plan = PlanBuilder()
        ids = [plan.port("inputs", f"x{i}", s, "int64" if i == 4 else "fp32") for i, s in enumerate(SHAPES[:8])]
        y = plan.port("outputs", "y", SHAPES[8])
        arena = plan.space("arena", 4 * 14 * 3)
        a, b, last = (plan.tensor(arena, SHAPES[5], offset=56 * i) for i in range(3))
        for i, to in ((5, a), (6, b)):
            plan.step("copy", [ids[i]], [to])
            ids[i] = to
        outs = [a, last] if same == (9, 5, 0) else [last, b]
        plan.step("recurrent", ids, [y, *outs], **GOOD)
        return bytes(plan.tobytes())

    rng = np.random.default_rng(3)
    feeds = {f"x{i}": rng.uniform(-1, 1, shape).astype(np.float32) for i, shape in enumerate(SHAPES[:8])}
    feeds["x4"] = np.array([6, 4])
    apart = C99Model(lstm_plan(GOOD), c99)({f"inputs{i}": feeds[f"x{i}"] for i in range(8)})
    assert C99Model(inside(), c99)(feeds)["y"].tobytes() == apart["outputs8"].tobytes()


@pytest.mark.parametrize(
    ("same", "message"),
    [
        ((10, 9, 0), "outputs overlap"), ((9, 8, 0), "outputs overlap"), ((10, 8, 4), "outputs overlap"),
        ((5, 10, 0), "outputs: need memory of their own"), ((6, 9, 0), "outputs: need memory of their own"),
        ((0, 8, 4), "operands overlap"), ((6, 8, 28), "operands overlap"), ((5, 9, 0), ""), ((6, 10, 0), ""),
        ((9, 0, 4), "only read"), ((10, 1, 4), "only read"),
    ],
)  # fmt: skip
def test_outputs_need_bytes_of_their_own(c99: ctypes.CDLL, same: tuple[int, int, int], message: str) -> None:
    """The runtime's own verification, without that of the compiler in front of it."""
    data = lstm_plan(GOOD, same=same)
    if not message:
        load_unverified(c99, data, spaces=12 if same[0] < same[1] else 11)
        return
    with pytest.raises(Error, match=message):
        load_unverified(c99, data, spaces=12 if same[0] < same[1] else 11)


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 3), (8, 2), (8, 1), (5, 0)])
def test_a_plan_with_another_number_of_operands_is_refused(c99: ctypes.CDLL, inputs: int, outputs: int) -> None:
    with pytest.raises(Error):
        C99Model(lstm_plan(GOOD, inputs=inputs, outputs=outputs), c99)


@pytest.mark.parametrize(("operand", "dtype"), [(0, "int32"), (1, "fp16"), (4, "int32"), (8, "int32"), (9, "fp64")])
def test_another_dtype_is_refused(c99: ctypes.CDLL, operand: int, dtype: str) -> None:
    with pytest.raises(Error, match=r"fp32|int64"):
        C99Model(lstm_plan(GOOD, dtypes={operand: dtype}), c99)


def test_codegen_says_how_to_compile_a_gru_that_needs_room() -> None:
    graph, _ = network("gru", (4, 1, 3, 5), {})
    with pytest.raises(Error, match=r"^\[codegen\] step 0, gru at .*: got recurrent of .*--runtime c99"):
        generate(compiled(graph, None).plan_bytes(), "net", app=True)


def test_two_outputs_are_for_kernels_that_have_them(c99: ctypes.CDLL) -> None:
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (4,))
    plan.step("copy", [x], [plan.port("outputs", "y", (4,)), plan.port("outputs", "z", (4,))])
    with pytest.raises(Error, match="outputs: need 1"):
        C99Model(bytes(plan.tobytes()), c99)
