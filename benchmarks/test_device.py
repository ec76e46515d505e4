"""The cost of a call without the device's own time: bound calls of a network whose programs do nothing."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from engines import plan_engine
from hexane import _core


class NullEngine:
    """Programs with the ports of real ones, which do nothing."""

    name = "null"

    def __init__(self) -> None:
        self.counters = {"compiled": 0, "compiles_in_loads": 0, "compile_limit": 0, "loaded": 0, "load_limit": 0}

    def find(self, mil: str, weights: dict[str, bytes]) -> None:
        """Returns None: the engine has cached no program."""

    def compile(self, mil: str, weights: dict[str, bytes], qos: int) -> _core.DeviceProgram:
        made = plan_engine().compile(mil, weights, qos)
        made.load(qos)
        return _core.null_device(made.inputs, made.outputs).compile(mil, weights, qos)


@pytest.mark.parametrize("io", ["fp16", ""])
def test_bound_call_of_a_device_that_does_nothing(
    io: str, contest: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (NullEngine(), ""))
    net = hx.compile(hx.relu(hx.input("x", (1, 64, 1, 32))), target="h13", device="ane", io=io, threads=1)
    call = net.bind() if io else net.bind(x=np.zeros((1, 64, 1, 32), np.float32))
    what = "views of surfaces" if io else "fp32 ports, cast on the way"
    contest(f"null device, {what} | 1 | {'<= 1.5 us' if io else '-'}", "hexane", call, rounds=50, iterations=5000)
