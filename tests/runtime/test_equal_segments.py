"""Segments of an engine that say the same: written once, each with its own place in the user's model."""

import numpy as np

import hexane as hx
from engines import plan_engine
from hexane.graph import Graph, Node
from hexane.graph.origins import source_scope
from hexane.pipeline import compile_segments, divide
from hexane.program.work import Work, of_program
from hexane.runtime.on_engine import OnEngine
from hexane.targets.query import load_chip


def _segment(source: str, columns: int, factor: float = 2.0) -> Graph:
    with source_scope(source):
        x = hx.input("x", (1, 8, 4, columns), "fp16")
        return hx.graph({"y": hx.softmax(x * factor, axis=3)})


def _program(segment: Graph) -> Node:
    (node,) = (node for node in segment.nodes if node.op == "ane.program")
    return node


def test_segments_that_say_the_same_share_a_program() -> None:
    segment_compiler = OnEngine(plan_engine(), load_chip("h13"), qos=21)
    first, second, other = (segment_compiler(_segment(*of)) for of in (("a", 32), ("b", 32), ("c", 32, 3.0)))
    assert len(segment_compiler.written) == 2
    assert segment_compiler.made[0][0] is segment_compiler.made[1][0]
    assert segment_compiler.made[0][0] is not segment_compiler.made[2][0]
    assert [_program(made).attrs["index"] for made in (first, second, other)] == [0, 1, 2]
    assert [_program(made).source for made in (first, second, other)] == ["a", "b", "c"]


def test_a_program_says_how_much_it_does() -> None:
    """Products (4, 8) x (8, 32) in fp16: two operations for each of 4 * 8 * 32, and the bytes of x, weight and y."""
    x = hx.input("x", (4, 8), "fp16")
    for y in (hx.matmul(x, np.ones((8, 32), np.float16)), hx.linear(x, np.ones((32, 8), np.float16))):
        made = OnEngine(plan_engine(), load_chip("h13"), qos=21)(hx.graph({"y": hx.relu(y)}))
        assert of_program(_program(made)) == Work(2 * 4 * 8 * 32, 2 * (4 * 8 + 8 * 32 + 4 * 32))


def test_segments_of_a_device_do_the_products_of_their_layers() -> None:
    """The same network for the device and for the CPU in its place: a product, an op of the host, and a convolution."""
    rng = np.random.default_rng(0)
    x = hx.input("x", (1, 8, 6, 6), "fp16")
    y = hx.sinh(hx.conv(x, rng.standard_normal((8, 8, 3, 3)).astype(np.float16)))
    graph = hx.graph({"y": hx.conv(y, rng.standard_normal((16, 8, 1, 1)).astype(np.float16))})
    chip = load_chip("h13")
    on_cpu = compile_segments(*divide(graph, chip), chip).segments
    on_device = compile_segments(
        *divide(graph, chip), chip, segment_compiler=OnEngine(plan_engine(), chip, qos=21)
    ).segments
    assert [s.device for s in on_cpu] == [s.device for s in on_device] == ["ane", "host", "ane"]
    assert [s.work.operations for s in on_cpu] == [s.work.operations for s in on_device]
    assert [s.work.operations for s in on_device[::2]] == [2 * 8 * 16 * 72, 2 * 16 * 16 * 8]
    assert all(s.work.bytes for s in on_device)


def test_decisions_name_the_nodes_of_each_segment() -> None:
    segment_compiler = OnEngine(plan_engine(), load_chip("h13"), qos=21)
    first, second = (segment_compiler(_segment(source, 24)) for source in ("a", "b"))
    assert [d.node for d in first.decisions] == ["softmax at a"]
    assert [d.node for d in second.decisions] == ["softmax at b"]
    assert segment_compiler.made[0][0] is segment_compiler.made[1][0]
