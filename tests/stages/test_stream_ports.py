"""Inputs and outputs that come and go row by row: the bits of whole ones, every row once and in order."""

from typing import Any

import numpy as np
import pytest
from test_stream import random_branches, random_chain, run

import hexane as hx
from first_quick import first_quick
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.pipeline import compile_graph
from hexane.program import Program
from hexane.targets import load_target
from plans import PlanBuilder
from small_devices import SMALL_DEVICE_NETWORKS

HOST = load_target("host")


def streamed(graph: hx.Graph, rows: int = 0, output: bool = True) -> Program:
    return compile_graph(graph, HOST, hx.Options(memory=hx.Memory(rows=rows, stream_input=True, stream_output=output)))


def port_steps(program: Program) -> list[str]:
    """The kernels of the steps that touch ports."""
    kinds = [[program.buffers[v.buffer].kind for v in (*s.inputs, *s.outputs) if v is not None] for s in program.steps]
    return [step.kernel for step, of in zip(program.steps, kinds, strict=True) if "port" in of]


@pytest.mark.parametrize("seed", first_quick(range(30), 15))
@pytest.mark.parametrize("make", [random_chain, random_branches])
def test_random_graphs_have_the_same_bits(make: Any, seed: int):
    graph = make(seed)
    want = [a.tobytes() for a in run(compile_graph(graph, HOST))]
    for rows in (0, 1, 3):
        program = streamed(graph, rows)
        assert [a.tobytes() for a in run(program)] == want
        assert set(port_steps(program)) == {"copy"}
        assert len(port_steps(program)) == len(program.inputs) + len(program.outputs)


def test_few_rows_of_an_image_are_in_the_arena():
    x = hx.input("x", (1, 3, 64, 16))
    y = hx.conv(x, np.ones((4, 3, 3, 3), np.float32), strides=2)
    program = streamed(hx.graph({"y": hx.relu(hx.conv(y, np.ones((2, 4, 3, 3), np.float32)))}), 1)
    row = 3 * 16 * 4
    loads = program.steps[0]
    assert loads.kernel == "copy"
    assert loads.outputs[0].type.shape == (1, 64, 16, 3)
    assert 3 <= loads.outputs[0].ring <= 5
    assert program.extents["arena"].bytes < 12 * row


def test_a_copy_that_is_there_already_does_it():
    x = hx.input("x", (1, 3, 8, 8))
    program = streamed(hx.graph({"y": hx.transpose(x, perm=(0, 2, 3, 1))}), 1)
    assert [step.kernel for step in program.steps] == ["copy", "copy"]


@pytest.mark.parametrize("shape", [(5,), (), (2, 3, 4, 5), (1, 1, 6, 3), (1, 6, 1, 3), (0, 4)])
def test_any_shape_can_be_streamed(shape: Any):
    x = hx.input("x", shape)
    graph = hx.graph({"y": hx.exp(x), "z": hx.relu(x)})
    program = streamed(graph, 1)
    assert [a.tobytes() for a in run(program)] == [a.tobytes() for a in run(compile_graph(graph, HOST))]


def test_readers_that_see_other_shapes_find_the_same_elements():
    x = hx.input("x", (1, 4, 6, 5))
    graph = hx.graph({
        "y": hx.conv(x, np.ones((2, 4, 3, 3), np.float32)), "z": hx.exp(hx.reshape(x, shape=(24, 5))),
        "part": hx.tanh(hx.slice_by_index(x, begin=(0, 1, 0, 0), end=(1, 3, 6, 5))), "given": x,
    })  # fmt: skip
    program = streamed(graph, 1)
    assert [a.tobytes() for a in run(program)] == [a.tobytes() for a in run(compile_graph(graph, HOST))]


def test_both_forms_of_a_concatenation_are_streamed():
    x = hx.input("x", (1, 4, 24, 8))
    y = hx.conv(x, np.ones((6, 4, 3, 3), np.float32), pad=1)
    graph = hx.graph({"y": hx.relu(hx.concat([hx.tanh(y), hx.exp(y)], axis=1))})
    for program in (streamed(graph, 1), streamed(graph, 4)):
        assert [port.streamed for port in (*program.inputs, *program.outputs)] == [True, True]
        assert [a.tobytes() for a in run(program)] == [a.tobytes() for a in run(compile_graph(graph, HOST))]


