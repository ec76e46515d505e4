"""Calls of a known shape while another thread compiles new ones: how much longer the median call takes."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx

WIDTH, LAYERS = 512, 25


def open_network() -> bytes:
    """25 MB of weights, any number of rows."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(LAYERS):
        w = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes += [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"])]
        nodes += [helper.make_node("Relu", [f"m{i}"], [f"x{i + 1}"])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", WIDTH]) for n in ("x0", f"x{LAYERS}")]
    graph = helper.make_graph(nodes, "open", ports[:1], ports[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def median_ms(call: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Median and longest call."""
    taken = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - start))
    return float(np.median(taken)), max(taken)


@pytest.mark.parametrize("rows", [16, 128])
def test_known_shapes_beside_a_compilation(rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    net = hx.compile(open_network(), threads=1)
    x = np.ones((rows, WIDTH), np.float32)
    net(x)
    alone, _ = median_ms(lambda: net(x), 2)
    busy, ends = [0], threading.Event()

    def compile_shapes() -> None:
        while not ends.is_set():
            busy[0] += 1
            net(np.ones((1000 + busy[0], WIDTH), np.float32)[:1].repeat(busy[0] + 1000, 0))

    def work() -> None:  # what another thread costs that computes as long, without Python's lock
        while not ends.is_set():
            np.linalg.svd(np.ones((400, 400)))

    found = {}
    for name, target in (("compiling", compile_shapes), ("computing", work)):
        ends.clear()
        thread = threading.Thread(target=target)
        thread.start()
        found[name] = median_ms(lambda: net(x), 4)
        ends.set()
        thread.join()
    with capsys.disabled():
        print(f"\n{rows} rows: {alone:.2f} ms alone; while another thread", end="")
        for name, (median, longest) in found.items():
            print(f" | is {name}: {median:.2f} ms ({median / alone - 1:+.0%}), longest {longest:.0f} ms", end="")
        print(f" | {busy[0]} shapes compiled")
