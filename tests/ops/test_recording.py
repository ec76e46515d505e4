"""No lowering and no form of an op ignores an attribute: each is read, and what it says changes what is made."""

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays, graph_of
from hexane.emit.netplist import emit_netplist
from hexane.graph import AttrValue, Node, Value
from hexane.lowering import layers as lower
from hexane.lowering import mil_ops as mil_form
from hexane.lowering.one_node import lower_node
from hexane.mil.forms import WRITE, elementwise
from hexane.netplist import write
from hexane.ops import OPS, Op
from hexane.ops.attributes import REQUIRED
from hexane.ops.recording import IgnoredError, RecordedNode
from hexane.ops.reference import run_reference
from hexane.passes.engine.layer_steps import STEPS
from hexane.passes.retarget import retarget
from hexane.passes.retarget.forms import FORMS
from hexane.passes.retarget.writer import Rewritten
from hexane.targets.query import load_chip

X = hx.input("x", (2, 8, 6, 4))
SOFTMAX = hx.graph(hx.softmax(X, axis=1))


def forgetful(*read: str) -> Callable[..., Any]:
    """A form that reads these attributes and gives its first operand."""

    def form(b: Any, node: Node, *inputs: Value) -> Any:
        for name in read:
            node.attrs[name]
        return inputs[0] if inputs else node.inputs[0]

    return form


