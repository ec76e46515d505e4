"""Every op of the catalogue at realistic sizes next to onnxruntime, one thread each: `make bench-sweep`.

Each case is an ONNX model of one node, which Hexane imports. Hexane and onnxruntime take turns; the shortest time of
each counts. Lists the cases in which Hexane takes more than 3 times as long, or all cases with --all.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import onnx
from peers import onnxruntime_bound_call
from sweep_cases import Array, Random, SweepCase, cases, without_form

import hexane as hx

OPSET = 24
BAR = 3.0
TURNS = 7
SECONDS = 0.004  # seconds of each turn


def model(case: SweepCase, feeds: dict[str, Array]) -> bytes:
    helper, names, initializers = onnx.helper, [], []
    for i, x in enumerate(case.inputs):
        names.append("" if x is None else f"x{i}")
        if x is not None and not isinstance(x, Random):
            initializers.append(onnx.numpy_helper.from_array(np.asarray(x), f"x{i}"))
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.onnx, names, outputs, **case.attrs)
    of = helper.np_dtype_to_tensor_dtype
    ports = [helper.make_tensor_value_info(name, of(array.dtype), array.shape) for name, array in feeds.items()]
    ends = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "case", ports, ends, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return bytes(onnx.shape_inference.infer_shapes(proto).SerializeToString())


def shortest(calls: list[Callable[[], object]]) -> list[float]:
    best = [1e9] * len(calls)
    for _ in range(TURNS):
        for i, call in enumerate(calls):
            end = time.perf_counter() + SECONDS
            while True:
                start = time.perf_counter()
                call()
                now = time.perf_counter()
                best[i] = min(best[i], now - start)
                if now > end:
                    break
    return best


def measure(case: SweepCase) -> tuple[float, float]:
    """The shortest times of Hexane and onnxruntime in seconds. If Hexane or onnxruntime lacks the op, its error is
    raised."""
    rng = np.random.default_rng(0)
    feeds = {f"x{i}": x.array(rng) for i, x in enumerate(case.inputs) if isinstance(x, Random)}
    proto = model(case, feeds)
    theirs = onnxruntime_bound_call(proto, feeds)
    theirs()
    ours = hx.compile(proto, threads=1).bind(**feeds)
    return tuple(shortest([ours, theirs]))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="list every case")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose line has TEXT")
    options = parser.parse_args()
    found: list[tuple[float, float, float, SweepCase]] = []
    left_out: list[str] = []
    for case in cases():
        if options.only not in f"{case.op} {case}":
            continue
        try:
            ours, theirs = measure(case)
        except Exception as error:
            left_out.append(f"{case}: {str(error).splitlines()[0][:150]}")
            continue
        found.append((ours / theirs, ours, theirs, case))
    found.sort(key=lambda row: -row[0])
    slow = [row for row in found if row[0] > BAR]
    print(f"{'hexane':>10} {'onnxruntime':>12} {'ratio':>6}  op: node")
    for ratio, ours, theirs, case in found if options.all else slow:
        print(f"{ours * 1e6:8.1f}us {theirs * 1e6:10.1f}us {ratio:6.2f}  {case.op}: {case}")
    ratios = [row[0] for row in found]
    if ratios:
        print(f"{len(found)} cases, {len(slow)} more than {BAR:g} times slower; median ratio {np.median(ratios):.2f}")
    print("\n".join(["one of the two does not run:", *left_out] if left_out else []))
    if not options.only:
        print("no case:", ", ".join(op.name for op in without_form()))


if __name__ == "__main__":
    main()
