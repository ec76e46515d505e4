"""Recurrent networks on the host: one step of a plan, with the bits of the steps written out."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hexane as hx
from hexane import _core
from hexane.errors import Error
from hexane.graph import Graph
from hexane.ops import OPS
from hexane.ops.rewriter import Rewriter
from hexane.passes.legalize.keep_recurrent import keep_recurrent
from hexane.program.attrs import Strings, pack
from hexane.targets import load_target
from recurrent_networks import FORMS, GATES, network

Array = NDArray[Any]
HOST = load_target("host")
# Steps, items, inputs and units: few, an odd number, whole panels, and more than one block of a long sum.
EXTENTS = ((7, 1, 3, 5), (1, 3, 20, 33), (40, 2, 16, 64), (3, 7, 560, 530))


def written_out(graph: Graph) -> Graph:
    def is_legal(node: Any) -> bool:
        return node.op not in GATES

    return graph.rewrite(Rewriter(legal=is_legal).change, tuple(GATES))


def results(graph: Graph, given: dict[str, Array], **options: Any) -> list[Array]:
    found = hx.compile(graph, **options)(**given)
    return list(found.values()) if isinstance(found, dict) else list(found)


@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("op", GATES)
def test_a_loop_has_the_bits_of_the_steps_written_out(
    op: str, form: dict[str, Any], extents: tuple[int, int, int, int]
) -> None:
    graph, given = network(op, extents, form)
    for loop, steps in zip(results(graph, given), results(written_out(graph), given), strict=True):
        np.testing.assert_array_equal(loop, steps)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("op", GATES)
def test_a_loop_in_fp16_rounds_its_results_once(op: str, form: dict[str, Any]) -> None:
    # States and gates stay in fp32 from step to step, so nothing but the last rounding is seen: one step of fp16 at
    # most, where the two sides of a rounding differ. Steps written out in fp16 round about ten times in each.
    graph, given = network(op, (9, 3, 20, 33), form, "fp16")
    exact = evaluate_exactly_of(graph, given)
    for loop, meant in zip(results(graph, given), exact, strict=True):
        assert loop.dtype == np.float16
        np.testing.assert_allclose(loop.astype(np.float64), meant, rtol=2**-10, atol=2**-20)


def evaluate_exactly_of(graph: Graph, given: dict[str, Array]) -> list[Array]:
    """The results in fp64, by the record's meaning."""
    (node,) = [node for node in graph.nodes if node.op in GATES]
    arrays = [
        None if v is None else v.node.data if v.node.data is not None else given[str(v.node.attrs["name"])]
        for v in node.inputs
    ]
    wide = [a if a is None or a.dtype.kind == "i" else a.astype(np.float64) for a in arrays]
    return list(OPS[node.op].ref(*wide, **node.attrs))


def test_512_steps_are_one_plan_row_without_arena() -> None:
    graph, _ = network("lstm", (512, 1, 64, 64), {})
    net = hx.compile(graph, threads=1)
    assert [step.kernel for step in net.program.steps] == ["recurrent"]
    assert not [buffer for buffer in net.program.buffers if buffer.kind == "arena"]


def test_a_sequence_that_nobody_reads_takes_no_memory() -> None:
    x = hx.input("x", (512, 1, 64))
    weight = np.zeros((1, 256, 64), np.float32)
    net = hx.compile(hx.graph([hx.lstm(x, weight, weight)[1]]))
    assert sum(buffer.bytes for buffer in net.program.buffers if buffer.kind == "arena") == 2 * 256


@pytest.mark.parametrize("op", GATES)
def test_a_loop_takes_more_steps_than_can_be_written_out(op: str) -> None:
    graph, given = network(op, (5000, 1, 3, 4), {})
    exact = evaluate_exactly_of(graph, given)
    for found, meant in zip(results(graph, given), exact, strict=True):
        np.testing.assert_allclose(found, meant, atol=2e-6)
    with pytest.raises(Error, match="got 5000 steps to write out, need at most 2048"):
        written_out(graph)


def test_more_steps_than_can_be_written_out_are_the_hosts_in_a_chips_program() -> None:
    graph, given = network("lstm", (3000, 1, 3, 4), {})
    with pytest.warns(hx.FallbackWarning):
        found = results(graph, given, target="h13")
    for of_chip, of_host in zip(found, results(graph, given), strict=True):
        np.testing.assert_array_equal(of_chip, of_host)


def test_gradients_of_many_steps_are_a_loop() -> None:
    """They had been refused beyond 2,048 steps; the values are those of tests/autograd/test_grad_bodies.py."""
    x, weight = hx.input("x", (3000, 1, 4)), hx.input("w", (1, 4, 4))
    (gradient,) = hx.grad(hx.reduce_sum(hx.rnn(x, weight, weight)[0]), [weight])
    graph = hx.graph(gradient)
    assert "loop" in graph.ops
    assert len(graph.nodes) < 200


