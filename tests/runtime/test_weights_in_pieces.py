"""Weights that come in pieces give the results and the files of weights in one array, wherever the pieces lie."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array
from plans import in_one

Pieces = list[tuple[int, Array]]
SIZE = 96  # a matrix of 36 KiB, so that it stays in its piece


def network() -> hx.Graph:
    rng = np.random.default_rng(3)
    one, two = (rng.standard_normal((SIZE, SIZE)).astype("f") for _ in "ab")
    x = hx.input("x", (4, SIZE))
    hidden = hx.matmul(x, hx.param("w", one)) + hx.const(rng.standard_normal(SIZE).astype("f"))
    return hx.graph(
        {"y": hx.matmul(hx.relu(hidden), hx.const(two)) * hx.param("s", rng.standard_normal(SIZE).astype("f"))}
    )


def at_an_odd_byte(pieces: Pieces) -> Pieces:
    moved = []
    for begin, piece in pieces:
        room = np.zeros(piece.size + 65, np.uint8)
        room = room[1 + -room.ctypes.data % 64 :][: piece.size]
        room[:] = piece
        moved.append((begin, room))
    return moved


def cut_anywhere(pieces: Pieces) -> Pieces:
    data = in_one(pieces)
    ends = [*range(1000, data.size, 7777), data.size]
    return [(begin, data[begin:end].copy()) for begin, end in zip([0, *ends], [*ends, data.size], strict=True)]


def in_two(pieces: Pieces) -> Pieces:
    data = in_one(pieces)
    return [(0, data[:64].copy()), (64, data[64:].copy())]


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("change", [list, at_an_odd_byte, cut_anywhere, in_two])
def test_pieces_and_one_array_give_the_same_program(change: Callable[[Pieces], Pieces], pooled: bool) -> None:
    net = hx.compile(network(), threads=1)
    sections = emit_plan(net.program)
    x = np.random.default_rng(1).standard_normal((4, SIZE)).astype("f")
    whole = _core.Program({**sections, "weights": in_one(sections["weights"])}, 1)
    pool = _core.MemoryPool() if pooled else None
    program = _core.Program({**sections, "weights": change(sections["weights"])}, 1, pool)
    other = program.context()
    np.testing.assert_array_equal(program.run([x])[0], whole.run([x])[0])
    assert program.plan_bytes() == whole.plan_bytes()
    np.testing.assert_array_equal(program.read_param("w"), whole.read_param("w"))
    for name, value in (("w", np.eye(SIZE, dtype="f")), ("s", np.ones(SIZE, "f"))):
        for each in (program, whole):
            each.update(name, value)
        for each in (program, other):
            np.testing.assert_array_equal(each.run([x])[0], whole.run([x])[0])
        assert program.plan_bytes() == whole.plan_bytes()


def test_weights_of_the_graph_are_the_weights_of_the_program_and_an_update_leaves_them() -> None:
    graph = network()
    before = {node: node.data.copy() for node in graph.nodes if node.data is not None}
    net = hx.compile(graph, threads=1)
    net.update(w=np.eye(SIZE, dtype="f"))
    for node, data in before.items():
        np.testing.assert_array_equal(node.data, data)


def test_a_size_that_is_not_that_of_the_weights_is_refused() -> None:
    sections = emit_plan(hx.compile(network(), threads=1).program)
    for pieces in (sections["weights"][:-2], [*sections["weights"][:-1], (1 << 20, np.zeros(0, np.uint8))]):
        with pytest.raises(hx.Error, match="weights: got"):
            _core.Program({**sections, "weights": pieces}, 1)
