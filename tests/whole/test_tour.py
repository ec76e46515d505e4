"""A tour of the compiler: one small network through every stage, each stage printed and held as golden text."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

import hexane as hx
from compare import assert_close
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph.printer import print_graph, print_program
from hexane.ops.reference import run_reference
from hexane.pipeline import compile_graph, lower
from hexane.targets import load_target


def weights(*shape: int) -> np.ndarray:
    """Small integers, so that every stage computes exactly the same."""
    return (np.arange(np.prod(shape)).reshape(shape) % 5 - 2).astype(np.float32)


def network() -> hx.Graph:
    """Two convolutions with a residual, joined with their input, pooled, and a classifier."""
    x = hx.input("image", (1, 2, 4, 4))
    y = hx.relu(hx.conv(x, weights(4, 2, 3, 3), bias=weights(4), pad=1))
    z = hx.relu(hx.conv(y, weights(4, 4, 1, 1)) + y)
    pooled = hx.max_pool(hx.concat(y, z, axis=1), kernel_sizes=2, strides=2)
    return hx.graph({"scores": hx.linear(hx.flatten(pooled), weights(3, 32), bias=weights(3))}, name="tour")


def test_a_network_goes_through_every_stage(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    target = load_target("host")
    graph = network()
    golden("tour/1_graph", print_graph(graph, sources=False))

    lowered = lower(graph, target)
    golden("tour/2_lowered", print_graph(lowered, sources=False))

    program = compile_graph(graph, target)
    golden("tour/3_program", print_program(program, sources=False))

    sections = emit_plan(program)
    plan = _core.plan_write(sections)
    assert _core.plan_read(plan).keys() == sections.keys()

    image = weights(1, 2, 4, 4)
    (got,) = _core.Program(plan, threads=2).run([image])
    want = run_reference(graph, {"image": image})["scores"]
    np.testing.assert_array_equal(got, want)

    net = hx.compile(graph)
    net.save(tmp_path / "tour.hxp")
    assert (tmp_path / "tour.hxp").read_bytes() == plan
    np.testing.assert_array_equal(hx.load(tmp_path / "tour.hxp")(image), want)
    assert_close(hx.compile(hx.parse(str(graph), graph.constants()))(image), want)
