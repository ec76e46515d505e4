"""Loops and branches that the data decide, in the C99 runtime: bodies are plans in the plan, with memory in its arena."""

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from c99_apps import build_app, write_app
from hexane import _core
from hexane.emit.c99 import generate
from hexane.emit.c99_check import why_refused
from hexane.emit.plan_view import PlanView
from hexane.errors import Error
from hexane.graph import Graph
from hexane.runtime.c99 import C99Model
from hexane.system.c99_library import STATUSES, Loaded
from tflite_writer import TfliteModel

DEVICE = hx.Memory(runtime="c99")
Arrays = Mapping[str, Any]


def compiled(model: Any, memory: hx.Memory | None = DEVICE) -> hx.Model:
    net = hx.compile(model, target="host", threads=1, memory=memory)
    assert isinstance(net, hx.Model)
    return net


def results(net: hx.Model, feeds: Arrays) -> dict[str, Any]:
    found = net(dict(feeds))
    return found if isinstance(found, dict) else {net.outputs[0].name: found}


def check_bits(model: Any, feeds: Arrays, runtimes: Sequence[ctypes.CDLL]) -> dict[str, Any]:
    """The C99 runtime's bits and the host's, of the host's own plan and of the device's."""
    need, net = results(compiled(model, None), feeds), compiled(model)
    found = [results(net, feeds), *(C99Model(net.plan_bytes(), runtime)(feeds) for runtime in runtimes)]
    for got in found:
        for name, array in need.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            assert got[name].tobytes() == array.tobytes(), name
    return need


def body(inputs: Sequence[hx.Tensor], outputs: Sequence[hx.Tensor]) -> Graph:
    graph = hx.graph({f"result{i}": t for i, t in enumerate(outputs)})
    return Graph(tuple(t.value for t in inputs), graph.outputs, name="body")


def begin() -> list[hx.Tensor]:
    return [hx.input("step", (), "int64"), hx.input("condition", (), "bool")]


