"""Layers of a chip's program: their order is that of the steps, and every number that reports read adds up."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from chip_layers import check_layers_add_up
from hexane import _core
from hexane.errors import Error
from hexane.graph import tensor_type, topological
from hexane.importers.onnx import import_onnx
from hexane.program import Program
from hexane.stages.engine.layer_problem import footprint
from hexane.targets.query import load_chip
from networks import small_networks
from random_graphs import random_graph

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
SCHEDULES = ("apple", "optimal")


def program(model: object, schedule: str = "", target: str = "h13") -> Program:
    made = hx.compile(model, target=target, schedule=schedule, threads=1).program
    assert made is not None
    return made


def wide() -> hx.Graph:
    """Four branches of one image, whose order matters."""
    x = hx.input("x", (1, 8, 64, 64), "fp16")
    weights = np.ones((8, 8, 3, 3), np.float16) / 72
    branches = [hx.conv(hx.relu(hx.conv(x, weights * (i + 1), pad=1)), weights[: 2 * i + 1], pad=1) for i in range(4)]
    return hx.graph(hx.concat(*branches, axis=1))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", small_networks())
def test_the_layers_of_a_network_add_up(name: str, schedule: str, model_file: Callable[[str], Path]) -> None:
    check_layers_add_up(program(import_onnx(model_file(name)), schedule))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_layers_of_random_graphs_add_up(schedule: str) -> None:
    for seed in range(30):
        print(f"seed {seed}")
        check_layers_add_up(program(random_graph(seed, "fp16")[0], schedule, target=("h13", "h14", "h17s")[seed % 3]))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_concatenation_runs_behind_all_that_it_joins(schedule: str) -> None:
    p = program(wide(), schedule)
    (concat,) = [layer for layer in p.layers if layer.kind == "Concat"]
    assert [p.tensors[t].type.shape[1] for t in concat.reads] == [1, 3, 5, 7]
    for t in concat.reads:
        producer = p.tensors[t].producer
        assert producer is not None
        assert producer < concat.index


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_steps_run_in_the_order_of_their_layers(schedule: str) -> None:
    """Who needs a step's result is not a layer before the one that the step belongs to."""
    p = program(wide(), schedule)
    owner = {id(p.steps[i].node): layer.index for layer in p.layers for i in range(*layer.steps)}
    assert sorted(owner.values()) == [owner[id(step.node)] for step in p.steps if id(step.node) in owner]
    for layer in p.layers:
        for step in p.steps[slice(*layer.steps)]:
            needed = {owner.get(id(node), -1) for node in topological(step.node.values)}
            assert max(needed) == layer.index


def test_the_two_orders_differ_and_compute_the_same() -> None:
    image = np.random.default_rng(0).standard_normal((1, 8, 64, 64)).astype(np.float16)
    apple, optimal = (hx.compile(wide(), target="h13", schedule=name, threads=1) for name in SCHEDULES)
    np.testing.assert_array_equal(apple(image), optimal(image))
    for net in (apple, optimal):
        assert net.program is not None
        assert {d.stage for d in net.program.decisions} >= {"schedule", "partition", "allocate", "co_issue", "pack"}
    said = [d for d in optimal.program.decisions if d.stage == "schedule"]  # type: ignore[union-attr]
    assert "proven" in said[0].reason


def test_tensors_beyond_the_working_set_are_spilled_and_said_so() -> None:
    x = hx.input("x", (1, 16, 256, 300), "fp16")
    p = program(hx.relu(x) + x)
    check_layers_add_up(p)
    assert any(stay.spilled for t in p.tensors for stay in t.stays)
    assert any(d.stage == "allocate" and d.verdict == "spilled" for d in p.decisions)


def test_a_chip_takes_two_orders_and_the_host_one() -> None:
    with pytest.raises(Error, match="got 'fast', need 'apple', 'optimal'"):
        hx.compile(wide(), target="h13", schedule="fast")
    with pytest.raises(Error, match="got 'apple', need 'optimal'"):
        hx.compile(wide(), schedule="apple")
    assert hx.compile(wide()).program.layers == ()  # type: ignore[union-attr]


def test_operands_of_a_concatenation_along_the_width_are_written_where_granules_allow() -> None:
    x = hx.input("x", (1, 4, 8, 16), "fp16")
    for width, verdict in ((8, "direct"), (5, "copied")):
        joined = hx.concat(hx.relu(x[:, :, :, :width]), hx.tanh(x), axis=3)
        said = [d for d in program(joined).decisions if d.stage == "width_concat"]
        assert [d.verdict for d in said] == [verdict]


def test_compiling_leaves_the_collector_of_cycles_as_it_was() -> None:
    program(hx.relu(hx.input("x", (4,), "fp16")))
    assert gc.isenabled()
    gc.disable()
    try:
        program(hx.tanh(hx.input("x", (4,), "fp16")))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_weights_of_a_layer_are_packed_in_groups_of_the_engine() -> None:
    """64 channels of 3 x 3 x 512 in fp16: 9,216 bytes each, so 4 of them in the 64 KB of an engine, and 16 groups for
    16 engines."""
    image = hx.input("x", (1, 512, 7, 7), "fp16")
    (layer,) = [x for x in program(hx.conv(image, np.ones((64, 512, 3, 3), np.float16), pad=1)).layers if x.weights]
    weights = layer.weights
    assert weights is not None
    assert (weights.group, weights.groups, weights.engines, weights.passes) == (4, 16, 16, 1)
    assert weights.bytes == weights.packed_bytes == 64 * 512 * 9 * 2


@pytest.mark.parametrize(("width", "stride"), [(512, 1040), (100, 208), (7, 16)])
def test_rows_of_a_tensor_lie_at_the_stride_of_fewest_conflicts(width: int, stride: int) -> None:
    x = hx.input("x", (1, 2, 64, width), "fp16")
    made = program(hx.relu(x)).tensors[-1]
    assert (made.row_bytes, made.rows, made.stride) == (2 * width, 128, stride)
    assert made.conflicts == _core.bank_conflicts(64, 16, made.rows, stride) == 2


def test_a_stride_is_no_larger_than_the_chip_takes() -> None:
    memory, kind = load_chip("h13").memory, tensor_type("fp16", (1, 2, 64, 512))
    for most, stride in ((memory.destination_stride, 1040), (None, 1040), (1024, 1024)):
        assert footprint(kind, replace(memory, destination_stride=most)).stride == stride


def test_a_state_that_is_written_is_traffic() -> None:
    """The copy of its new value into it, in main memory."""
    state, x = hx.state("s", (1, 64, 32, 64), "fp16"), hx.input("x", (1, 64, 32, 64), "fp16")
    update = hx.write_state(state, hx.relu(x) + state, hx.const(np.int32(0)))
    made = hx.compile(hx.graph({"y": hx.exp(x)}, updates=[update]), target="h16", threads=1).program
    (layer,) = [found for found in made.layers if found.op == "write_state"]
    size = 2 * 64 * 32 * 64
    assert layer.work == (0, layer.moved)
    assert size <= layer.stored < 2 * size


@pytest.mark.parametrize("shape", [(0, 3, 3), (1, 0, 3, 3), (2, 5, 0), (0,)])
def test_rows_of_nothing_lie_as_far_apart_as_they_are_long(shape: tuple[int, ...]) -> None:
    found = footprint(tensor_type("fp16", shape), load_chip("h12").memory)
    assert found.stride == found.row_bytes == 2 * shape[-1]
    assert found.bytes == found.rows * found.stride == 0
