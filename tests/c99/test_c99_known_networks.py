"""Seeded networks that are built as known ones are, compiled from ONNX for the C99 runtime: the app that codegen writes
builds without a warning and gives the host's numbers."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from test_c99_promises import FLOATS, plan_of
from tests.support.onnx_models import model

import hexane as hx
from hexane.emit.c99 import generate
from hexane.graph import Array


class Net:
    """Nodes and seeded weights."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def add(self, op: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> Any:
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        made = [f"n{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, **attrs))
        return made if outputs > 1 else made[0]

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def weight(self, *shape: int) -> Array:
        fan = int(np.prod(shape[1:])) or 1
        return (self.rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)

    def conv(self, x: str, c: int, out: int, kernel: Sequence[int], **attrs: Any) -> str:
        weight = self.weight(out, c // attrs.get("group", 1), *kernel)
        made: str = self.add("Conv", x, weight, self.weight(out), **attrs)
        return made

    def made(self, inputs: dict[str, Array], outputs: dict[str, str]) -> onnx.ModelProto:
        renamed = [helper.make_node("Identity", [name], [out]) for out, name in outputs.items()]
        return model([*self.nodes, *renamed], inputs, list(outputs), self.constants)


Made = tuple[onnx.ModelProto, dict[str, Array]]


def voice_activity() -> Made:
    """As Silero VAD: a spectrum by a convolution, for each of two rates a network of its own, an LSTM with its state at
    the ports, and the rate as an int64, which is known when it is compiled for a device."""
    rng = np.random.default_rng(1)

    def branch(seed: int, size: int, prefix: str) -> onnx.GraphProto:
        net = Net(seed)
        x: Any = net.add("Slice", "audio", [0], [size], [1])
        x = net.add("Pad", x, np.array([0, 0, 0, 16]), mode="reflect")
        x = net.add("Unsqueeze", x, [1])
        x = net.add("Conv", x, net.weight(66, 1, 64), strides=[32])
        parts = net.add("Split", x, [33, 33], outputs=2, axis=1)
        squares = [net.add("Pow", part, np.float32(2)) for part in parts]
        x = net.add("Sqrt", net.add("Add", *squares))
        x = net.add("Relu", net.conv(x, 33, 32, [3], pads=[1, 1]))
        x = net.add("Relu", net.conv(x, 32, 16, [3], strides=[2], pads=[1, 1]))
        x = net.add("Transpose", x, perm=[2, 0, 1])
        h, c = net.add("Split", "state", [1, 1], outputs=2, axis=0)
        weights = net.weight(1, 64, 16), net.weight(1, 64, 16), net.weight(1, 128)
        _, h, c = net.add("LSTM", x, *weights, "", h, c, outputs=3, hidden_size=16)
        state = net.add("Concat", h, c, axis=0)
        p = net.add("Sigmoid", net.add("MatMul", net.add("Relu", net.add("Squeeze", h, [0])), net.weight(16, 1)))
        outs = [helper.make_empty_tensor_value_info(name) for name in (p, state)]
        tensors = [onnx.numpy_helper.from_array(a, n) for n, a in net.constants.items()]
        graph = helper.make_graph(net.nodes, prefix, [], outs, tensors)
        for item in graph.node:  # names of a branch are its own
            for field in (item.input, item.output):
                field[:] = [n if n in ("audio", "state", "") else prefix + n for n in field]
        for item in (*graph.output, *graph.initializer):
            item.name = prefix + item.name
        return graph

    nodes = [
        helper.make_node("Constant", [], ["rate"], value=onnx.numpy_helper.from_array(np.array(16000))),
        helper.make_node("Equal", ["sr", "rate"], ["fast"]),
        helper.make_node(
            "If", ["fast"], ["p", "next"], then_branch=branch(1, 256, "a_"), else_branch=branch(2, 128, "b_")
        ),
    ]
    feeds = {
        "audio": rng.uniform(-1, 1, (1, 256)).astype(np.float32),
        "state": rng.standard_normal((2, 1, 16)).astype(np.float32),
        "sr": np.array(8000),
    }
    return model(nodes, feeds, ["p", "next"]), feeds


def transcription() -> Made:
    """As basic-pitch: logarithm of powers, normalised by the least and largest; harmonics by shifts; convolutions."""
    net = Net(3)
    audio = net.rng.uniform(-1, 1, (1, 1, 1024)).astype(np.float32)
    x: Any = net.add("Conv", "audio", net.weight(48, 1, 64), strides=[32], pads=[32, 32])
    x = net.add("Log", net.add("Add", net.add("Mul", x, x), np.float32(1e-10)))
    x = net.add("Mul", x, np.float32(10 / np.log(10)))
    low = net.add("ReduceMin", x, axes=[1, 2], keepdims=1)
    high = net.add("ReduceMax", net.add("Sub", x, low), axes=[1, 2], keepdims=1)
    x = net.add(
        "Where", net.add("Equal", high, np.float32(0)), np.float32(0), net.add("Div", net.add("Sub", x, low), high)
    )
    x = net.add("Unsqueeze", net.add("Transpose", x, perm=[0, 2, 1]), [1])
    shifted = [
        net.add("Pad", net.add("Slice", x, [k], [48], [3]), np.array([0, 0, 0, 0, 0, 0, 0, k])) for k in (0, 7, 12)
    ]
    x = net.add("Concat", *shifted, axis=1)
    x = net.add("Relu", net.conv(x, 3, 8, [3, 5], pads=[1, 2, 1, 2]))
    notes = net.add("Sigmoid", net.conv(x, 8, 1, [3, 3], pads=[1, 1, 1, 1]))
    onsets = net.conv(net.add("Concat", notes, x, axis=1), 9, 1, [3, 3], pads=[1, 1, 1, 1])
    pitch = net.add("ArgMax", notes, axis=-1, keepdims=0)
    loud = net.add("Cast", net.add("Greater", notes, np.float32(0.5)), to=TensorProto.INT64)
    voices = net.add("ReduceSum", loud, [3], keepdims=0)
    counts = net.add("CumSum", net.add("Mul", voices, np.array(3)), np.array(2))
    outputs = {"notes": notes, "onsets": net.add("Sigmoid", onsets), "pitch": pitch, "counts": counts}
    return net.made({"audio": audio}, outputs), {"audio": audio}


def recognition() -> Made:
    """As PP-OCR's recognition: hard swish written out, squeeze and excite, attention and a norm by rows, an LSTM in two
    directions, and the most probable letter of each column."""
    net = Net(4)
    image = net.rng.uniform(-1, 1, (1, 3, 32, 64)).astype(np.float32)

    def swish(x: str) -> str:
        gate = net.add("Clip", net.add("Add", x, np.float32(3)), np.float32(0), np.float32(6))
        made: str = net.add("Div", net.add("Mul", x, gate), np.float32(6))
        return made

    x: Any = swish(net.conv("image", 3, 8, [3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    for c, strides in ((8, [2, 1]), (8, [2, 2])):
        x = swish(net.conv(x, c, c, [3, 3], strides=strides, pads=[1, 1, 1, 1], group=c))
        gate = net.add("Relu", net.conv(net.add("GlobalAveragePool", x), c, 4, [1, 1]))
        x = net.add("Mul", x, net.add("HardSigmoid", net.conv(gate, 4, c, [1, 1]), alpha=0.2, beta=0.5))
        x = swish(net.conv(x, c, c, [1, 1]))
    x = net.add("AveragePool", x, kernel_shape=[4, 1])
    x = net.add("Transpose", net.add("Squeeze", x, [2]), perm=[0, 2, 1])
    q, k, v = (net.add("MatMul", x, net.weight(8, 8)) for _ in range(3))
    scores = net.add("Mul", net.add("MatMul", q, net.add("Transpose", k, perm=[0, 2, 1])), np.float32(8**-0.5))
    x = net.add("Add", x, net.add("MatMul", net.add("Softmax", scores, axis=-1), v))
    x = net.add("LayerNormalization", x, np.ones(8, np.float32), net.weight(8), axis=-1)
    y = net.add(
        "LSTM", net.add("Transpose", x, perm=[1, 0, 2]), net.weight(2, 24, 8), net.weight(2, 24, 6), net.weight(2, 48),
        hidden_size=6, direction="bidirectional",
    )  # fmt: skip
    y = net.add("Reshape", net.add("Transpose", y, perm=[2, 0, 1, 3]), np.array([1, -1, 12]))
    p = net.add("Softmax", net.add("MatMul", y, net.weight(12, 37)), axis=2)
    letters = net.add("ArgMax", p, axis=2, keepdims=0)
    return net.made({"image": image}, {"p": p, "letters": letters}), {"image": image}


def file_type() -> Made:
    """As Magika: bytes one-hot and through a dense layer, GELU, norms, maxima, and the three best kinds."""
    net = Net(5)
    tokens = net.rng.integers(0, 257, (1, 96)).astype(np.int32)
    clean = net.add("Where", net.add("Less", "tokens", np.int32(256)), "tokens", np.int32(255))
    hot = net.add("OneHot", clean, np.array(257), np.array([0, 1], np.float32), axis=-1)
    x: Any = net.add("MatMul", hot, net.weight(257, 24))
    places = net.add(
        "Gather", net.weight(64, 24), net.add("Mod", net.add("Cast", clean, to=TensorProto.INT64), np.array(64))
    )
    x = net.add("Add", x, places)
    half = net.add("Mul", x, np.float32(0.5))
    erf = net.add("Erf", net.add("Div", x, np.float32(np.sqrt(2))))
    x = net.add("Mul", half, net.add("Add", erf, np.float32(1)))
    x = net.add("Reshape", x, np.array([1, 24, 96]))
    x = net.add("LayerNormalization", x, np.ones(96, np.float32), net.weight(96), axis=-1)
    x = net.add("ReduceMax", net.conv(x, 24, 32, [5]), axes=[2], keepdims=0)
    p = net.add("Softmax", net.add("MatMul", x, net.weight(32, 40)), axis=-1)
    best, kinds = net.add("TopK", p, np.array([3]), outputs=2, axis=-1)
    groups = net.add("Div", net.add("Sub", kinds, np.array(50)), np.array(7))
    return net.made({"tokens": tokens}, {"p": p, "best": best, "kinds": kinds, "groups": groups}), {"tokens": tokens}


def key_value_cache() -> tuple[Any, dict[str, Array]]:
    """Rows of a state, written at a position; and everything else that indexes."""
    x = hx.input("x", (1, 4))
    position = hx.reduce_argmax(x, axis=1, keep_dims=False, dtype="int32") + np.ones(1, np.int32)
    rows = hx.write_state(hx.state("rows", (6, 4)), x, position)
    order = hx.argsort(x, axis=1, descending=True)
    moved = hx.scatter_along_axis(x, order, hx.neg(x), axis=1, mode="add")
    large = hx.upsample_bilinear(hx.reshape(x, shape=(1, 1, 2, 2)), scale_factor_height=2.5, scale_factor_width=1.5)
    outs = {"rows": rows, "order": order, "moved": moved, "sums": hx.cumsum(order, axis=1), "large": large}
    return hx.graph(outs), {"x": np.float32([[3, -1, 2, 0]])}


NETWORKS: dict[str, Callable[[], tuple[Any, dict[str, Array]]]] = {
    "voice activity": voice_activity,
    "transcription": transcription,
    "recognition": recognition,
    "file type": file_type,
    "key value cache": key_value_cache,
}


def close(got: Array, need: Array) -> bool:
    if need.dtype.kind != "f":
        return np.array_equal(got, need)
    return bool(np.abs(got - need).max() <= FLOATS * np.abs(need).max())


def on_a_device(name: str) -> tuple[hx.Model, dict[str, Array], dict[str, Array]]:
    """The network for a device, its inputs, and the host's outputs."""
    source, feeds = NETWORKS[name]()
    fixed = {"sr": feeds.pop("sr")} if "sr" in feeds else {}
    make = partial(hx.compile, source, target="host", threads=1, input_values=fixed)
    net = make(memory=hx.Memory(runtime="c99"))
    assert isinstance(net, hx.Model)
    return net, feeds, make()(feeds)


def write_files(folder: Path, net: hx.Model, feeds: dict[str, Array]) -> None:
    """The app and its inputs."""
    for place, text in generate(plan_of(net), "net", app=True).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    (folder / "input.bin").write_bytes(b"".join(np.ascontiguousarray(feeds[p.name]).tobytes() for p in net.inputs))


def assert_outputs(folder: Path, net: hx.Model, need: dict[str, Array]) -> None:
    """The app's."""
    data = (folder / "output.bin").read_bytes()
    for port in net.outputs:
        shape, kind = tuple(map(int, port.shape)), np.dtype(port.dtype.numpy)
        size = int(np.prod(shape)) * kind.itemsize
        assert close(np.frombuffer(data[:size], kind).reshape(shape), need[port.name]), port.name
        data = data[size:]
    assert not data


@pytest.mark.skipif(shutil.which("make") is None, reason="not there: make")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_runs_on_a_device_with_the_hosts_numbers(tmp_path: Path, name: str) -> None:
    net, feeds, need = on_a_device(name)
    write_files(tmp_path, net, feeds)
    subprocess.run(["make", "-s", "-C", tmp_path, "CFLAGS=-O0", "WERROR=1"], check=True)
    subprocess.run([tmp_path / "net"], cwd=tmp_path, check=True)
    assert_outputs(tmp_path, net, need)
