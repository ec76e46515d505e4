"""The time from a file or from Python to a runnable program."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from peers import onnxruntime_session
from test_whole_networks import model_path

import hexane as hx
from hexane.emit.plan import emit_plan
from hexane.runtime.chip import chip_program
from hexane.targets.query import load_chip


@pytest.mark.parametrize("contestant", ["hexane", "onnx.load + onnxruntime"])
def test_compile_resnet18(contestant: str, contest: Callable[..., None], pytestconfig: Any) -> None:
    path = model_path("resnet18_224", pytestconfig.getoption("--models"))

    def theirs() -> object:
        onnx.load(str(path))
        return onnxruntime_session(path, 2)

    contest("compile ResNet-18 from file | 2 | >= 0.67", contestant, (lambda: hx.compile(path, threads=2)) if contestant == "hexane" else theirs, rounds=9)  # fmt: skip


def chain(length: int) -> bytes:
    helper = onnx.helper
    nodes = [
        helper.make_node("Tanh", [f"t{i}"], [f"t{i + 1}"]) if i % 2 else helper.make_node("Add", [f"t{i}", "one"], [f"t{i + 1}"])
        for i in range(length)
    ]  # fmt: skip
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4]) for n in ("t0", f"t{length}")]
    one = onnx.numpy_helper.from_array(np.ones(1, "f"), "one")
    model = helper.make_model(helper.make_graph(nodes, "chain", ports[:1], ports[1:], [one]))
    return bytes(model.SerializeToString())


def random_graph(tensors: int, seed: int) -> hx.Graph:
    """Additions, products and activations of earlier tensors, more often of recent ones."""
    rng = np.random.default_rng(seed)
    values = [hx.input("x", (4, 16))]
    for _ in range(tensors):
        a, b = (values[-1 - int(min(len(values) - 1, rng.geometric(p)))] for p in (0.05, 0.3))
        values.append((a + b, a * b, hx.tanh(a))[rng.integers(3)])
    return hx.graph(values[-1] + sum(values[:: max(1, tensors // 50)], start=values[-1]))


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_compile_time_grows_with_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    half, whole = (
        min(seconds(lambda n=n: hx.compile(chain(n), threads=1)) for _ in range(3)) for n in (10_000, 20_000)
    )
    graph = random_graph(5_000, 0)
    network = seconds(lambda: hx.compile(graph, threads=1))
    with capsys.disabled():
        print(
            f"\nimport + compile of a chain: 10,000 nodes {half:.2f} s, 20,000 nodes {whole:.2f} s, ratio"
            f" {whole / half:.2f} (bar: 6 s, 2.4)"
        )
        print(f"compile of a random graph of 5,000 tensors: {network:.2f} s (bar: 6 s)")


def test_compile_for_a_chip(capsys: pytest.CaptureFixture[str]) -> None:
    """From a graph in memory to a plan: segments, layers, schedule, allocation. Measures seconds of CPU time, the least
    of several runs. Networks: `make bench-compile`."""
    chip = load_chip("h13")

    def cpu(graph: hx.Graph, times: int) -> tuple[float, int]:
        spent, layers = [], 0
        for _ in range(times):
            start = time.process_time()
            program = chip_program(graph, chip)
            emit_plan(program)
            spent.append(time.process_time() - start)
            layers = len(program.layers)
            del program  # so that the next compilation finds no cached constants
        return min(spent), layers

    half, fewer = cpu(random_graph(16_900, 0), 2)
    whole, more = cpu(random_graph(33_800, 0), 2)
    with capsys.disabled():
        print(
            f"\nrandom graphs: {fewer} layers {half:.2f} s, {more} layers {whole:.2f} s, ratio {whole / half:.2f} (bar:"
            " 3 s, 2.4)"
        )
