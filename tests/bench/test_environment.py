"""What a result says of its machine, and energy where the system tells it."""

import sys

import pytest

from hexane.bench import Configuration
from hexane.bench.energy import Meter, meter_command
from hexane.bench.environment import environment, power_of_pmset
from hexane.bench.table import findings
from hexane.bench.worker import run

METER = """
import time
i = 0
while True:
    print(f"*** Sampled system activity ***\\n\\nCPU Power: {100 if i else 9999} mW\\nGPU Power: 7 mW\\nANE Power: {40 + i % 2} mW")
    print("Combined Power (CPU + GPU + ANE): 147 mW", flush=True)
    i += 1
    time.sleep(0.01)
"""
SMALL = Configuration("peak", "n", "relu", {"elements": 64}, "fp32")


def test_an_environment_tells_chip_system_build_and_power() -> None:
    found = environment()
    assert found["cpu"]
    assert found["target"]
    assert found["os_build"]
    assert found["power"] in ("mains", "battery", "")


@pytest.mark.parametrize(
    ("text", "power"),
    [
        ("Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t80%; charging", "mains"),
        ("Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t80%; discharging", "battery"),
        ("", ""),
    ],
)
def test_the_power_source_of_a_mac_is_what_pmset_says(text: str, power: str) -> None:
    assert power_of_pmset(text) == power


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has a meter")
def test_without_a_meter_energy_is_absent_and_the_reason_told() -> None:
    assert meter_command()[0] == []
    assert environment()["energy"].startswith("not measured: linux has no meter")
    found = run(SMALL, "cpu", 0.01, 1)
    assert "power" not in found
    assert "microjoules" not in found
    told = findings({"results": [], "cliffs": [], "environment": environment()})
    assert any(line.startswith("energy: not measured") for line in told)


def test_energy_is_power_while_calls_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hexane.bench.worker.meter_command", lambda: ([sys.executable, "-c", METER], ""))
    found = run(SMALL, "cpu", 0.2, 1)
    assert found["power"]["cpu_mw"] == 100  # the first sample is of the time before
    assert found["power"]["gpu_mw"] == 7
    assert 40 <= found["power"]["ane_mw"] <= 41
    assert found["microjoules"] == pytest.approx(0.1405 * found["times_us"]["p50"], rel=0.01)


def test_the_last_sample_is_known_while_the_meter_runs() -> None:
    with Meter([sys.executable, "-c", METER]) as meter:
        assert meter.last["gpu"] == 7
        assert meter.last.keys() == {"cpu", "gpu", "ane"}
    assert Meter([]).last == {}


@pytest.mark.parametrize("code", ["", "print('powermetrics must be invoked as the superuser')"])
def test_a_meter_that_says_nothing_gives_no_energy(code: str) -> None:
    with Meter([sys.executable, "-c", code]) as meter:
        pass
    assert meter.power is None
