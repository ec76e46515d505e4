"""Programs in stages: the bits of whole tensors, in no more fast memory than there is, and no byte moved that is not
counted."""

from collections import Counter

import numpy as np
import pytest
from test_stream import quantized_images, random_branches, random_chain, run, weights

import hexane as hx
from first_quick import first_quick
from hexane.pipeline import compile_graph
from hexane.program import Program
from hexane.stages.bufferize.place import place
from hexane.stages.bufferize.tensors import find_tensors
from hexane.stages.stream.spill import Spilled, Spills, TooLarge
from hexane.stages.stream.stage import SLOW
from hexane.targets import load_target
from program_runs import runs
from turns import share

HOST = load_target("host")


def whole_of(graph: hx.Graph) -> Program:
    return compile_graph(graph, HOST)


def spilled(graph: hx.Graph, budget: int, holds_ports: bool = False) -> Spilled:
    found = Spills(whole_of(graph), "", holds_ports).at(budget)
    assert isinstance(found, Spilled)
    return found


def least(spills: Spills) -> int:
    found = spills.at(0)
    return found.bytes if isinstance(found, TooLarge) else found.fast


def assert_sound(found: Spilled) -> None:
    """Kernels touch fast memory alone, and copies move each row as often as is counted."""
    program = found.program
    read: Counter[str] = Counter()
    for i, begin, end in runs(program):
        step = program.steps[i]
        for views, way in ((step.inputs, "read"), (step.outputs, "written")):
            for view in views:
                if view is not None and program.buffers[view.buffer].space == SLOW:
                    assert step.kernel == "copy"
                    rows = view.type.shape[1] if step.cut is not None else 1
                    read[way] += view.type.bytes // rows * (end - begin if step.cut is not None else 1)
    assert (read["read"], read["written"]) == found.moved
    assert found.fast <= found.budget
    assert sum(e.bytes for e in program.extents.values() if e.space.kind == "arena") == found.fast + found.slow


def assert_same_bits(graph: hx.Graph, holds_ports: bool, budgets: int) -> int:
    """At so many budgets from the least to what whole tensors need. Memory is full of what another call left. Gives how
    many plans have loops."""
    whole = whole_of(graph)
    want = [a.tobytes() for a in run(whole)]
    spills = Spills(whole, "", holds_ports)
    first, last = least(spills), spills.at(1 << 40)
    assert isinstance(last, Spilled)
    looped = 0
    for budget in np.linspace(first, max(first, last.fast), budgets).astype(int).tolist():
        found = spills.at(budget)
        assert isinstance(found, Spilled)
        assert_sound(found)
        assert [a.tobytes() for a in run(found.program)] == want, budget
        looped += found.looped > 0
    return looped


@pytest.mark.parametrize("first", first_quick(range(0, 100, 20), 2))
def test_random_graphs_have_the_same_bits(first: int):
    looped = 0
    for seed in range(first, first + 20):
        graph = (random_chain if seed % 3 == 0 else random_branches)(10_000 + seed)
        looped += assert_same_bits(graph, seed % 2 == 0, 3)
    assert looped > 15


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_1000_random_graphs_at_5_budgets_have_the_same_bits(first: int):
    for seed in share(range(first, first + 100)):
        assert_same_bits((random_chain if seed % 3 == 0 else random_branches)(10_000 + seed), seed % 2 == 0, 5)