def test_threads_do_not_change_the_bits_of_a_loop() -> None:
    graph, given = network("gru", (20, 8, 64, 96), {"direction": "bidirectional", "lengths": True})
    for one, two in zip(results(graph, given, threads=1), results(graph, given, threads=2), strict=True):
        np.testing.assert_array_equal(one, two)


def test_weights_of_a_call_are_packed_in_the_call() -> None:
    rng = np.random.default_rng(3)
    shapes = {"x": (6, 2, 5), "w": (1, 28, 5), "r": (1, 28, 7), "b": (1, 56)}
    given = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    operands = [hx.input(name, shape) for name, shape in shapes.items()]
    constant = hx.lstm(operands[0], given["w"], given["r"], given["b"])
    for _ in range(2):
        found = results(hx.graph(list(hx.lstm(*operands))), given)
        for of_call, packed in zip(found, results(hx.graph(list(constant)), {"x": given["x"]}), strict=True):
            np.testing.assert_array_equal(of_call, packed)


def test_lengths_of_a_call_outside_of_the_steps_are_refused() -> None:
    graph, given = network("lstm", (7, 2, 3, 5), {"lengths": True})
    with pytest.raises(Error):
        results(graph, {**given, "lengths": np.array([3, 8], np.int32)})


def test_a_network_of_fp64_is_written_out() -> None:
    x = hx.input("x", (3, 1, 4), "fp64")
    weight = np.ones((1, 16, 4))
    graph = keep_recurrent(hx.graph(list(hx.lstm(x, weight, weight))), HOST)
    assert "lstm" in graph.ops
    assert graph.decisions[-1].verdict == "written out"
    assert "fp64" in graph.decisions[-1].reason


def test_a_network_whose_gradients_are_there_is_computed_once() -> None:
    x, weight, recurrent = hx.input("x", (3, 1, 4)), hx.input("w", (1, 16, 4)), hx.input("r", (1, 16, 4))
    y = hx.lstm(x, weight, recurrent)[0]
    loss = hx.reduce_sum(y * y)
    graph = keep_recurrent(hx.graph([loss, *hx.grad(loss, [weight, recurrent])]), HOST)
    assert "cpu.lstm" not in graph.ops
    assert graph.decisions[-1].reason == "gradients need its steps"


def test_a_decision_says_that_a_network_is_a_loop() -> None:
    graph, _ = network("gru", (7, 1, 3, 5), {})
    (decision,) = keep_recurrent(graph, HOST).decisions
    assert decision.verdict == "one loop"


ROW = next(row for row in _core.kernels() if row["name"] == "recurrent")
GOOD = {
    "cell": "lstm", "batch_first": 0, "reverse": 0, "linear_before_reset": 0, "clip": 0.0, "activations": [1, 5, 5],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": "lstn"}, "cell: got 'lstn'"),
        ({"clip": -1.0}, "clip: got -1"),
        ({"clip": float("nan")}, "clip: got"),
        ({"activations": [1, 5]}, "activations: got 2, need 3"),
        ({"activations": [1, 5, 6]}, "activations: got number 6"),
        ({"activations": [1, 5, -1]}, "activations: got number -1"),
        ({"cell": "gru"}, "need 3 to 6 and 2"),
        ({"batch_first": 1}, "need"),
    ],
)
def test_a_plan_with_attributes_that_do_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    run_lstm(GOOD)
    with pytest.raises(Error, match=message):
        run_lstm({**GOOD, **change})


@pytest.mark.parametrize(
    ("operand", "shape"),
    [
        (0, (6, 2)), (0, (0, 2, 5)), (1, (1, 28, 6)), (1, (1, 27, 5)), (2, (1, 28, 8)), (2, (3, 28, 7)), (3, (1, 28)),
        (4, (3,)), (5, (1, 3, 7)), (6, (2, 1, 7)), (7, (1, 28)), (8, (5, 1, 2, 7)), (8, (6, 1, 2, 8)), (9, (1, 2, 8)),
        (10, (1, 1, 7)),
    ],
)  # fmt: skip
def test_a_plan_with_shapes_that_do_not_fit_is_refused(operand: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(Error, match="need"):
        run_lstm(GOOD, {operand: shape})


def run_lstm(attrs: dict[str, Any], changed: dict[int, tuple[int, ...]] | None = None) -> None:
    shapes = [
        (6, 2, 5), (1, 28, 5), (1, 28, 7), (1, 56), (2,), (1, 2, 7), (1, 2, 7), (1, 21),
        (6, 1, 2, 7), (1, 2, 7), (1, 2, 7),
    ]  # fmt: skip
    for i, shape in (changed or {}).items():
        shapes[i] = shape
    arrays = [np.zeros(shape, np.int64 if i == 4 else np.float32) for i, shape in enumerate(shapes)]
    if attrs["cell"] == "lstm" and not changed:
        arrays[4][...] = [-5, 1 << 40]  # which the kernel does not follow out of its operands
    strings = Strings()
    packed = pack(ROW["attrs"], attrs, strings)
    _core.run_kernel("recurrent", arrays[:8], arrays[8:], packed, strings.tobytes())
