"""Segments of an engine that say the same: written once, each with its own place in the user's model."""

import hexane as hx
from engines import plan_engine
from hexane.graph import Graph, Node
from hexane.runtime.engine import OnEngine
from hexane.sources import source_scope
from hexane.targets.query import load_chip


def _segment(source: str, columns: int, factor: float = 2.0) -> Graph:
    with source_scope(source):
        x = hx.input("x", (1, 8, 4, columns), "fp16")
        return hx.graph({"y": hx.softmax(x * factor, axis=3)})


def _program(segment: Graph) -> Node:
    (node,) = (node for node in segment.nodes if node.op == "ane.program")
    return node


def test_segments_that_say_the_same_share_a_program() -> None:
    on_engine = OnEngine(plan_engine(), load_chip("h13"), qos=21)
    first, second, other = (on_engine(_segment(*of)) for of in (("a", 32), ("b", 32), ("c", 32, 3.0)))
    assert len(on_engine.written) == 2
    assert on_engine.made[0][0] is on_engine.made[1][0]
    assert on_engine.made[0][0] is not on_engine.made[2][0]
    assert [_program(made).attrs["index"] for made in (first, second, other)] == [0, 1, 2]
    assert [_program(made).source for made in (first, second, other)] == ["a", "b", "c"]


def test_decisions_name_the_nodes_of_each_segment() -> None:
    on_engine = OnEngine(plan_engine(), load_chip("h13"), qos=21)
    first, second = (on_engine(_segment(source, 24)) for source in ("a", "b"))
    assert [d.node for d in first.decisions] == ["softmax at a"]
    assert [d.node for d in second.decisions] == ["softmax at b"]
    assert on_engine.made[0][0] is on_engine.made[1][0]
