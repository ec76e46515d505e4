"""The graph: identity of nodes, order, printing and parsing, names, sources, deep graphs."""

import gc
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.graph import Graph, Node, Value, constant, tensor_type, topological
from hexane.graph.decisions import Decision
from hexane.graph.origins import source_scope
from hexane.graph.printer import print_graph
from hexane.passes.simplify.fold import fold
from hexane.targets import load_target


@pytest.fixture(scope="module", autouse=True)
def _young() -> None:
    """Python looks for garbage among what these tests make, not among all that a whole run has made."""
    gc.freeze()


def test_equal_nodes_are_one_node() -> None:
    x = hx.input("x", (3,))
    assert hx.relu(x).value == hx.relu(x).value
    assert (x + 1.0).value.node is (x + 1.0).value.node
    assert hx.relu(x).value != hx.tanh(x).value


def test_inputs_params_and_states_never_merge() -> None:
    assert hx.input("x", (3,)).value != hx.input("x", (3,)).value
    assert hx.param("w", np.zeros(3, "f")).value != hx.param("w", np.zeros(3, "f")).value
    assert hx.state("s", (3,)).value != hx.state("s", (3,)).value


def float32(bits: int) -> np.ndarray:
    return np.frombuffer(struct.pack("<I", bits), np.float32)


def test_constants_compare_by_their_bits() -> None:
    assert constant(float32(0x7FC00000)) == constant(float32(0x7FC00000))
    assert constant(float32(0x7FC00000)) != constant(float32(0x7FC00001))
    assert constant(np.array([0.0], "f")) != constant(np.array([-0.0], "f"))
    assert constant(np.zeros(2, "f")) != constant(np.zeros(2, "i4"))
    assert constant(np.zeros((2, 1), "f")) != constant(np.zeros((1, 2), "f"))


def test_attributes_compare_by_their_bits() -> None:
    x = hx.input("x", (3,))
    assert hx.clip(x, alpha=0.0).value != hx.clip(x, alpha=-0.0).value


def test_an_attribute_is_checked_though_an_equal_one_was_accepted() -> None:
    x = hx.input("x", (3, 4))
    hx.softmax(x, axis=1)
    with pytest.raises(hx.Error, match="axis: got True, need an integer"):
        hx.softmax(x, axis=True)
    hx.clip(x, alpha=1.0)
    with pytest.raises(hx.Error, match=r"alpha: got '1.0', need a number"):
        hx.clip(x, alpha="1.0")  # type: ignore[arg-type]
    hx.reshape(x, shape=(12, 1))
    with pytest.raises(hx.Error, match="shape: got "):
        hx.reshape(x, shape=(12, True))


def test_operands_are_checked_though_others_were_accepted() -> None:
    for shape in ((3, 4), (5, 4), (4,), (3, 4)):
        x = hx.input("x", (3, 4))
        if shape == (5, 4):
            with pytest.raises(hx.Error, match="need shapes that broadcast"):
                x + hx.input("y", shape)
        else:
            assert (x + hx.input("y", shape)).shape == (3, 4)


def test_a_constant_keeps_its_value_when_the_callers_array_changes() -> None:
    array = np.ones(3, "f")
    c = hx.const(array)
    array[:] = 7
    assert hx.const(np.ones(3, "f")).value == c.value


def test_merged_nodes_join_their_sources() -> None:
    x = hx.input("x", (3,))
    with source_scope("first"):
        a = hx.relu(x)
    with source_scope("second"):
        b = hx.relu(x)
    assert a.value == b.value
    assert a.value.node.sources == ("first", "second")


def test_sources_survive_every_pass() -> None:
    from hexane.pipeline import lower

    x = hx.input("x", (1, 3, 8, 8))
    with source_scope("the_conv"):
        y = hx.conv(x, np.ones((4, 3, 3, 3), "f"))
    with source_scope("the_relu"):
        y = hx.relu(y)
    with source_scope("the_head"):
        y = hx.linear(hx.flatten(y), np.ones((2, 144), "f"))
    lowered = lower(hx.graph(y), load_target("host"))
    sources = {node.op: node.sources for node in lowered.nodes}
    assert sources["cpu.conv"] == ("the_conv", "the_relu")
    assert sources["cpu.matmul"] == ("the_head",)


