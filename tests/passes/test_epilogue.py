"""Epilogue slots: typed, printed and read back, with every attribute of what was fused."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from hexane.graph import EpilogueSlot, Graph, Node
from hexane.ops import OPS
from hexane.ops.attributes import number
from hexane.passes.fuse.fuse_epilogue import activation, fuse_epilogue
from hexane.passes.legalize.select_kernels import select_kernels
from hexane.program.attrs import Strings, pack
from hexane.targets import load_target

HOST = load_target("host")


def fused(*activations: Callable[[hx.Tensor], hx.Tensor]) -> Graph:
    """A sum of two tensors, under activations."""
    y = hx.input("a", (3,)) + hx.input("b", (3,))
    for apply in activations:
        y = apply(y)
    return fuse_epilogue(select_kernels(hx.graph({"y": y}), HOST), HOST)


def last(graph: Graph) -> Node:
    return graph.outputs[0].value.node


def test_a_slot_names_each_attribute() -> None:
    node = last(fused(lambda y: hx.clip(y, alpha=-1.0, beta=2.0), hx.relu))
    assert node.attrs["epilogue"] == (EpilogueSlot("clip", (("alpha", -1.0), ("beta", 2.0))), EpilogueSlot("relu"))


@pytest.mark.parametrize("high", [2.0, float("inf")])
def test_slots_print_and_read_back(high: float) -> None:
    graph = fused(hx.relu, lambda y: hx.clip(y, alpha=-1.0, beta=high), hx.tanh)
    assert f"epilogue=(relu(), clip(alpha=-1.0, beta={high}), tanh())" in str(graph)
    assert str(hx.parse(str(graph))) == str(graph)


def test_a_residual_prints_and_reads_back_as_the_operand_that_is_added() -> None:
    x = hx.input("x", (3, 3))
    graph = fuse_epilogue(select_kernels(hx.graph(x @ np.eye(3, dtype=np.float32) + x), HOST), HOST)
    assert "epilogue=(add(3),)" in str(graph)
    assert str(hx.parse(str(graph), graph.constants())) == str(graph)


def test_slots_compare_by_their_bits() -> None:
    zero, negative = (fused(lambda y, z=z: hx.clip(y, alpha=z)) for z in (0.0, -0.0))
    assert last(zero) is not last(negative)
    assert last(zero).attrs["epilogue"] == last(negative).attrs["epilogue"]  # as Python compares them


def test_an_activation_of_more_attributes_than_a_slot_has_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = replace(OPS["selu"], attrs={name: number(1.0) for name in ("alpha", "beta", "gamma")})
    monkeypatch.setitem(OPS, "selu", wide)
    graph = hx.graph(hx.selu(hx.input("x", (3,)), alpha=2.0))
    node = Node.__new__(Node)
    node.op, node.attrs, node.inputs = "selu", {"alpha": 2.0, "beta": 1.0, "gamma": 1.0}, last(graph).inputs
    assert activation(node) is None
    assert activation(last(graph)) is not None


def test_a_slot_of_three_numbers_is_not_packed() -> None:
    slot = EpilogueSlot("selu", (("alpha", 1.0), ("beta", 1.0), ("gamma", 1.0)))
    with pytest.raises(Error, match="at most 2 attributes"):
        pack("epilogue:E", {"epilogue": (slot,)}, Strings())
