"""Calls of a known shape while another thread compiles new ones: how much longer the median call takes.

Calls next to a thread that only computes are measured too, for comparison. Each kind of call is timed in short windows,
which alternate; each result is the median over all windows of a kind. On a busy machine even this median says little;
`chrt -r 1` before the command (as root) keeps other programs away.
"""

import os
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx

ROUNDS, SECONDS = 4, 0.4
NETWORKS = {"25 MiB in 25 layers": (512, 25), "300 small layers": (32, 300)}  # width, layers


def open_network(width: int, layers: int) -> bytes:
    """A network of ONNX for any number of rows."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(layers):
        w = rng.standard_normal((width, width)).astype(np.float32) / width**0.5
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes += [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"])]
        nodes += [helper.make_node("Relu", [f"m{i}"], [f"x{i + 1}"])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", width]) for n in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "open", ports[:1], ports[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def times_ms(call: Callable[[], Any], beside: Callable[[], Any] | None) -> list[float]:
    """The times of one window's calls, while another thread repeats the given work."""
    ends = threading.Event()

    def again() -> None:
        while beside and not ends.is_set():
            beside()

    thread = threading.Thread(target=again)
    thread.start()
    taken = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - start))
    ends.set()
    thread.join()
    return taken


@pytest.mark.parametrize("rows", [16, 128])
@pytest.mark.parametrize("network", NETWORKS)
def test_known_shapes_beside_a_compilation(network: str, rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    width, layers = NETWORKS[network]
    net = hx.compile(open_network(width, layers), threads=1, memory=hx.Memory(variants=1 << 26))
    assert isinstance(net, hx.OpenModel)
    x = np.ones((rows, width), np.float32)
    net(x)
    noise, compiled = os.urandom(1 << 20), [0]

    def compile_a_shape() -> None:
        compiled[0] += 1
        net.specialised({"x0": np.empty((1000 + compiled[0], width), np.float32)})

    def compute() -> None:  # zlib runs without Python's lock
        zlib.compress(noise, 1)

    kinds: dict[str, Callable[[], Any] | None] = {"alone": None, "computing": compute, "compiling": compile_a_shape}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, beside in kinds.items():
            found[name] += times_ms(lambda: net(x), beside)
    alone = float(np.median(found["alone"]))
    with capsys.disabled():
        print(f"\n{network}, {rows} rows: {alone:.2f} ms alone; while another thread", end="")
        for name in ("computing", "compiling"):
            median, longest = float(np.median(found[name])), max(found[name])
            print(f" | is {name}: {median:.2f} ms ({median / alone - 1:+.0%}), longest {longest:.0f} ms", end="")
        print(f" | {compiled[0]} shapes compiled")