def test_nodes_come_operands_first_and_each_once() -> None:
    x = hx.input("x", (4,))
    a = hx.exp(x)
    graph = hx.graph([a + hx.tanh(a), a * 2.0])
    seen = set()
    for node in graph.nodes:
        assert all(v is None or v.node in seen for v in node.inputs)
        seen.add(node)
    assert len(seen) == len(graph.nodes)


def chain(length: int) -> Graph:
    x = hx.input("x", (1, 4))
    for i in range(length):
        x = hx.tanh(x) if i % 2 else x + 1.0
    return hx.graph(x)


def test_a_chain_of_20000_nodes_prints_folds_and_is_freed() -> None:
    graph = chain(20_000)
    assert len(graph.nodes) == 20_002
    text = str(graph)
    assert str(hx.parse(text, graph.constants())) == text
    assert len(fold(graph, load_target("host")).nodes) == 20_002
    del graph
    gc.collect()


def test_nodes_that_nobody_holds_leave_the_table() -> None:
    table = Node.with_inputs.__globals__["_interned"]  # hexane.graph is a function
    before = len(table)
    graph = chain(100)
    assert len(table) > before + 100
    del graph
    gc.collect()
    assert len(table) <= before


def test_nodes_that_live_to_the_end_of_the_process_leave_it_quietly() -> None:
    code = "import hexane as hx, builtins; builtins.kept = hx.tanh(hx.input('x', (3,)) + 1.5)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_graph_reads_back_while_it_lives_whatever_its_constants_come_from() -> None:
    y = hx.input("x", (2,)) + 0.1875
    constant(np.float32(0.1875), ("first", "second"))
    graph = hx.graph(y)
    assert str(hx.parse(str(graph), graph.constants())) == str(graph)
    assert "# first, second" in str(graph)


def test_a_constant_that_comes_from_everywhere_names_some_places() -> None:
    made = [constant(np.float32([0.59375]), (f"place_{i}",)) for i in range(1000)]
    assert {v.node for v in made} == {made[0].node}
    assert made[0].node.sources[:2] == ("place_0", "place_1")
    assert len(made[0].node.sources) < 100


def test_outputs_are_named_after_their_op() -> None:
    x = hx.input("x", (3,))
    graph = hx.graph([hx.relu(x), hx.relu(x + 1.0), hx.tanh(x)])
    assert [p.name for p in graph.outputs] == ["relu", "relu_1", "tanh"]
    assert [p.name for p in hx.graph({"y": hx.relu(x)}).outputs] == ["y"]


def test_an_output_is_not_named_like_an_input() -> None:
    relu = hx.input("relu", (3,))
    assert hx.graph(hx.relu(relu)).outputs[0].name == "relu_1"
    with pytest.raises(hx.Error, match="port name 'relu' twice"):
        hx.graph({"relu": hx.relu(relu)})


def test_two_inputs_of_one_name_are_refused() -> None:
    with pytest.raises(hx.Error, match="name 'x' twice"):
        hx.graph(hx.input("x", (3,)) + hx.input("x", (3,)))


def test_inputs_are_in_the_order_they_were_made() -> None:
    a, b = hx.input("a", (3,)), hx.input("b", (3,))
    assert hx.graph(b - a).input_names() == ["a", "b"]


