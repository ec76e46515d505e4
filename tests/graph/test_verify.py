"""verify: sound graphs pass, and each fault is refused by the node's name."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays, graph_of
from hexane import pipeline
from hexane.errors import Error
from hexane.graph import EpilogueSlot, Graph, Node, Port, Value, constant, make_node, tensor_type, unique
from hexane.graph.origins import source_scope
from hexane.ops import OPS, Op, apply
from hexane.ops.verify import level_of, verify
from hexane.passes.legalize.select_kernels import select_kernels
from hexane.passes.order import ORDER
from hexane.pipeline import Pass, lower
from hexane.targets import load_target

HOST = load_target("host")
IMAGE = tensor_type("fp32", (1, 3, 6, 5))
WEIGHT = constant(np.ones((4, 3, 1, 1), np.float32))
WINDOW = {"strides": (1, 1), "dilations": (1, 1), "pad": (0, 0, 0, 0), "groups": 1}


def x(shape: Sequence[int] = IMAGE.shape) -> Value:
    return unique("input", "x", tensor_type("fp32", shape))


def graph(node: Node, **parts: Any) -> Graph:
    inputs = tuple(dict.fromkeys(v for v in node.inputs if v is not None and v.node.op == "input"))
    return Graph(**{"inputs": inputs, "outputs": (Port("y", node.values[0]),), **parts})


def relu(value: Value) -> Node:
    return apply(OPS["relu"], [value], {}, ("the_relu",))[0].node


def conv(attrs: dict[str, Any], op: str = "conv", operands: Sequence[Value | None] = (None,)) -> Node:
    last = attrs.get("layout") == "nhwc"
    image = x((1, 6, 5, 3) if last else IMAGE.shape)
    out = tensor_type("fp32", (1, 6, 5, 4) if last else (1, 4, 6, 5))
    return make_node(op, [image, WEIGHT, *operands], attrs, [out], ("the_conv",))


def summed(slots: tuple[EpilogueSlot, ...], *operands: Value) -> Node:
    a = x((3,))
    return make_node("cpu.add", [a, a, *operands], {"epilogue": slots}, [a.type], ("the_sum",))


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
def test_what_users_and_kernels_write_is_sound(op: Op, i: int) -> None:
    written = graph_of(op, op.cases[i], arrays(op, op.cases[i]))
    verify(written, "user", HOST)
    verify(lower(written, HOST), "kernel", HOST)


CLIP = EpilogueSlot("clip", (("alpha", 0.0), ("beta", 6.0)))
FAULTS: dict[str, tuple[Callable[[], Node], str]] = {
    "types": (lambda: make_node("relu", [x()], {}, [tensor_type("fp32", (1,))], ("the_relu",)), "the_relu.*types"),
    "an op that is not there": (lambda: make_node("ruler", [x()], {}, [IMAGE]), "'ruler'"),
    "an attribute too many": (lambda: make_node("relu", [x()], {"alpha": 1.0}, [IMAGE]), "unknown attribute 'alpha'"),
    "an attribute too few": (lambda: make_node("clip", [x()], {"beta": 1.0}, [IMAGE]), "attributes: got"),
    "an attribute of another kind": (lambda: make_node("clip", [x()], {"alpha": 0, "beta": 1}, [IMAGE]), "attributes"),
    "an attribute in another form": (
        lambda: conv({**WINDOW, "pad": (0,), "layout": "nchw"}),
        "the_conv.*attributes: got",
    ),
    "an input too few": (lambda: conv({**WINDOW, "layout": "nchw"}, operands=()), "got 2 inputs"),
    "an input too many": (lambda: make_node("relu", [x(), WEIGHT], {}, [IMAGE]), "got 2 inputs"),
    "an operand no slot adds": (lambda: summed((), x((3,))), r"the_sum.*operands \[\]"),
    "an operand that is not there": (lambda: summed((EpilogueSlot("add", operand=2),)), r"operands \[2\]"),
    "an operand added twice": (lambda: summed((EpilogueSlot("add", operand=2),) * 2, WEIGHT), "epilogue"),
    "an operand of another shape": (lambda: summed((EpilogueSlot("add", operand=2),), WEIGHT), "epilogue operands"),
    "too many slots": (lambda: summed((CLIP,) * 5), "got 5 slots"),
    "a slot of two operands": (lambda: summed((EpilogueSlot("mul"),)), r"got mul\(\)"),
    "a slot that has lost an attribute": (lambda: summed((EpilogueSlot("clip", (("alpha", 0.0),)),)), "all attributes"),
    "a tuple for a slot": (lambda: summed((("relu", 0.0, 0.0, -1),)), "need epilogue slots"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_node_at_fault_is_refused(name: str) -> None:
    make, message = FAULTS[name]
    for _ in range(2):  # what is at fault is not taken for sound when its like comes
        with pytest.raises(Error, match=message):
            verify(graph(make()), "lowering", HOST)


def test_what_is_like_a_sound_node_but_for_one_thing_is_refused() -> None:
    """Kinds that are sound are remembered, by operands, attributes to the bit, and types."""
    good = make_node("clip", [x()], {"alpha": 0.0, "beta": 6.0}, [IMAGE])
    verify(graph(good), "lowering", HOST)
    others = [
        make_node("clip", [x((1,))], good.attrs, [IMAGE]),
        make_node("clip", [x()], good.attrs, [tensor_type("fp16", IMAGE.shape)]),
        make_node("clip", [x(), WEIGHT], good.attrs, [IMAGE]),
        make_node("clip", [x()], {"alpha": False, "beta": 6.0}, [IMAGE]),
        make_node("clip", [x()], {"alpha": 0.0}, [IMAGE]),
    ]
    for other in others:
        with pytest.raises(Error, match=r"types|inputs|attributes"):
            verify(graph(other), "lowering", HOST)


def test_a_kernels_op_is_no_users() -> None:
    written = graph(summed((CLIP,)))
    verify(written, "kernel", HOST)
    with pytest.raises(Error, match=r"the_sum.*got cpu.add, need an op that users write"):
        verify(written, "user", HOST)
    assert level_of(written) == "lowering"


def test_a_pass_that_is_the_first_to_make_a_kernels_op_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXANE_VERIFY", "1")
    rows = hx.gather_along_axis(hx.log_softmax(hx.input("x", (2, 5))), hx.input("at", (2, 1), "int32"), axis=1)
    others = frozenset(p.name for p in ORDER if p.level == "lowering") - {"fuse_cross_entropy"}
    assert "log_softmax_at" in lower(hx.graph(rows), HOST, skip=others).ops


@pytest.mark.parametrize("op", ["add", "linear"])
def test_a_users_op_that_no_kernel_runs_is_no_kernels(op: str) -> None:
    a = x((3, 3))
    written = graph(apply(OPS[op], [a, a], {}, ("here",))[0].node)
    verify(written, "user", HOST)
    with pytest.raises(Error, match=rf"here.*got {op}, need an op that a kernel of host runs"):
        verify(written, "kernel", HOST)


def test_a_kernels_op_has_its_images_as_the_kernel_reads_them() -> None:
    slots = {"epilogue": ()}
    verify(graph(conv({**WINDOW, "layout": "nhwc", **slots}, "cpu.conv")), "kernel", HOST)
    with pytest.raises(Error, match=r"the_conv.*layout: got nchw, need nhwc"):
        verify(graph(conv({**WINDOW, "layout": "nchw", **slots}, "cpu.conv")), "kernel", HOST)


def test_ports_and_updates_make_sense() -> None:
    a = x()
    node = relu(a)
    y = node.values[0]
    verify(graph(node), "user", HOST)
    for parts, message in (
        ({"outputs": ()}, "need outputs"),
        ({"outputs": (Port("y", y), Port("y", a))}, "a name for each port"),
        ({"inputs": ()}, "not in its signature"),
        ({"outputs": (Port("y", y, "n", 1),)}, "length 'n'"),
        ({"outputs": (Port("y", y, "n", 1), Port("n", a))}, "length 'n'"),
        ({"updates": (y,)}, "the_relu.*need write_state"),
    ):
        with pytest.raises(Error, match=message):
            verify(graph(node, **parts), "user", HOST)


def test_a_constant_has_the_array_its_type_says() -> None:
    node = unique("param", "w", IMAGE, np.zeros(3, np.float32)).node
    with pytest.raises(Error, match="got an array"):
        verify(graph(node), "user", HOST)


def broken(graph: Graph, target: object) -> Graph:
    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op != "relu":
            return None
        return make_node("relu", inputs, {"alpha": 1.0}, node.types, node.sources).values

    return graph.rewrite(change)


@pytest.mark.parametrize("checked", ["1", "0"])
def test_the_pass_that_breaks_a_graph_is_named(monkeypatch: pytest.MonkeyPatch, checked: str) -> None:
    monkeypatch.setenv("HEXANE_VERIFY", checked)
    monkeypatch.setattr(pipeline, "passes", lambda *_: [Pass(broken)])
    with source_scope("the_relu"):
        written = hx.graph(hx.relu(hx.input("x", (3,))))
    if checked == "0":
        assert "alpha" in str(lower(written, HOST))
        return
    with pytest.raises(Error, match=r"after broken.*the_relu.*alpha"):
        lower(written, HOST)


def test_rewriting_refuses_a_value_of_another_type() -> None:
    with source_scope("the_relu"):
        written = hx.graph(hx.exp(hx.relu(hx.input("x", (3,)))))
    with pytest.raises(Error, match=r"the_relu.*rewritten as cast: got fp16\[3\], need fp32\[3\]"):
        written.rewrite(lambda n, v: apply(OPS["cast"], v, {"dtype": "fp16"}) if n.op == "relu" else None)


def test_kernels_are_selected_once() -> None:
    once = select_kernels(hx.graph(hx.input("x", (3,)) + 1.0), HOST)
    assert str(select_kernels(once, HOST)) == str(once)
