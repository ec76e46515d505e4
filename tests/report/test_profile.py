"""`hx.profile`: what each step does and how near that is to this machine."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.report.profile import ProfiledStep
from hexane.report.roofline import Roofline

Array = np.ndarray[Any, Any]


def convolution(dtype: str = "") -> hx.Model:
    x = hx.input("x", (1, 16, 12, 12))
    weight = np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype(np.float32)
    net = hx.compile(hx.relu(hx.conv(x, weight, pad=(1, 1, 1, 1))), dtype=dtype, threads=1)
    assert isinstance(net, hx.Model)
    return net


@pytest.mark.parametrize("dtype", ["", "fp16", "bf16"])
def test_a_convolution_is_counted_as_everybody_counts_it(dtype: str) -> None:
    found = hx.profile(convolution(dtype))
    (step,) = [s for s in found.steps if s.kernel == "conv"]
    assert step.operations == 2 * 32 * 12 * 12 * 16 * 9
    floats = 2 if dtype == "fp16" else 4
    weights = 32 * 16 * 9 * (4 if not dtype else 2)
    assert step.moved == weights + (16 + 32) * 12 * 12 * floats
    assert step.gflops == pytest.approx(step.operations / step.us / 1e3)
    assert step.bound in ("compute", "memory")
    assert step.of_roofline is not None
    assert step.of_roofline > 0
    assert found.roofline is not None
    assert found.us == pytest.approx(sum(s.us for s in found.steps))


def test_the_least_time_is_that_of_the_dearer_of_work_and_bytes() -> None:
    machine = Roofline({"fp32": 100.0}, 10.0, 1)
    assert machine.seconds(10**9, 1, "fp32") == 0.01
    assert machine.seconds(1, 10**9, "fp32") == 0.1
    assert machine.seconds(0, 10**9, "int64") == 0.1
    assert machine.seconds(5, 10, "fp64") is None


def test_steps_are_the_slowest_first_by_their_median_call(monkeypatch: pytest.MonkeyPatch) -> None:
    net = convolution()
    slow = {"kernel": "a", "source": "", "calls": 100, "nanoseconds": 900_000, "median": 1000}
    steps = [slow, {**slow, "kernel": "b", "nanoseconds": 300_000, "median": 3000}]
    monkeypatch.setattr(type(net), "steps", property(lambda _: steps))
    found = hx.profile(net)
    assert [(s.kernel, s.us, s.share) for s in found.steps] == [("b", 3, 0.75), ("a", 1, 0.25)]


def test_a_loaded_plan_has_times_without_rates(tmp_path: Path) -> None:
    convolution().save(tmp_path / "net.hxp")
    found = hx.profile(hx.load(tmp_path / "net.hxp"))
    assert all(s.gflops is None and s.of_roofline is None and s.us > 0 for s in found.steps)
    assert not any(line.startswith("roofline:") for line in str(found).splitlines())


def test_it_prints_a_table_writes_json_and_a_trace(tmp_path: Path) -> None:
    found = hx.profile(convolution(), {"x": np.ones((1, 16, 12, 12), np.float32)}, trace=tmp_path / "t.json")
    assert str(found).splitlines()[0].split() == ["kernel", "from", "us", "share", "GFLOP/s", "GB/s", "of", "roofline"]
    legend = " ".join(str(found).split())
    assert "or 1 for each element of the largest operand or result" in legend
    assert "from: ops of the model that the step comes from, not all of them" in legend
    record = json.loads(json.dumps(found.to_json()))
    assert {"kernel", "us", "gflops", "gbytes", "of_roofline"} <= record["steps"][0].keys()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(hx.Error, match="'x'"):
        hx.profile(convolution(), {"x": np.ones(3, np.float32)})


def test_rates_of_a_step_that_took_no_time_are_left_out() -> None:
    step = ProfiledStep("copy", "", 1, 0.0, 0.0, 10, 10)
    assert (step.gflops, step.gbytes) == (None, None)