def test_parsing_gives_the_same_text(golden) -> None:  # type: ignore[no-untyped-def]
    x = hx.input("image", (1, 3, 6, 6))
    with source_scope('a "quoted"\nname'):
        y = hx.relu(hx.conv(x, np.arange(108, dtype="f").reshape(4, 3, 3, 3), np.float32([1, -2.5, np.inf, 0]), pad=1))
    values, at = hx.topk(hx.reshape(y, shape=(4, 36)), k=2)
    state = hx.state("odd name", (4, 8))
    written = hx.write_state(state, values, hx.input("position", (), "int32"), axis=1)
    scaled = written * hx.param("scale", np.float32([np.nan]))
    graph = hx.graph({"first": scaled, "at": at}, name="all kinds")
    with source_scope():
        assert str(hx.parse(str(graph), graph.constants())) == str(graph)
    golden("graph", print_graph(graph, sources=False))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "need one"),
        ("nonsense", r"\[line 1\].*need `graph NAME"),
        ("graph g (%x: fp32[2])\n  %0 = nope(%x) : fp32[2]\n  return a=%0", r"\[line 2\].*an op of the catalogue"),
        ("graph g (%x: fp32[2])\n  %0 = relu(%y) : fp32[2]\n  return a=%0", r"\[line 2\].*defined above"),
        ("graph g (%x: fp32[2])\n  %0 = relu(%x) : fp32[3]\n  return a=%0", r"\[line 2\].*got the types fp32\[3\]"),
        ("graph g (%x: fp33[2])\n  return a=%x", r"\[line 1\].*got the dtype fp33"),
        ("graph g (%x: fp32[2])\n  %0 = const @00 : fp32[2]\n  return a=%0", r"\[line 2\].*need its array"),
        ("graph g (%x: fp32[2])\n  %0 = relu(%x) {alpha=__import__} : fp32[2]\n  return a=%0", r"\[line 2\]"),
    ],
)
def test_text_that_is_not_a_graph_names_the_line(text: str, message: str) -> None:
    with pytest.raises(hx.Error, match=message):
        hx.parse(text)


