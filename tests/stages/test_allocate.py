"""Offsets of a program's buffers, each memory of the target by itself."""

from dataclasses import replace

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.errors import Error
from hexane.pipeline import lower
from hexane.program import Program
from hexane.runtime.model import Model
from hexane.stages.bufferize.allocate import allocate
from hexane.stages.bufferize.place import place
from hexane.targets import Space, load_target

HOST = load_target("host")


def network() -> hx.Graph:
    """Three matrix products in a row, with wide results between them."""
    x = hx.input("x", (8, 16))
    for width in (64, 128, 4):
        x = hx.tanh(x @ np.ones((x.shape[1], width), np.float32))
    return hx.graph({"y": x})


def in_two_memories(limit: int = 1 << 20) -> Program:
    """Arena buffers in turn in a memory "sram" and in one called "slow"."""
    spaces = (Space("sram", "arena", 256, limit), Space("slow", "arena", 64), *HOST.spaces[1:])
    target = replace(HOST, spaces=spaces)
    program = place(lower(network(), target), target)
    arena = [i for i, buffer in enumerate(program.buffers) if buffer.kind == "arena"]
    assert len(arena) == 2
    buffers = list(program.buffers)
    assert buffers[arena[1]].space == "sram"
    buffers[arena[1]] = replace(buffers[arena[1]], space="slow")
    return replace(program, buffers=tuple(buffers))


def test_every_memory_is_solved_by_itself_and_named_from_target_to_model():
    program = allocate(in_two_memories())
    sections = emit_plan(program)
    net = Model(_core.Program(sections), program)
    sizes = {name: extent.bytes for name, extent in program.extents.items()}
    assert list(net.memory) == ["sram", "slow", "weights", "state", "scratch"]
    assert sizes == {name: net.memory[name] for name in sizes}
    assert (sizes["sram"], sizes["slow"]) == (8 * 64 * 4, 8 * 128 * 4)
    x = np.random.default_rng(0).standard_normal((8, 16), np.float32)
    np.testing.assert_array_equal(net(x), hx.compile(network(), threads=1)(x))


def test_a_plan_says_limit_and_alignment_of_its_memories():
    rows = emit_plan(allocate(in_two_memories()))["spaces"]
    assert rows["limit"][:2].tolist() == [1 << 20, 0]  # type: ignore[call-overload]
    assert rows["alignment"][:2].tolist() == [256, 64]  # type: ignore[call-overload]


def test_a_memory_that_is_too_small_is_named():
    with pytest.raises(Error, match=r"^\[allocate\] sram: .* capacity: got 2047, need at least 2048"):
        allocate(in_two_memories(2047))
    allocate(in_two_memories(2048))
