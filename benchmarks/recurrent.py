"""LSTM and GRU of 100 steps on one thread, Hexane and onnxruntime: `python benchmarks/recurrent.py --peer PYTHON`, a
Python that has onnxruntime. Hexane and onnxruntime run in separate processes; a figure is the median over a second of
calls."""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

STEPS = 100
SIZES = (16, 64, 256, 1024)
BATCHES = (1, 8)
GATES = {"LSTM": 4, "GRU": 3}


def write(path: Path, op: str, units: int, batch: int) -> None:
    """Writes a model with `units` inputs and units."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    width = GATES[op] * units
    shapes = {"w": (1, width, units), "r": (1, width, units), "b": (1, 2 * width)}
    weights = [
        numpy_helper.from_array((rng.uniform(-1, 1, s) / np.sqrt(units)).astype(np.float32), name)
        for name, s in shapes.items()
    ]
    options = {"linear_before_reset": 1} if op == "GRU" else {}
    node = helper.make_node(op, ["x", *shapes], ["y"], hidden_size=units, **options)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, batch, units])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, 1, batch, units])
    graph = helper.make_graph([node], "recurrent", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), path)


def hexane(path: Path) -> Callable[[np.ndarray], object]:
    import hexane as hx

    net = hx.compile(str(path), threads=1)
    return lambda x: net(x=x)


def onnxruntime(path: Path) -> Callable[[np.ndarray], object]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(["y"], {"x": x})


def measure(contestant: str, path: Path, units: int, batch: int) -> float:
    run = {"hexane": hexane, "onnxruntime": onnxruntime}[contestant](path)
    x = np.random.default_rng(1).standard_normal((STEPS, batch, units)).astype(np.float32)
    run(x)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 9 or time.perf_counter() - begin < 1:
        start = time.perf_counter()
        run(x)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default=sys.executable, help="a Python that has onnxruntime")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)  # contestant, model, units, batch
    given = parser.parse_args()
    if given.one:
        contestant, path, units, batch = given.one
        print(measure(contestant, Path(path), int(units), int(batch)))
        return
    print(f"{'':16}{'hexane':>12}{'onnxruntime':>14}  microseconds for {STEPS} steps")
    with tempfile.TemporaryDirectory() as folder:
        for op in GATES:
            for units in SIZES:
                for batch in BATCHES:
                    path = Path(folder) / f"{op}-{units}-{batch}.onnx"
                    write(path, op, units, batch)
                    found = []
                    for python, contestant in ((sys.executable, "hexane"), (given.peer, "onnxruntime")):
                        command = [python, __file__, "--one", contestant, str(path), str(units), str(batch)]
                        done = subprocess.run(command, check=True, capture_output=True, text=True)
                        found.append(float(done.stdout))
                    print(f"{op}-{units} x {batch}".ljust(16) + f"{found[0]:12.0f}{found[1]:14.0f}", flush=True)


if __name__ == "__main__":
    main()
