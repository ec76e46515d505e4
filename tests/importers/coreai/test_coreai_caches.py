"""States of which a function replaces a part: the part is written, not the whole state."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from assets import Function
from hexane.emit.coreai.bytecode import OperationRecord, WrittenValue
from hexane.emit.coreai.write import emit_asset
from hexane.graph import Graph
from hexane.importers.coreai import import_asset, read_asset

SHAPE = (1, 6, 4)
ROW = (1, 1, 4)


class Cache(Function):
    """A function with a state, which reads and writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.cache = self.input("row", ROW), self.state("cache", SHAPE)
        self.token = WrittenValue(self.writer.token())
        self.operations.append(OperationRecord("dataflow.create_token_v1", (), (self.token,)))

    def read(self) -> WrittenValue:
        found, after = self.value(SHAPE), WrittenValue(self.writer.token())
        self.operations.append(OperationRecord("dataflow.read_handle_v1", (self.cache, self.token), (found, after)))
        self.token = after
        return found

    def write(self, data: WrittenValue) -> None:
        after = WrittenValue(self.writer.token())
        self.operations.append(OperationRecord("dataflow.write_handle_v1", (self.cache, data, self.token), (after,)))
        self.token = after

    def updated(self, x: WrittenValue, start: int, row: WrittenValue | None = None) -> WrittenValue:
        bounds = [np.array(b, np.int32) for b in ((0, start, 0), (1, start + 1, 4), (1, 1, 1))]
        return self.op("primitive.slice_update", x, *map(self.const, bounds), row or self.row)

    def graph(self, **results: WrittenValue) -> Graph:
        return import_asset(read_asset(self.finish(results).bytes(), "f"))


def steps(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    """The writes of the plan, with the shape of what each writes."""
    program: Any = hx.compile(graph, threads=1).program
    return [(s.kernel, s.inputs[1].type.shape) for s in program.steps if s.kernel == "write_slice"]


def copies(graph: Graph) -> int:
    """Steps that make a tensor as large as the cache elsewhere."""
    program: Any = hx.compile(graph, threads=1).program
    made = [view for s in program.steps if s.kernel != "write_slice" for view in s.outputs]
    return sum(view.type.shape == SHAPE for view in made)


def rows(graph: Graph, *calls: float) -> tuple[list[Any], Any]:
    """What each call returns, and the cache afterwards."""
    net = hx.compile(graph, threads=1)
    found = [net(np.full(ROW, value, np.float32)) for value in calls]
    return found, net.read_state("cache")


def test_a_row_at_a_known_place_is_written_in_place() -> None:
    f = Cache()
    new = f.updated(f.read(), 2)
    f.write(new)
    graph = f.graph(y=f.op("primitive.exp", new))
    assert (steps(graph), copies(graph)) == ([("write_slice", ROW)], 1)  # the copy is the result
    found, cache = rows(graph, 3.0, 5.0)
    want = np.zeros(SHAPE, np.float32)
    want[:, 2] = 5
    np.testing.assert_array_equal(cache, want)
    np.testing.assert_allclose(found[1], np.exp(want), rtol=1e-6)


@pytest.mark.parametrize(("place", "row"), [(0, 0), (5, 5), (-1, 5), (-6, 0)])
def test_a_row_at_a_place_that_is_computed_is_written_in_place(place: int, row: int) -> None:
    state, x, at = hx.state("cache", SHAPE), hx.input("row", ROW), hx.input("place", (), "int32")
    written = hx.write_state(state, x, at, axis=1)
    whole = hx.graph({"sum": hx.reduce_sum(written, axes=(1,))}, [written])
    graph = import_asset(read_asset(emit_asset(whole), "f"))
    assert (steps(graph), copies(graph)) == ([("write_slice", ROW)], 0)
    net = hx.compile(graph, threads=1)
    y = net({"row": np.full(ROW, 3, np.float32), "place": np.array(place, np.int32)})
    want = np.zeros(SHAPE, np.float32)
    want[:, row] = 3
    np.testing.assert_array_equal(net.read_state("cache"), want)
    np.testing.assert_array_equal(y, want.sum(1, keepdims=True))


def test_rows_after_one_another_are_each_written() -> None:
    f = Cache()
    f.write(f.updated(f.updated(f.read(), 1), 4, f.op("primitive.exp", f.row)))
    graph = f.graph(y=f.op("primitive.exp", f.row))
    assert (steps(graph), copies(graph)) == ([("write_slice", ROW)] * 2, 0)
    _, cache = rows(graph, 1.0)
    np.testing.assert_allclose(cache[0, :, 0], [0, 1, 0, 0, np.e, 0], rtol=1e-6)


def test_what_was_read_before_stays_what_it_was() -> None:
    f = Cache()
    old = f.read()
    new = f.updated(old, 1)
    f.write(new)
    graph = f.graph(old=f.op("primitive.exp", old), difference=f.op("primitive.sub", new, old))
    found, _ = rows(graph, 1.0, 4.0)
    np.testing.assert_allclose(found[1]["old"][0, :, 0], np.exp([0, 1, 0, 0, 0, 0]), rtol=1e-6)
    np.testing.assert_array_equal(found[1]["difference"][0, :, 0], [0, 3, 0, 0, 0, 0])


def test_a_part_that_the_state_does_not_get_is_not_written() -> None:
    f = Cache()
    graph = f.graph(y=f.op("primitive.exp", f.updated(f.read(), 1)))
    found, cache = rows(graph, 1.0)
    np.testing.assert_allclose(found[0][0, :, 0], np.exp([0, 1, 0, 0, 0, 0]), rtol=1e-6)
    np.testing.assert_array_equal(cache, np.zeros(SHAPE))


def test_a_state_that_is_read_or_written_between_gets_the_whole() -> None:
    f = Cache()
    old = f.read()
    new = f.updated(old, 1)
    between = f.op("primitive.exp", f.read())  # of what the state held before
    f.write(between)
    held = f.read()
    f.write(new)
    graph = f.graph(between=f.op("primitive.sub", between, old), held=f.op("primitive.exp", held))
    found, cache = rows(graph, 2.0)
    np.testing.assert_array_equal(cache[0, :, 0], [0, 2, 0, 0, 0, 0])
    np.testing.assert_allclose(found[0]["between"], np.ones(SHAPE), rtol=1e-6)
    np.testing.assert_allclose(found[0]["held"], np.full(SHAPE, np.e), rtol=1e-6)


def test_a_part_of_two_axes_is_written_with_the_whole() -> None:
    f = Cache()
    bounds = [np.array(b, np.int32) for b in ((0, 1, 1), (1, 3, 3), (1, 1, 1))]
    f.write(f.op("primitive.slice_update", f.read(), *map(f.const, bounds), f.const(np.ones((1, 2, 2), np.float32))))
    _, cache = rows(f.graph(y=f.op("primitive.exp", f.row)), 0.0)
    want = np.zeros(SHAPE)
    want[:, 1:3, 1:3] = 1
    np.testing.assert_array_equal(cache, want)
