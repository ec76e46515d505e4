"""Products in the engine's arithmetic beside the same in fp32: a GEMM on one core, and networks of a chip beside the host's."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_whole_networks import model_path, random_feeds

import hexane as hx
from hexane import _core
from hexane.attrs import Strings, pack

BAR = {"gemm": "0.125", "resnet18_224": "0.1"}


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
        f"ten GEMMs of 1024 | 1 | {BAR['gemm']}",
        contestant,
        lambda: _core.run_kernel(
            "matmul", [x, y, None], [out], attrs, strings.tobytes(), constants=[1], family=family, repeats=10
        ),
        rounds=5,
    )


@pytest.mark.parametrize("contestant", ["hexane", "ieee"])
@pytest.mark.parametrize("target", ["h13", "h17s"])
@pytest.mark.parametrize("name", ["resnet18_224", "mobilenet_v2_100_224", "transformer"])
def test_network(name: str, target: str, contestant: str, contest: Callable[..., None], pytestconfig: Any) -> None:
    path = model_path(name, pytestconfig.getoption("--models"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.HazardWarning)
        numerics = "engine" if contestant == "hexane" else "ieee"
        net = hx.compile(path, target=target, threads=1, numerics=numerics)
    assert isinstance(net, hx.Model)
    contest(f"{name} as {target} | 1 | {BAR.get(name, '-')}", contestant, net.bind(**random_feeds(net)), rounds=10)