@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_a_budget_holds_the_input_too(name: str):
    model = SMALL_DEVICE_NETWORKS[name]()
    least = hx.compile(model, target="host", threads=1, memory=hx.Memory(rows=1, stream_input=True, stream_output=True))
    sram = least.memory["arena"] + least.memory["scratch"]
    net = hx.compile(
        model, target="host", threads=1, memory=hx.Memory(sram, stream_input=True, stream_output=True, hold_ports=True)
    )
    assert net.memory["arena"] + net.memory["scratch"] <= sram
    x = np.random.default_rng(0).standard_normal(net.inputs[0].shape).astype(np.float32)
    assert net(x).tobytes() == hx.compile(model, target="host", threads=1)(x).tobytes()
    with pytest.raises(hx.Error, match=f"got {sram // 2} bytes of sram"):
        hx.compile(model, target="host", threads=1, memory=hx.Memory(sram // 2, stream_input=True))


@pytest.mark.parametrize("option", ["stream_input", "stream_output"])
def test_chips_have_no_streamed_ports(option: str):
    with pytest.raises(hx.Error, match=f"memory: got {option} for h13, need the host"):
        hx.compile(hx.relu(hx.input("x", (4,))), target="h13", memory=hx.Memory(**{option: True}))


def test_a_saved_plan_is_loaded(tmp_path: Any):
    net = hx.compile(
        SMALL_DEVICE_NETWORKS["mobile"](), target="host", threads=1, memory=hx.Memory(rows=1, stream_input=True)
    )
    net.save(tmp_path / "net.hxp")
    x = np.random.default_rng(0).standard_normal(net.inputs[0].shape).astype(np.float32)
    assert hx.load(tmp_path / "net.hxp")(x).tobytes() == net(x).tobytes()


def rows_plan(cut: tuple[int, int, int] = (1, 0, 1), move: int = 1, trips: int = 6, **changes: Any) -> PlanBuilder:
    """x by rows through a ring to y, which is streamed as well."""
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (1, 6, 4), streamed=1)
    y = plan.port("outputs", "y", (1, 6, 4), streamed=1)
    strides = changes.get("strides")
    ring = plan.tensor(plan.space("arena", 256), (1, 6, 4), ring=changes.get("ring", 2), strides=strides)
    plan.step(changes.get("kernel", "copy"), [x], [ring], cut)
    fast = changes.get("fast", 1)
    plan.step("copy", [ring], [y], (1, 0, fast))
    if changes.get("twice"):
        plan.step("copy", [x], [ring], cut)
    plan.loop(0, trips, [move, fast, move][: 3 if changes.get("twice") else 2])
    return plan


def test_a_sound_plan_of_rows_is_taken():
    _core.plan_read(np.frombuffer(rows_plan().tobytes(), np.uint8))


WRONG = [
    ("kernel", {"kernel": "tanh"}, r"x\] streamed: got step 0 \(tanh\) on it, need one step, a copy"),
    ("twice", {"twice": True}, r"streamed: got step 2 \(copy\) on it, need one step"),
    ("skips", {"move": 2, "ring": 6}, r"x\] streamed: got row 2, need row 1 next"),
    ("late", {"cut": (1, 1, 2), "ring": 6}, r"x\] streamed: got row 1, need row 0 next"),
    ("again", {"cut": (1, 0, 2), "ring": 6}, r"x\] streamed: got row 1, need row 2 next"),
    ("too_few", {"trips": 3, "ring": 6, "fast": 2}, "streamed: got 3 rows, need all 6"),
    ("gaps", {"strides": (120, 20, 4)}, "need rows without gaps in an arena"),
    ("other_axis", {"cut": (2, 0, 1), "ring": 0}, "streamed: got a copy cut along axis 2, need it by the rows"),
]


@pytest.mark.parametrize(("changes", "message"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_rows_out_of_order_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(hx.Error, match=message):
        _core.plan_read(np.frombuffer(rows_plan(**changes).tobytes(), np.uint8))


def test_an_input_between_two_ports_is_refused():
    plan = PlanBuilder()
    x, y = plan.port("inputs", "x", (1, 6, 4), streamed=1), plan.port("outputs", "y", (1, 6, 4))
    plan.step("copy", [x], [y])
    with pytest.raises(hx.Error, match="got a copy between it and port, need rows without gaps in an arena"):
        _core.plan_read(np.frombuffer(plan.tobytes(), np.uint8))


def test_the_plan_names_streamed_ports():
    sections = emit_plan(streamed(hx.graph({"y": hx.relu(hx.input("x", (1, 2, 8, 8)))}), output=False))
    assert sections["inputs"]["streamed"].tolist() == [1]
    assert sections["outputs"]["streamed"].tolist() == [0]