def halving(most: int = -1) -> dict[str, hx.Tensor]:
    """While s > 1 and fewer than `limit` steps: s = s / 2 if that is whole, else 3 s + 1; t = 0.75 t + x; with rows of
    both where `most` is given."""
    given = begin()
    s, t, x = hx.input("s", (), "int32"), hx.input("t", (2, 3)), hx.input("x", (2, 3))
    even, odd = hx.input("v", (), "int32"), hx.input("w", (), "int32")
    (after,) = as_list(
        hx.cond(hx.mod(s, 2) == 0, s, then=body([even], [even // 2]), otherwise=body([odd], [odd * 3 + 1]))
    )
    moved = t * 0.75 + x
    rows = [moved, after] if most >= 0 else []
    graph = body([*given, s, t, x], [after > 1, after, moved, *rows])
    first, begun = hx.input("first", (), "int32"), hx.input("x", (2, 3))
    outs = hx.loop(
        hx.input("limit", (), "int64"), first > 1, first, begun * 2.0, begun, body=graph, carried=2, most=most
    )
    return {f"y{i}": t for i, t in enumerate(outs)}


def as_list(result: Any) -> list[hx.Tensor]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def steps_of(number: int) -> int:
    count = 0
    while number > 1:
        number, count = (number // 2 if number % 2 == 0 else 3 * number + 1), count + 1
    return count


@pytest.mark.parametrize(("first", "limit"), [(1, 9), (27, 1 << 40), (27, 0), (27, 7), (97, 1000)])
def test_a_loop_with_a_branch_in_it_has_the_hosts_bits(
    c99: ctypes.CDLL, c99_baseline: ctypes.CDLL, first: int, limit: int
) -> None:
    feeds = {
        "first": np.array(first, np.int32), "limit": np.array(limit),
        "x": np.random.default_rng(first).normal(size=(2, 3)).astype(np.float32),
    }  # fmt: skip
    found = check_bits(hx.graph(halving()), feeds, [c99, c99_baseline])
    assert int(found["y2"]) == min(steps_of(first), limit)


def stacked(steps: int) -> dict[str, hx.Tensor]:
    """The running products of a row of integers."""
    step, condition = begin()
    p, x = hx.input("p", (4,), "int32"), hx.input("x", (steps, 4), "int32")
    after = p * hx.gather(x, step, axis=0)
    graph = body([step, condition, p, x], [condition, after, after])
    given = hx.input("x", (steps, 4), "int32")
    one = hx.const(np.ones(4, np.int32))
    last, rows, _ = hx.loop(np.array(steps), None, one, given, body=graph, carried=1, most=steps, whole=True)
    return {"last": last, "rows": rows}


def test_rows_of_stacks_are_the_hosts(c99: ctypes.CDLL) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (6, 4)).astype(np.int32)
    found = check_bits(hx.graph(stacked(6)), {"x": x}, [c99])
    np.testing.assert_array_equal(found["rows"], np.cumprod(x, axis=0, dtype=np.int32))


def test_only_the_chosen_branch_is_computed(c99: ctypes.CDLL) -> None:
    """The other one reads an index out of range, which ends a run that computes it."""
    t, i = hx.input("t", (5,)), hx.input("i", (1,), "int64")
    u, j = hx.input("u", (5,)), hx.input("j", (1,), "int64")
    then, otherwise = body([t, i], [hx.gather(t, i, axis=0)]), body([u, j], [hx.reduce_max(u, axes=(0,))])
    given = [hx.input("c", (), "bool"), hx.input("x", (5,)), hx.input("at", (1,), "int64")]
    (y,) = as_list(hx.cond(*given, then=then, otherwise=otherwise))
    graph = hx.graph({"y": hx.relu(y)})
    feeds = {"x": np.arange(5, dtype=np.float32), "at": np.array([3])}
    for truth in (True, False):
        check_bits(graph, {**feeds, "c": np.array(truth)}, [c99])
    net = compiled(graph)
    assert C99Model(net.plan_bytes(), c99)({**feeds, "c": np.array(False), "at": np.array([99])})["y"] == [4]
    with pytest.raises(Error, match="run: bad index"):
        C99Model(net.plan_bytes(), c99)({**feeds, "c": np.array(True), "at": np.array([99])})


def test_a_yield_hook_stops_a_loop_between_its_steps(c99: ctypes.CDLL) -> None:
    plan = compiled(hx.graph(halving())).plan_bytes()
    view = PlanView(plan)
    loop = next(i for i, step in enumerate(view.sections["steps"]) if view.string(step["kernel"]) == "loop")
    spaces = [(space.bytes, space.alignment) for space in view.spaces]
    loaded, calls = Loaded(c99, plan, spaces), []
    for port in view.inputs:
        value: Any = {"first": np.array(27, np.int32), "limit": np.array(30)}.get(port.name, np.zeros((2, 3), "f4"))
        loaded.held[port.space][:] = value.reshape(-1).view(np.uint8)

    def stop(_: Any, step: int) -> int:
        calls.append(step)
        return int(calls.count(loop) == 3)

    hook = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)(stop)
    c99.hx_shared_yield(loaded.net, hook)
    assert STATUSES[c99.hx_run(loaded.net)] == "stopped"
    assert calls.count(loop) == 3


def test_more_steps_than_stacks_hold_end_the_run(c99: ctypes.CDLL) -> None:
    graph = hx.graph({name: t for name, t in halving(most=3).items() if name in ("y0", "y1")})
    feeds = {"first": np.array(8, np.int32), "limit": np.array(99), "x": np.ones((2, 3), np.float32)}
    check_bits(graph, feeds, [c99])
    with pytest.raises(Error, match="run: bad index"):
        C99Model(compiled(graph).plan_bytes(), c99)({**feeds, "first": np.array(27, np.int32)})


def test_a_kernel_of_a_body_that_the_runtime_lacks_is_named() -> None:
    x = hx.input("s", (3,))
    graph = body([*begin(), x], [hx.reduce_max(x, axes=(0,), keep_dims=False) < 9.0, hx.atan(x) + 1.0])
    (y, _) = hx.loop(hx.input("n", (), "int64"), None, hx.input("x", (3,)), body=graph, carried=1)
    with pytest.raises(Error, match=r"runtime: got 'c99': step \d, atan .*got the kernel atan, which"):
        compiled({"y": y})


def test_damaged_bodies_are_refused_or_run(c99: ctypes.CDLL) -> None:
    feeds = {"first": np.array(27, np.int32), "limit": np.array(30), "x": np.ones((2, 3), np.float32)}
    read = _core.plan_read(np.frombuffer(compiled(hx.graph(halving())).plan_bytes(), np.uint8))
    rng, ran = np.random.default_rng(11), 0
    for _ in range(300):
        weights = np.array(read["weights"])
        weights[rng.integers(len(weights), size=2)] = rng.integers(256, size=2)
        sections = {name: np.array(rows) for name, rows in read.items()} | {"weights": weights}
        try:
            C99Model(bytes(_core.plan_write(sections)), c99)(feeds)
            ran += 1
        except Error:
            pass
    assert ran < 300


def test_too_small_a_room_is_refused() -> None:
    plan = compiled(hx.graph(stacked(3))).plan_bytes()
    sections = {k: np.array(v) for k, v in _core.plan_read(np.frombuffer(plan, np.uint8)).items()}
    view = PlanView(plan)
    loop = next(step for step in sections["steps"] if view.string(step["kernel"]) == "loop")
    room = sections["operands"][int(loop["operands"]) + int(loop["num_inputs"]) + int(loop["num_outputs"]) - 1]
    sections["tensors"]["shape"][room][0] -= 256
    assert re.search(r"got loop of .*need room: more memory", why_refused(bytes(_core.plan_write(sections))))


def test_a_limit_of_memory_counts_that_of_bodies(c99: ctypes.CDLL) -> None:
    feeds = {"first": np.array(27, np.int32), "limit": np.array(30), "x": np.ones((2, 3), np.float32)}
    graph = hx.graph(halving())
    net = compiled(graph, hx.Memory(runtime="c99", sram=4096))
    assert net.memory["arena"] < 4096
    found = C99Model(net.plan_bytes(), c99)(feeds)
    for name, array in results(compiled(graph, None), feeds).items():
        assert found[name].tobytes() == array.tobytes()
    with pytest.raises(Error, match="got 1024 bytes of sram, need"):
        compiled(graph, hx.Memory(runtime="c99", sram=1024))


@pytest.mark.parametrize("first", [1, 27])
def test_an_app_with_a_loop_has_the_hosts_bits(runtime_archive: Path, tmp_path: Path, first: int) -> None:
    """The whole way: sources as codegen writes them, with only the kernels that the bodies need."""
    net = compiled(hx.graph(halving()))
    files = write_app(net, tmp_path)
    table = re.search(r"kernels\[\] = \{(.*)0\};", files["net.c"])
    assert table is not None
    assert {"&hx_kernel_loop", "&hx_kernel_cond", "&hx_kernel_mod"} <= {k.strip() for k in table[1].split(",")}
    feeds = {
        "first": np.array(first, np.int32), "limit": np.array(40),
        "x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    }  # fmt: skip
    build_app(tmp_path, [runtime_archive])
    (tmp_path / "input.bin").write_bytes(b"".join(feeds[port.name].tobytes() for port in net.inputs))
    ran = subprocess.run([tmp_path / "net"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = results(net, feeds)
    assert (tmp_path / "output.bin").read_bytes() == b"".join(found[port.name].tobytes() for port in net.outputs)


def test_the_makefile_leaves_in_what_bodies_need(tmp_path: Path) -> None:
    """The plan itself has no integers to compute with and no activation; its body has."""
    net = compiled(hx.graph(stacked(3)))
    write_app(net, tmp_path)
    ran = subprocess.run(["make", "VERIFY=1"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    (tmp_path / "input.bin").write_bytes(x.tobytes())
    assert subprocess.run([tmp_path / "net"], cwd=tmp_path, capture_output=True).returncode == 0
    want = results(net, {"x": x})
    assert (tmp_path / "output.bin").read_bytes() == b"".join(want[port.name].tobytes() for port in net.outputs)


# ---- TFLite ----


def counting() -> TfliteModel:
    """While k < n: s = |s| + x in int8, k = k + 1."""
    m, grid = TfliteModel(), {"kind": "int8", "scales": 0.9, "zero": -3}
    m.subgraph()
    n, x = m.tensor((), "int32"), m.tensor((2, 8), **grid)
    outs = [m.tensor((), "int32"), m.tensor((), "int32"), m.tensor((2, 8), **grid), m.tensor((2, 8), **grid)]
    zero = m.tensor((), "int32", np.int32(0))
    m.op("WHILE", [zero, n, x, x], outs, cond_subgraph_index=1, body_subgraph_index=2)
    m.graph["inputs"], m.graph["outputs"] = [n, x], [outs[0], outs[2]]
    for role in ("condition", "body"):
        m.subgraph()
        k, n, s, x = m.tensor((), "int32"), m.tensor((), "int32"), m.tensor((2, 8), **grid), m.tensor((2, 8), **grid)
        m.graph["inputs"] = [k, n, s, x]
        if role == "condition":
            less = m.tensor((), "bool")
            m.op("LESS", [k, n], [less])
            m.graph["outputs"] = [less]
        else:
            k2, positive, s2 = m.tensor((), "int32"), m.tensor((2, 8), **grid), m.tensor((2, 8), **grid)
            m.op("ADD", [k, m.tensor((), "int32", np.int32(1))], [k2])
            m.op("ABS", [s], [positive])
            m.op("ADD", [positive, x], [s2])
            m.graph["outputs"] = [k2, n, s2, x]
    return m


@pytest.mark.parametrize("steps", [0, 1, 9])
def test_while_of_tflite_has_the_hosts_bits(c99: ctypes.CDLL, steps: int) -> None:
    model = counting().tobytes()
    net = compiled(model)
    names = [port.name for port in net.inputs]
    x = np.random.default_rng(steps).integers(-100, 40, (2, 8)).astype(np.int8)
    check_bits(model, dict(zip(names, [np.array(steps, np.int32), x], strict=True)), [c99])
    generate(net.plan_bytes(), "net", app=True)


@pytest.mark.parametrize("index", [1, 7])
def test_if_and_topk_of_tflite_have_the_hosts_bits(c99: ctypes.CDLL, index: int) -> None:
    """The three largest of x where its first index is above 4; else a row of x."""
    m = TfliteModel()
    m.subgraph()
    x, i = m.tensor((2, 8)), m.tensor((), "int32")
    above, y = m.tensor((), "bool"), m.tensor((2, 3))
    m.op("GREATER", [i, m.tensor((), "int32", np.int32(4))], [above])
    m.op("IF", [above, x], [y], then_subgraph_index=1, else_subgraph_index=2)
    m.graph["inputs"], m.graph["outputs"] = [x, i], [y]
    for largest in (True, False):
        m.subgraph()
        x, values, places = m.tensor((2, 8)), m.tensor((2, 3)), m.tensor((2, 3), "int32")
        m.graph["inputs"], m.graph["outputs"] = [x], [values]
        if not largest:
            turned = m.tensor((2, 8))
            m.op("NEG", [x], [turned])
            x = turned
        m.op("TOPK_V2", [x, m.tensor((), "int32", np.int32(3))], [values, places])
    model = m.tobytes()
    net = compiled(model)
    names = [port.name for port in net.inputs]
    values = np.random.default_rng(index).normal(size=(2, 8)).astype(np.float32)
    check_bits(model, dict(zip(names, [values, np.array(index, np.int32)], strict=True)), [c99])
    generate(net.plan_bytes(), "net", app=True)
