"""Inputs and outputs in the arena: the bits of ports of their own, and every byte of them counted there."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from test_stream import random_branches, random_chain, run

import hexane as hx
from first_quick import first_quick
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.ops import OPS
from hexane.pipeline import compile_graph
from hexane.program import Program
from hexane.stages.bufferize.ports_in_arena import CASTS, hold
from hexane.targets import load_target
from networks import small_networks
from small_devices import SMALL_DEVICE_NETWORKS

HOST = load_target("host")


def held(graph: hx.Graph, rows: int = 0) -> Program:
    return compile_graph(graph, HOST, hx.Options(memory=hx.Memory(rows=rows, hold_ports=True)))


def assert_ports_are_only_copied(program: Program) -> None:
    """Or cast, or computed with element by element, from and to the arena."""
    for step in program.steps:
        kinds = [program.buffers[v.buffer].kind for v in (*step.inputs, *step.outputs) if v is not None]
        if "port" in kinds:
            assert sorted(kind for kind in kinds if kind != "weights") == ["arena", "port"]
            assert step.kernel in CASTS or OPS[step.node.op].elementwise


@pytest.mark.parametrize("seed", first_quick(range(30), 15))
@pytest.mark.parametrize("make", [random_chain, random_branches])
def test_random_graphs_have_the_same_bits(make: Any, seed: int):
    graph = make(seed)
    want = [a.tobytes() for a in run(compile_graph(graph, HOST))]
    whole = held(graph).extents["arena"].bytes
    for rows in (0, 1, 3):
        program = held(graph, rows)
        assert [a.tobytes() for a in run(program)] == want
        assert_ports_are_only_copied(program)
        assert program.extents["arena"].bytes <= whole


def test_an_input_is_there_until_it_is_read_and_an_output_from_when_it_is_written():
    x = hx.input("x", (64, 64))
    y = hx.softmax(hx.softmax(x, axis=0), axis=0)
    program = held(hx.graph({"y": y}))
    assert [step.kernel for step in program.steps] == ["copy", "softmax", "softmax", "copy"]
    assert program.extents["arena"].bytes == 2 * 64 * 64 * 4


def test_several_ports_are_held_and_one_that_is_given_out_as_it_came_in():
    a, b = hx.input("a", (8, 16)), hx.input("b", (8, 16))
    y = hx.softmax(a, axis=1) * b
    graph = hx.graph({"y": y, "z": hx.relu(y), "given": a, "again": y})
    program = held(graph)
    assert_ports_are_only_copied(program)
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((8, 16)).astype(np.float32) for _ in range(2)]
    want = _core.Program(emit_plan(compile_graph(graph, HOST)), 1).run(feeds)
    got = _core.Program(emit_plan(program), 1).run(feeds)
    assert [v.tobytes() for v in got] == [v.tobytes() for v in want]
    assert len(got) == 4


def test_what_overwrites_the_source_of_an_output_waits_for_a_copy():
    """z is computed over y, which is cast for its port before that."""
    y = hx.softmax(hx.input("x", (8, 16)), axis=1)
    graph = hx.graph({"half": hx.cast(y, dtype="fp16"), "z": hx.softmax(hx.relu(y), axis=0)})
    want = [a.tobytes() for a in run(compile_graph(graph, HOST))]
    assert [a.tobytes() for a in run(held(graph))] == want


def test_a_result_that_goes_to_two_outputs_is_computed_before_both():
    """Both outputs are copies in another order of axes of what the last cast writes."""
    step = hx.const(np.float32(0.1))
    x = hx.quantize(hx.softmax(hx.input("x", (2, 8, 3)), axis=1), step, dtype="int8")
    y = hx.transpose(hx.dequantize(x, step), perm=(0, 2, 1))
    graph = hx.graph({"y": y, "again": y})
    want = [a.tobytes() for a in run(compile_graph(graph, HOST))]
    assert [a.tobytes() for a in run(held(graph))] == want


def test_holding_twice_changes_nothing():
    program = compile_graph(random_branches(3), HOST)
    once, body = hold(program)
    again, same = hold(once)
    assert (again.steps, again.buffers, same) == (once.steps, once.buffers, body)


@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_networks_of_bytes_hold_their_input_as_bytes(name: str):
    model = SMALL_DEVICE_NETWORKS[name]()
    alone, both = (
        hx.compile(model, target="host", threads=1, memory=hx.Memory(rows=1, hold_ports=h)) for h in (False, True)
    )
    assert isinstance(alone, hx.Model)
    assert isinstance(both, hx.Model)
    rng = np.random.default_rng(0)
    feeds = {port.name: rng.standard_normal(port.shape).astype(port.dtype.numpy) for port in alone.inputs}
    calls = [net.bind(**feeds) for net in (alone, both)]
    for call in calls:
        call()
    for key, array in calls[0].outputs.items():
        assert array.tobytes() == calls[1].outputs[key].tobytes()
    ports = sum(port.nbytes for port in feeds.values()) + sum(a.nbytes for a in calls[0].outputs.values())
    assert both.memory["arena"] <= alone.memory["arena"] + ports // 4 + 256


@pytest.mark.parametrize("name", ["unet", "detector"])
def test_budgets_count_what_is_held(name: str):
    model = small_networks()[name].SerializeToString()
    least = hx.compile(model, target="host", threads=1, memory=hx.Memory(rows=1, hold_ports=True)).memory
    sram = least["arena"] + least["scratch"]
    net = hx.compile(model, target="host", threads=1, memory=hx.Memory(sram, hold_ports=True))
    assert net.memory["arena"] + net.memory["scratch"] <= sram
    with pytest.raises(hx.Error, match=r"\[compile\] memory: got") as refused:
        hx.compile(model, target="host", threads=1, memory=hx.Memory(64, hold_ports=True))
    need = int(str(refused.value).split("need at least ")[1].split(":")[0])
    assert need <= sram
    with pytest.raises(hx.Error, match=f"got {need - 64} bytes of sram, need at least {need}"):
        hx.compile(model, target="host", threads=1, memory=hx.Memory(need - 64, hold_ports=True))


@pytest.mark.parametrize("name", ["unet", "detector"])
def test_budgets_of_a_c99_device_count_the_arrays_of_the_caller_next_to_what_is_held(name: str):
    model = small_networks()[name].SerializeToString()
    device = hx.fit(model, memory=hx.Memory(runtime="c99"))
    ports = device.inputs + device.outputs
    nets = {}
    for sram in (device.held + ports, device.held + ports - 1):
        with suppress(hx.Error):  # no smaller plan exists
            nets[sram] = hx.compile(model, threads=1, memory=hx.Memory(sram, runtime="c99", hold_ports=True))
    assert nets[device.held + ports]
    assert all(net.memory["arena"] + ports <= sram for sram, net in nets.items())


def test_chips_hold_no_ports():
    with pytest.raises(hx.Error, match="memory: got hold_ports for h13, need the host"):
        hx.compile(hx.relu(hx.input("x", (4,))), target="h13", memory=hx.Memory(hold_ports=True))
