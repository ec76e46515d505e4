"""States of networks on a device: where they lie, who writes them, and what a failed call leaves of them."""

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.runtime.chip import chip_program
from hexane.runtime.on_engine import OnEngine, in_order
from hexane.targets.query import load_chip
from on_a_device import compiled, weights


def with_state() -> hx.Graph:
    """A cache of 12 rows of which each call writes one; all of it is read, before and after."""
    x, position = hx.input("x", (1, 8)), hx.input("position", (), "int32")
    cache = hx.state("cache", (12, 8), init=weights(12, 8))
    written = hx.write_state(cache, hx.relu(x) * 2.0, position, axis=0)
    scores = hx.matmul(x, hx.transpose(written, perm=(1, 0)))
    return hx.graph({"y": hx.relu(scores), "before": cache + 1.0})


def test_states_last_in_the_surface_that_the_device_reads(engine: _core.Device) -> None:
    net, cpu = compiled(with_state(), device="ane"), compiled(with_state(), device="cpu")
    for round_trip in range(2):
        for i in (0, 3, 11):
            x = weights(1, 8) + np.float32(i)
            got, want = (m(x=x, position=np.int32(i)) for m in (net, cpu))
            for name in want:
                np.testing.assert_array_equal(got[name], want[name], err_msg=f"{name} {round_trip} {i}")
        np.testing.assert_array_equal(net.read_state("cache"), cpu.read_state("cache"))
        for model in (net, cpu):
            model.reset_state()
        np.testing.assert_array_equal(net.read_state("cache"), weights(12, 8))
    for model in (net, cpu):
        model.write_state("cache", weights(12, 8) * 3)
    np.testing.assert_array_equal(net.read_state("cache"), weights(12, 8) * 3)
    assert net.program is not None
    (state,) = [b for b in net.program.buffers if b.kind == "state"]
    assert state.surface
    copied = [s for s in net.program.steps if s.kernel == "copy" and s.inputs[0].type.shape == (12, 8)]  # type: ignore[union-attr]
    assert not copied


def recurrent() -> hx.Graph:
    """States that programs compute anew: a cell, one that the host reads as well, and two that change places."""
    x = hx.input("x", (1, 8))
    cell, total = hx.state("cell", (1, 8)), hx.state("total", (1, 8), init=weights(1, 8))
    a, b = hx.state("a", (2, 3, 5), init=weights(2, 3, 5)), hx.state("b", (2, 3, 5))
    after = hx.write_state(cell, hx.tanh(hx.matmul(x, weights(8, 8)) + hx.matmul(cell, weights(8, 8).T)), np.int32(0))
    added = hx.write_state(total, total + hx.relu(x), np.int32(0))
    both = [hx.write_state(a, b + 1.0, np.int32(0)), hx.write_state(b, a * 1.0, np.int32(0))]
    y = {"after": after * 2.0, "before": cell + 1.0, "host": hx.round(hx.sinh(hx.clip(added, alpha=0.0, beta=1.0)))}
    return hx.graph(y, updates=both)


STATES = ("cell", "total", "a", "b")


@pytest.mark.parametrize("io", ["", "fp16"])
def test_states_that_programs_compute_stay_where_they_are_written(io: str, engine: _core.Device) -> None:
    net, cpu = compiled(recurrent(), device="ane", io=io), compiled(recurrent(), device="cpu", io=io)
    kind = net.inputs[0].dtype.numpy.type

    def check(i: int) -> None:
        x = (weights(1, 8) + np.float32(i)).astype(kind) * kind(0.25)
        got, want = net(x), cpu(x)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], err_msg=f"{name} in call {i}")
        for name in STATES:
            np.testing.assert_array_equal(net.read_state(name), cpu.read_state(name), err_msg=f"{name} after call {i}")

    for i in range(5):
        check(i)
    for model in (net, cpu):
        model.write_state("cell", weights(1, 8))
        model.write_state("b", weights(2, 3, 5) * 3)
    check(5)
    for model in (net, cpu):
        model.reset_state()
    np.testing.assert_array_equal(net.read_state("a"), weights(2, 3, 5))
    for i in range(2):
        check(i)
    assert net.program is not None
    assert len(net.program.swaps) == len(STATES)
    assert not [s for s in net.program.steps if s.node.op == "write_state"]


def test_outputs_of_a_program_are_of_one_size(engine: _core.Device) -> None:
    """Constraint 2 of docs/mil.md; a state that is one of them still changes places."""
    x = hx.input("x", (1, 64, 16, 16))
    total = hx.state("total", (1, 64, 1, 16))
    rows = hx.reduce_max(x, axes=(2,), keep_dims=True)
    graph = hx.graph({"large": hx.relu(x), "small": hx.write_state(total, hx.maximum(total, rows), np.int32(0)) * 2.0})
    net, cpu = compiled(graph, device="ane"), compiled(graph, device="cpu")
    for i in range(3):
        array = weights(1, 64, 16, 16) * np.float32(i)
        got, want = net(array), cpu(array)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])
    assert net.program is not None
    (step,) = (s for s in net.program.steps if s.kernel == "program")
    sizes = [net.program.buffers[v.buffer].bytes for v in step.outputs]
    assert len(sizes) == 3
    assert len(set(sizes)) == 1
    assert len(net.program.swaps) == 1


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
def test_swaps_of_other_memories_are_refused(engine: _core.Device) -> None:
    segment_compiler = OnEngine(engine, load_chip("h13"), qos=21)
    program = chip_program(recurrent(), load_chip("h13"), segment_compiler=segment_compiler)
    made, sections = in_order(segment_compiler.made, program), emit_plan(program)
    state, after = (program.buffers[i].space for i in program.swaps[0])
    for swap, words in [
        ((after, state), "need a state and an arena of its size"),
        ((state, "none"), "got the space 'none'"),
    ]:
        with pytest.raises(hx.Error, match=words):
            _core.Program(sections, 1, None, made, [swap])


def test_bound_calls_go_on_with_the_states_of_each_other(engine: _core.Device) -> None:
    net, cpu = compiled(recurrent(), device="ane", io="fp16"), compiled(recurrent(), device="cpu", io="fp16")
    calls = [net.bind(), net.bind()]
    for i in range(5):
        x = (weights(1, 8) * i).astype(np.float16)
        call = calls[i % 2]
        call.inputs["x"][...] = x
        call()
        for name, want in cpu(x).items():
            np.testing.assert_array_equal(call.outputs[name], want, err_msg=f"{name} {i}")


def test_a_call_that_fails_leaves_computed_states_as_they_were(engine: _core.Device) -> None:
    net = compiled(recurrent(), device="ane", io="fp16")
    x = weights(1, 8).astype(np.float16)
    net(x)
    before = {name: net.read_state(name) for name in STATES}
    with net.surfaces["x"].access(), pytest.raises(hx.DeviceError):
        net.bind()()
    for name in STATES:
        np.testing.assert_array_equal(net.read_state(name), before[name])
    cpu = compiled(recurrent(), device="cpu", io="fp16")
    want = [cpu(x), cpu(x)][1]
    for name, got in net(x).items():
        np.testing.assert_array_equal(got, want[name])
