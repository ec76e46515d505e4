"""Tries an installed hexane: a small ONNX file on the host and as programs of two chips, a saved plan, commands."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import hexane as hx

rng = np.random.default_rng(0)
weight = rng.standard_normal((8, 3, 3, 3), np.float32)
nodes = [
    helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["y"], ["z"]),
    helper.make_node("GlobalAveragePool", ["z"], ["out"]),
]
x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 16, 16])
out = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [1, 8, 1, 1])
graph = helper.make_graph(nodes, "smoke", [x], [out], [numpy_helper.from_array(weight, "w")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

given = rng.standard_normal((1, 3, 16, 16)).astype(np.float32)
padded = np.pad(given, ((0, 0), (0, 0), (1, 1), (1, 1)))
windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
want = np.maximum(np.einsum("bchwij,ocij->bohw", windows, weight), 0).mean((2, 3), keepdims=True)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "smoke.onnx"
    onnx.save(model, path)
    for target, near in (("host", 1e-5), ("M1", 1e-2), ("M5", 1e-2)):
        net = hx.compile(path, target=target)
        assert np.allclose(net(given), want, atol=near), target
        call = net.bind(x=given)
        call()
        assert np.allclose(call.outputs["out"], want, atol=near), target
        net.save(Path(folder) / "smoke.hxp")
        assert np.allclose(hx.load(Path(folder) / "smoke.hxp")(given), want, atol=near), target
    if "--no-commands" not in sys.argv:  # an emulator may not start processes
        for words in (
            ["--version"],
            ["check", path, "--target", "M1"],
            ["emit", path, "--target", "M1", "-o", Path(folder) / "out"],
        ):
            subprocess.run([sys.executable, "-m", "hexane", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
print(f"hexane {hx.__version__} works: Python {sys.version.split()[0]}, NumPy {np.__version__}")