def test_a_lowering_that_ignores_an_attribute_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new op, so that nothing of it is remembered."""
    (node,) = [n for n in hx.graph(hx.softmax(hx.input("x", (3, 11, 5)), axis=1)).nodes if n.op == "softmax"]
    monkeypatch.setitem(lower.PATTERNS, "softmax", (lower.checked(forgetful()),))
    with pytest.raises(IgnoredError, match=r"\[softmax at .*\] axis: got 1, which the lowering of softmax ignores"):
        lower_node(node, [False])
    with pytest.raises(IgnoredError):
        hx.preflight(hx.softmax(hx.input("x", (3, 13, 5)), axis=1), "h13")
    monkeypatch.setitem(lower.PATTERNS, "softmax", (lower.checked(forgetful("axis")),))
    lower_node(node, [False])


def test_a_form_of_retargeting_that_ignores_an_attribute_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hx.graph(hx.softmax(hx.input("x", (2, 8, 6, 20000)), axis=1))

    def form(b: Any, node: Node) -> Rewritten:
        return Rewritten((b.relu(node.inputs[0]),), "forgets the axis")

    monkeypatch.setitem(FORMS, "softmax", (form,))  # type: ignore[index]
    with pytest.raises(IgnoredError, match="axis: got 1, which the form of softmax ignores"):
        retarget(graph, load_chip("h13"))


def test_a_form_in_mil_that_ignores_an_attribute_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (node,) = [n for n in SOFTMAX.nodes if n.op == "softmax"]
    monkeypatch.setitem(
        WRITE,  # type: ignore[arg-type]
        "softmax",
        lambda node: elementwise.MilCall("softmax", {"x": node.inputs[0]}),
    )
    with pytest.raises(IgnoredError, match="axis: got 1, which the form in MIL of softmax ignores"):
        mil_form.written(node)


def test_a_unit_of_a_netplist_that_ignores_an_attribute_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(write.UNITS, "softmax", lambda w, node, x: w.name(x))  # type: ignore[index]
    graph = hx.graph(hx.softmax(hx.input("x", (2, 8, 6, 4), "fp16"), axis=1))
    with pytest.raises(IgnoredError, match=r"axis: got 1, which the unit of anec\.softmax ignores"):
        emit_netplist(graph, load_chip("h12"))


def test_the_types_say_what_some_attributes_say() -> None:
    (node,) = [n for n in hx.graph(hx.reshape(X, shape=(2, 192))).nodes if n.op == "reshape"]
    view = RecordedNode(node)
    with pytest.raises(IgnoredError, match=r"shape: got \(2, 192\)"):
        view.check("form")
    assert view.values == node.values
    view.check("form")
    assert view.with_inputs(node.inputs) is node


# ---- expansions, which get attributes as keywords ----


def loaded(function: Callable[..., Any]) -> set[str]:
    """The names that the code of a function, and of those in it, reads."""
    while isinstance(function, partial):
        function = function.func
    found: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [c for c in code.co_consts if inspect.iscode(c)]
        for instruction in dis.get_instructions(code):
            if "LOAD_" in instruction.opname:  # since Python 3.13 also two names at once: STORE_FAST_LOAD_FAST
                named = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
                found.update(named[1:] if instruction.opname.startswith("STORE_") else named)
    return found


def keywords() -> Iterator[tuple[str, Op, Callable[..., Any]]]:
    """Each function that gets the attributes of an op as keywords."""
    for name, op in OPS.items():
        if op.expand is not None:
            yield f"expansion of {name}", op, op.expand
    for name, form in mil_form.FORMS.items():
        yield f"form in MIL of {name}", OPS[name], form
    for name, steps in STEPS.items():
        yield f"steps of {name}", OPS[name], steps


# Of a dropout: the rate of a layer, which is 0, and a flag for `advance_streams`, which changes no number.
NOTHING_TO_READ = {"rate", "again"}


@pytest.mark.parametrize(("op", "form"), [pytest.param(op, form, id=name) for name, op, form in keywords()])
def test_an_expansion_reads_every_attribute(op: Op, form: Callable[..., Any]) -> None:
    reads = loaded(form)
    taken = inspect.signature(form).parameters.values()
    if any(p.kind is p.VAR_KEYWORD and p.name in reads for p in taken):
        return
    ignored = {
        name for name, attr in (op.attrs or {}).items() if name not in reads and not attr.typed
    } - NOTHING_TO_READ
    assert not ignored


# ---- mutants: each attribute hidden in turn ----


class Hidden(Mapping[str, AttrValue]):
    """Attributes of which one has its default, or where it has none another value."""

    def __init__(self, attrs: Mapping[str, AttrValue], name: str, value: AttrValue) -> None:
        self.attrs, self.name, self.value = attrs, name, value

    def __getitem__(self, name: str) -> AttrValue:
        return self.value if name == self.name else self.attrs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.attrs)

    def __len__(self) -> int:
        return len(self.attrs)


def mutants() -> Iterator[tuple[str, Op, int, str]]:
    for (op, index), name in zip(CASES, IDS, strict=True):
        for attribute, spec in (op.attrs or {}).items():
            if op.name in lower.LOWERINGS and not spec.typed and spec.default is not REQUIRED:
                yield f"{name}-{attribute}", op, index, attribute


def lowered_with(node: Node, view: Node) -> tuple[Value, ...]:
    """The layers that the lowering of the node makes where it sees the view."""
    made = lower.LOWERINGS[node.op](lower.Layers(), view, *node.inputs)
    return (made,) if isinstance(made, Value) else tuple(made)


MUTANTS = list(mutants())


@pytest.mark.parametrize(("op", "index", "attribute"), [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
def test_a_lowering_without_an_attribute_computes_something_else(op: Op, index: int, attribute: str) -> None:
    """Or fails. Where the attribute has its default there is nothing to lose."""
    feeds = arrays(op, op.cases[index])
    graph = graph_of(op, op.cases[index], feeds)
    (node,) = [n for n in graph.nodes if n.op == op.name]
    given = {k: v for k, v in (op.cases[index].attrs or {}).items() if k != attribute}
    try:
        without = graph_of(op, replace(op.cases[index], attrs=given), feeds)
        default = next(n for n in without.nodes if n.op == op.name).attrs[attribute]
    except hx.Error:  # the op takes these operands with the attribute alone
        default = (op.attrs or {})[attribute].default
    if node.attrs[attribute] == default:
        pytest.skip("the case has the default")
    view = RecordedNode(node)
    view.attrs = Hidden(node.attrs, attribute, default)
    inputs = {f"x{i}": a for i, a in enumerate(feeds) if a is not None}
    want = list(run_reference(graph, inputs).values())
    try:
        made = lowered_with(node, view)
        got = list(run_reference(hx.graph([hx.build.Tensor(v) for v in made]), inputs).values())
    except (hx.Error, IndexError, ValueError, KeyError):
        return
    same = [a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
            for a, b in zip(got, want, strict=True)]  # fmt: skip
    assert not all(same), f"{attribute} of {op.name} changes nothing in its lowering"


def test_a_pad_that_reflects_has_no_value() -> None:
    """So that a form of it need not read one."""
    (node,) = [n for n in hx.graph(hx.pad(X, begin=(0, 1, 0, 0), end=(0, 0, 0, 0), mode="reflect", value=7)).nodes
               if n.op == "pad"]  # fmt: skip
    assert node.attrs["value"] == 0
