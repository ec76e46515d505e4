"""narrow_ports: the ports of a graph in fp16."""

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph
from hexane.ops.reference import run_reference
from hexane.ops.verify import verify
from hexane.passes.legalize.narrow_ports import narrow_ports
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.simplify.simplify import simplify
from hexane.targets import load_target

HOST = load_target("host")


def narrowed(graph: Graph) -> Graph:
    after = narrow_ports(to_fp16(graph, HOST), HOST)
    verify(after, "user", HOST)
    return after


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16"])
def test_casts_at_the_ports_of_an_fp16_graph_go(dtype: str) -> None:
    graph = narrowed(hx.graph({"y": hx.relu(hx.input("x", (2, 3), dtype))}))
    assert [n.op for n in graph.nodes] == ["input", "relu"]
    assert [str(v.type) for v in (*graph.inputs, *graph.roots)] == ["fp16[2, 3]"] * 2


def test_ports_that_are_no_floats_and_fp16_ones_stay() -> None:
    graph = hx.graph({"y": hx.input("x", (2,), "int32") + 1, "z": hx.relu(hx.input("h", (2,), "fp16"))})
    assert narrow_ports(graph, HOST) is graph or str(narrow_ports(graph, HOST)) == str(graph)


def test_a_graph_of_another_dtype_is_cast_at_its_ports() -> None:
    graph = hx.graph({"y": hx.input("x", (3,)) * 2.0, "same": hx.input("x2", (3,))})
    after = simplify(narrow_ports(graph, HOST), HOST)
    x = np.float16([1, 2, 3])
    got = run_reference(after, {"x": x, "x2": x})
    assert {name: array.dtype.name for name, array in got.items()} == {"y": "float16", "same": "float16"}
    np.testing.assert_array_equal(got["y"], 2 * x)


def test_one_input_may_be_read_in_its_own_dtype_and_in_fp16() -> None:
    x = hx.input("x", (3,))
    graph = hx.graph({"y": hx.cast(x, dtype="fp16"), "z": hx.cast(x, dtype="int32")})
    after = narrow_ports(graph, HOST)
    verify(after, "user", HOST)
    assert str(after.inputs[0].type) == "fp16[3]"
    assert [str(p.value.type) for p in after.outputs] == ["fp16[3]", "int32[3]"]
