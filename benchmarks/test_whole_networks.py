"""Whole networks in fp32 and int8: Hexane next to onnxruntime and OpenVINO, with 1 and 2 threads. The output of every
peer is checked."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import onnxruntime_call, openvino_call

import hexane as hx

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "build" / "models"
NETWORKS = {  # name: bar, peers
    "resnet18_224": (0.6, ("onnxruntime", "openvino")),
    "mobilenet_v2_100_224": (0.6, ("onnxruntime", "openvino")),
    "encoder": (0.6, ("onnxruntime", "openvino")),
    "resnet8": (0.6, ("onnxruntime",)),
    "ds_cnn": (0.6, ("onnxruntime",)),
    "transformer": (0.6, ("onnxruntime",)),
    "resnet18_224_int8": (0.5, ("onnxruntime",)),
    "mobilenet_v2_100_224_int8": (0.5, ("onnxruntime",)),
    "ds_cnn_int8": (0.5, ("onnxruntime",)),
}
CONTESTS = [(n, c, t) for n, (_, peers) in NETWORKS.items() for t in (1, 2) for c in ("hexane", *peers)]


def model_path(name: str, folder: Path) -> Path:
    path = BUILT / f"{name}.onnx"
    if path.exists():
        return path
    BUILT.mkdir(parents=True, exist_ok=True)
    if name == "encoder":
        command = [sys.executable, ROOT / "examples" / "encoder" / "make_model.py", "--out", path]
    else:
        if not (folder / "gen.py").exists():
            pytest.skip(f"{folder / 'gen.py'} is not there; --models DIR names its folder")
        floats = name.removesuffix("_int8")
        options = ["--no-int8"] if name == floats else []
        command = [sys.executable, folder / "gen.py", *options, "--out", BUILT, "--only", floats]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return path


def random_feeds(net: Any) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        p.name: rng.standard_normal(p.shape).astype(p.dtype.numpy)
        if p.dtype.kind == "float"
        else rng.integers(0, 1000, p.shape).astype(p.dtype.numpy)
        for p in net.inputs
    }


@pytest.mark.parametrize(("name", "contestant", "threads"), CONTESTS)
def test_network(name: str, contestant: str, threads: int, contest: Callable[..., None], pytestconfig: Any) -> None:
    path = model_path(name, pytestconfig.getoption("--models"))
    net = hx.compile(path, threads=threads)
    feeds = random_feeds(net)
    call = net.bind(**feeds)
    call()
    if contestant == "hexane":
        run: Callable[[], object] = call
    else:
        run, outputs = (onnxruntime_call if contestant == "onnxruntime" else openvino_call)(path, feeds, threads)
        for ours, theirs in zip(call.outputs.values(), outputs, strict=True):
            tolerance = 0.05 if name.endswith("int8") else 1e-4  # int8: a result may differ by one rounding step
            assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()
    bar = NETWORKS[name][0]
    contest(f"{name} | {threads} | >= {bar}", contestant, run, rounds=60)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("contestant", ["hexane", "hexane, fp32"])
@pytest.mark.parametrize("mode", ["int8", "palette4", "blockwise4:b32"])
@pytest.mark.parametrize("name", ["mobilenet_v2_100_224", "resnet18_224"])
def test_weights_in_few_bits(
    name: str, contestant: str, mode: str, threads: int, contest: Callable[..., None], pytestconfig: Any
) -> None:
    """Networks of 1 x 1 and of 3 x 3 convolutions whose weights the kernels decode in every call, next to whole
    weights."""
    path = model_path(name, pytestconfig.getoption("--models"))
    net = hx.compile(path, threads=threads, compress=mode if contestant == "hexane" else None)
    call = net.bind(**random_feeds(net))
    megabytes = net.memory["weights"] / 1e6
    print(f"{contestant}: {megabytes:.1f} MB of weights")
    contest(f"{name}, {mode} | {threads} | -", contestant, call, rounds=60)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("contestant", ["hexane", "hexane, whole weights"])
@pytest.mark.parametrize("mode", ["sparse:0.5", "sparse:0.8"])
@pytest.mark.parametrize("name", ["mobilenet_v2_100_224", "resnet18_224"])
def test_weights_without_zeros(
    name: str, contestant: str, mode: str, threads: int, contest: Callable[..., None], pytestconfig: Any
) -> None:
    """A network with pruned weights, stored without their zeros and whole."""
    path = model_path(name, pytestconfig.getoption("--models"))
    memory = hx.Memory(whole_weights=contestant != "hexane")
    net = hx.compile(path, threads=threads, compress=mode, memory=memory)
    megabytes = net.memory["weights"] / 1e6
    print(f"{contestant}: {megabytes:.1f} MB of weights")
    contest(f"{name}, {mode} | {threads} | -", contestant, net.bind(**random_feeds(net)), rounds=60)