def test_the_picture_is_svg_and_escapes_names(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    picture = hx.graph(hx.relu(hx.input("<&>", (3,))))._repr_html_()
    ElementTree.fromstring(picture)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int32", "bool"])
def test_indexing_is_numpys(dtype: str) -> None:
    array = np.arange(60).reshape(3, 4, 5)
    x = hx.input("x", (3, 4, 5), dtype)
    array = array.astype(x.dtype.numpy)
    cases = (
        np.s_[1], np.s_[..., -1], np.s_[1:, None, ::2], np.s_[::-1, 1:3], np.s_[:, 3:0:-2, 4], np.s_[2:1], np.s_[-2:, ..., 0:99:3],
    )  # fmt: skip
    for index in cases:
        got = hx.compile(x[index], threads=1)(array)
        np.testing.assert_array_equal(got, array[index])


def test_operators_are_numpys() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.uniform(0.5, 2, (3, 4)).astype("f"), rng.uniform(0.5, 2, (4,)).astype("f")
    x, y = hx.input("x", (3, 4)), hx.input("y", (4,))
    pairs = [
        (x + y, a + b), (1 - x, 1 - a), (x * 2, a * 2), (b / x, b / a), (x**2, a**2), (2**x, 2**a), (x // 0.3, a // 0.3),
        (-x, -a), (abs(-x), a), (x @ y, a @ b), (a.T @ x, a.T @ a), (x < y, a < b), (x >= 1.0, a >= 1), (x == x, a == a),
        (x != y, a != b), ((x > 1) & (x < 2), (a > 1) & (a < 2)), (~(x > 1), a <= 1), (x % 0.3, a % 0.3),
    ]  # fmt: skip
    for tensor, want in pairs:
        graph = hx.graph(tensor)
        got = hx.compile(graph, threads=1)({n: {"x": a, "y": b}[n] for n in graph.input_names()})
        np.testing.assert_allclose(got, want, rtol=1e-6)
        assert got.dtype == want.dtype


@pytest.mark.parametrize("kind", ["int8", "int32", "uint8", "int64"])
def test_operators_on_integers_work_on_their_bits(kind: str) -> None:
    a, b = np.array([[1, 6, 100], [3, 0, 77]], kind), np.array([2, 3, 1], kind)
    x, y = hx.input("x", a.shape, kind), hx.input("y", b.shape, kind)
    pairs = [
        (x & y, a & b), (x | y, a | b), (x ^ y, a ^ b), (~x, ~a), (x << y, a << b), (x >> y, a >> b), (x & 3, a & 3),
        (3 & x, 3 & a), (8 | x, 8 | a), (5 ^ x, 5 ^ a), (1 << y, np.left_shift(1, b, dtype=kind)), (b & x, b & a),
        (64 >> y, np.right_shift(64, b, dtype=kind)),
    ]  # fmt: skip
    for tensor, want in pairs:
        graph = hx.graph(tensor)
        got = hx.compile(graph, threads=1)({n: {"x": a, "y": b}[n] for n in graph.input_names()})
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


def test_operators_of_truth_take_scalars_on_either_side_and_no_floats() -> None:
    a = np.array([True, False])
    x = hx.input("x", (2,), "bool")
    net = hx.compile([True & x, True | x, True ^ x], threads=1)
    for got, want in zip(net(a).values(), (a, a | True, ~a), strict=True):
        np.testing.assert_array_equal(got, want)
    for act in (lambda v: v & v, lambda v: ~v, lambda v: v << 1):
        with pytest.raises(hx.Error, match=r"got the dtype fp32|got fp32"):
            act(hx.input("f", (2,)))


def test_large_constants_merge_by_all_their_bytes() -> None:
    data = np.zeros(1 << 19, np.float32)
    others = [data.copy() for _ in range(3)]
    others[1][12345] = 1  # in none of the places that are hashed first
    others[2][-1] = 1
    first, same, inner, last = (constant(a) for a in (data, *others))
    assert first.node is same.node
    assert len({first, inner, last}) == 3


def test_the_largest_tensor_of_a_graph_is_that_of_a_plan() -> None:
    assert tensor_type("uint8", (_core.MAX_BYTES,)).size == _core.MAX_BYTES
    with pytest.raises(hx.Error, match=f"got more than {_core.MAX_BYTES} bytes"):
        tensor_type("uint8", (_core.MAX_BYTES + 1,))


def test_a_change_that_brings_in_what_the_graph_does_not_take_is_not_made() -> None:
    x = hx.relu(hx.input("x", (4,)))
    graph = replace(hx.graph([hx.exp(x), hx.sigmoid(x)]), takes=lambda node: node.op not in ("tanh", "const"))

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        y = hx.Tensor(inputs[0]) if inputs[0] is not None else None
        if y is None or node.op == "relu":
            return None
        return (hx.sin(hx.tanh(y)).value,) if node.op == "exp" else (hx.cos(y).value,)

    changed = graph.rewrite(change)
    assert [port.value.node.op for port in changed.outputs] == ["exp", "cos"]
    assert [port.value.node.op for port in replace(graph, takes=None).rewrite(change).outputs] == ["sin", "cos"]


def test_every_thread_sees_all_nodes_of_a_graph_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread asks for the nodes while this one looks for them."""
    graph = replace(hx.graph(hx.relu(hx.input("x", (4,))) + 1.0))  # the new one remembers nothing yet
    seen: list[list[Node]] = []

    def interrupted(roots: Sequence[Value]) -> list[Node]:
        monkeypatch.undo()
        other = Thread(target=lambda: seen.append(list(graph.nodes)))
        other.start()
        other.join()
        return topological(roots)

    monkeypatch.setitem(Graph.rewrite.__globals__, "topological", interrupted)  # hexane.graph is a function
    seen.append(list(graph.nodes))
    whole = topological((*graph.inputs, *graph.roots))
    assert seen == [whole, whole]
    assert graph.nodes == whole


def test_other_decisions_leave_the_order_of_the_nodes_known() -> None:
    graph = hx.graph(hx.relu(hx.input("x", (3,))))
    nodes = graph.nodes
    noted = graph.annotated(name="other").decided(Decision("pass", "relu", "kept", "why"))
    assert noted.nodes is nodes
    assert (noted.name, len(noted.decisions), graph.name) == ("other", 1, "graph")


def test_a_node_of_constants_alone_is_constant() -> None:
    one, x = hx.const(np.ones(3, np.float32)), hx.input("x", (3,))
    assert (one + one * 2.0).value.node.is_constant
    assert not (one + x).value.node.is_constant
    assert not x.value.node.is_constant
