"""The engine's arithmetic on one core: a GEMM next to fp32's, and networks in a chip's arithmetic next to the same
networks in ieee arithmetic."""

import multiprocessing
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_whole_networks import model_path, random_feeds

import hexane as hx
from hexane import _core
from hexane.program.attrs import Strings, pack

GEMM_BAR, NETWORK_BAR = "0.125", "0.1"
CALLS = {  # number of calls between two looks at the clock
    "resnet18_224": 1,
    "mobilenet_v2_100_224": 1,
    "unet_128": 1,
    "yolo_160": 10,
    "randwire": 10,
    "mobilenet_v2_035_96": 10,
    "mobilenet_v1_025_96": 20,
    "resnet8": 20,
    "resnet8_bn": 20,
    "transformer": 20,
    "ds_cnn": 100,
    "autoencoder": 1000,
}


@pytest.mark.parametrize("contestant", ["hexane", "fp32"])
def test_gemm(contestant: str, contest: Callable[..., None]) -> None:
    dtype, family = (np.float16, "engine") if contestant == "hexane" else (np.float32, "ieee")
    rng = np.random.default_rng(0)
    x, y = ((rng.standard_normal((1024, 1024)) / 32).astype(dtype) for _ in range(2))
    out, strings = np.empty((1024, 1024), dtype), Strings()
    attrs = pack(
        "transpose_x:i transpose_y:i epilogue:E", {"transpose_x": 0, "transpose_y": 0, "epilogue": []}, strings
    )
    # A call packs y once and multiplies ten times.
    contest(
        f"ten GEMMs of 1024 | 1 | {GEMM_BAR}",
        contestant,
        lambda: _core.run_kernel(
            "matmul", [x, y, None], [out], attrs, strings.tobytes(), constants=[1], family=family, repeats=10
        ),
        rounds=5,
    )


def serve(path: Path, target: str, numerics: str, calls: int, parent: Connection) -> None:
    """Compiles the network, sends "ready", then calls it `calls` times for every message."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.HazardWarning)
        net = hx.compile(path, target=target, threads=1, numerics=numerics)
    assert isinstance(net, hx.Model)
    call = net.bind(**random_feeds(net))
    parent.send("ready")
    while parent.recv():
        for _ in range(calls):
            call()
        parent.send("done")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("target", ["h13", "h17s"])
@pytest.mark.parametrize("contestant", ["hexane", "ieee"])
def test_network(name: str, target: str, contestant: str, contest: Callable[..., None], pytestconfig: Any) -> None:
    """In a process of its own, since earlier work changes a network's time."""
    path, calls = model_path(name, pytestconfig.getoption("--models")), CALLS[name]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    numerics = "engine" if contestant == "hexane" else "ieee"
    child = multiprocessing.get_context("spawn").Process(target=serve, args=(path, target, numerics, calls, theirs))
    child.start()
    theirs.close()  # so that recv() fails if the child dies

    def run() -> None:
        ours.send(True)
        ours.recv()

    try:
        ours.recv()
        contest(f"{calls} x {name} as {target} | 1 | {NETWORK_BAR}", contestant, run, rounds=10)
        ours.send(False)
    finally:
        child.join()
