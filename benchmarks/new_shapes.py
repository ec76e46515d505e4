"""Times the first call with a new shape of a model with free dims, next to onnxruntime.

    python benchmarks/new_shapes.py [MODEL.onnx --input x:1x?x384] [--lengths 40] [--rounds 3]

In --input, `?` is the extent that changes. Without a model: an encoder of 6 layers, 384 channels and any length,
written in ops as torch's exporter writes it. Hexane and onnxruntime run in turns, each in a process of its own, on one
thread. It prints median milliseconds of processor time for the first and the second call of a shape. Hexane
compiles a program for each shape; onnxruntime does not: its second call takes about as long as its first.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CONTESTANTS = ("hexane", "onnxruntime")
LAYERS, WIDTH, HEADS, HIDDEN = 6, 384, 12, 1536


def encoder() -> bytes:
    """An encoder of 43 MB with free batch and length."""
    rng, nodes, constants = np.random.default_rng(0), [], []

    def constant(name: str, array: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def linear(x: str, rows: int, columns: int) -> str:
        weight = rng.standard_normal((rows, columns)).astype(np.float32) / rows**0.5
        product = op("MatMul", x, constant(f"w{len(constants)}", weight))
        return op("Add", product, constant(f"b{len(constants)}", np.zeros(columns, np.float32)))

    def norm(x: str) -> str:
        ones = constant(f"g{len(constants)}", np.ones(WIDTH, np.float32))
        return op("LayerNormalization", x, ones, constant(f"b{len(constants)}", np.zeros(WIDTH, np.float32)), axis=-1)

    apart = constant("heads", np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
    joined = constant("joined", np.array([0, 0, WIDTH], np.int64))
    scale, half = constant("scale", np.float32((WIDTH // HEADS) ** -0.5)), constant("half", np.float32(0.5))
    one, root = constant("one", np.float32(1)), constant("root", np.float32(2**0.5))
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    x = "x"
    for _ in range(LAYERS):
        heads = [op("Reshape", linear(x, WIDTH, WIDTH), apart) for _ in range(3)]
        q, k, v = (op("Transpose", h, perm=p) for h, p in zip(heads, orders, strict=True))
        weights = op("Softmax", op("Mul", op("MatMul", q, k), scale), axis=-1)
        mixed = op("Reshape", op("Transpose", op("MatMul", weights, v), perm=[0, 2, 1, 3]), joined)
        x = norm(op("Add", x, linear(mixed, WIDTH, WIDTH)))
        y = linear(x, WIDTH, HIDDEN)
        gelu = op("Mul", op("Mul", y, op("Add", op("Erf", op("Div", y, root)), one)), half)
        x = norm(op("Add", x, linear(gelu, HIDDEN, WIDTH)))
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "length", WIDTH]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "encoder", ports[:1], ports[1:], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def contest(contestant: str, model: str, name: str, dims: str, lengths: list[int]) -> None:
    """The process of one contestant: a line of JSON with the medians of the first and the second call."""
    call: Any
    if contestant == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

        def call(x: Any) -> Any:
            return session.run(None, {name: x})
    else:
        import hexane as hx

        net = hx.compile(model, threads=1)

        def call(x: Any) -> Any:
            return net({name: x})

    rng, first, second = np.random.default_rng(0), [], []
    for length in lengths:
        shape = [length if extent == "?" else int(extent) for extent in dims.split("x")]
        x = rng.standard_normal(shape).astype(np.float32)
        for taken in (first, second):
            begin = time.process_time()
            call(x)
            taken.append(1e3 * (time.process_time() - begin))
    print(json.dumps([statistics.median(first[1:]), statistics.median(second[1:])]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--input", default=f"x:1x?x{WIDTH}", metavar="NAME:DIMS")
    parser.add_argument("--lengths", type=int, default=40, help="how many; the first one is not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    name, dims = given.input.split(":")
    lengths = [16 + int(n) for n in np.random.default_rng(1).permutation(max(given.lengths, 2))]
    if given.contestant:
        contest(given.contestant, given.model, name, dims, lengths)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or str(Path(folder) / "encoder.onnx")
        if not given.model:
            Path(model).write_bytes(encoder())
        rounds: dict[str, list[list[float]]] = {name: [] for name in CONTESTANTS}
        for _ in range(given.rounds):
            for contestant in CONTESTANTS:
                command = [sys.executable, __file__, model, "--input", given.input, "--lengths", str(given.lengths)]
                ran = subprocess.run([*command, "--contestant", contestant], check=True, capture_output=True, text=True)
                rounds[contestant].append(json.loads(ran.stdout.splitlines()[-1]))
    print(f"{'':14}{'first call, ms':>16}{'second call, ms':>17}")
    for contestant, rows in rounds.items():
        first, second = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{contestant:14}{first:16.1f}{second:17.1f}")


if __name__ == "__main__":
    main()