@pytest.mark.parametrize("holds_ports", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_quantized_images_have_the_same_bits(stride: int, holds_ports: bool):
    assert assert_same_bits(quantized_images(stride), holds_ports, 6) > 1


def windows(count: int) -> hx.Graph:
    """Convolutions of 3x3 on 8 channels of 32 rows of 8 pixels, between two softmaxes that need whole tensors of a
    row."""
    rng = np.random.default_rng(0)
    y = hx.softmax(hx.input("x", (1, 32, 8, 1)), axis=2)
    y = hx.transpose(hx.tanh(y), perm=(0, 3, 1, 2))
    for before in (1, *[8] * (count - 1)):
        y = hx.conv(y, weights(rng, 8, before, 3, 3), pad=1)
    return hx.graph({"y": hx.softmax(y, axis=1)})


ROW = 8 * 8 * 4  # bytes


def test_what_fits_is_one_stage_of_whole_tensors():
    graph = windows(2)
    whole = whole_of(graph)
    found = spilled(graph, whole.extents["arena"].bytes)
    assert (found.stages, found.looped, found.slow, found.moved) == (1, 0, 0, (0, 0))
    assert found.fast == whole.extents["arena"].bytes


def test_stages_that_fit_pass_whole_tensors_through_slow_memory():
    """Four images are live at the third convolution; each of two that it does not touch is written once and read
    once."""
    rng = np.random.default_rng(0)
    images = [hx.conv(hx.input("x", (1, 1, 32, 8)), weights(rng, 8, 1, 3, 3), pad=1)]
    for _ in range(3):
        images.append(hx.conv(images[-1], weights(rng, 8, 8, 3, 3), pad=1))
    graph = hx.graph({"y": hx.softmax(hx.tanh(images[3] + images[0]) + images[1], axis=1)})
    found = spilled(graph, 3 * 32 * ROW)
    assert (found.stages > 1, found.looped) == (True, 0)
    assert found.moved.written == found.slow
    assert 2 * 32 * ROW <= found.moved.read <= 3 * 32 * ROW
    assert_sound(found)


def test_steps_that_do_not_fit_run_in_one_loop_and_keep_what_a_window_needs_again():
    """Four convolutions, each over the budget: their images are rings, and slow memory has neither these nor any row
    twice."""
    graph = windows(4)
    found = spilled(graph, 24 * ROW)
    assert_sound(found)
    assert found.looped > 0
    between = [s.outputs[0] for s in found.program.steps if s.kernel == "conv" and s.cut is not None]
    assert len(between) > 1
    assert all(view.ring for view in between)
    written = {t.buffer for t in find_tensors(found.program).all if found.program.buffers[t.buffer].space == SLOW}
    assert found.moved.read <= sum(found.program.buffers[i].bytes for i in written)


def test_more_rows_at_a_time_where_they_fit():
    graph = windows(4)
    tight, wide = spilled(graph, 20 * ROW), spilled(graph, 40 * ROW)
    trips = [max(loop.trips for loop in found.program.loops) for found in (tight, wide)]
    assert trips[0] > trips[1]


def test_inputs_and_outputs_have_loops_of_their_own():
    """What loads inputs runs before all else, so that inputs lie in slow memory as a whole."""
    graph = random_branches(10_002)
    found = spilled(graph, least(Spills(whole_of(graph), "", True)), True)
    program = found.program
    ports = [i for i, s in enumerate(program.steps) if any(v is not None and program.buffers[v.buffer].kind == "port" for v in (*s.inputs, *s.outputs))]  # fmt: skip
    for loop in program.loops:
        inside = range(loop.first, loop.first + len(loop.moves))
        if any(i in inside for i in ports):
            kernels = {program.steps[i].kernel for i in inside}
            assert kernels <= {"copy", "relu", "quantize", "dequantize"}
    assert_sound(found)


def test_no_stages_where_a_step_does_not_fit_alone():
    """A matrix product needs all of its operand."""
    y = hx.softmax(hx.input("x", (16, 64)), axis=1) @ np.ones((64, 32), np.float32)
    graph = hx.graph({"y": hx.softmax(y, axis=0)})
    found = Spills(place(whole_of(graph).graph, HOST), "").at(16 * 64)
    assert isinstance(found, TooLarge)
    assert found.step.kernel == "matmul"
    assert found.bytes == 16 * (64 + 32) * 4
    assert spilled(graph, found.bytes).fast == found.bytes
