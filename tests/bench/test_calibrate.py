"""Calibration: rates follow measurements, what no measurement tells stays, and estimates use the file."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from engines import plan_engine, stand_in_engine
from hexane import _core
from hexane.bench.calibrate import calibrated, fit
from hexane.bench.probes import Configuration
from hexane.bench.table import estimate_rows, findings
from hexane.bench.worker import run
from hexane.cost.demand import Demand, demand
from hexane.cost.estimate import predicted_us
from hexane.cost.parameters import RATES, Rates, rates_of, read_rates_file
from hexane.graph import Graph
from hexane.report.estimate import program_for
from hexane.targets.query import load_chip


def network(rows: int, n: int) -> Graph:
    weights = np.random.default_rng(0).standard_normal((n, n), np.float32).astype(np.float16)
    return hx.graph(hx.matmul(hx.input("x", (rows, n), "fp16"), weights))


def asked(rows: int, n: int) -> Demand:
    return demand(program_for(network(rows, n), load_chip("M5")))


DEMANDS = [asked(*size) for size in ((1, 64), (64, 256), (256, 1024), (2048, 1024), (1, 2048), (4096, 512))]
TRUE = replace(rates_of("M5"), floor_us=150.0, stream_gbps=60.0, gemm_gops=9000.0)


def document(rates: Rates, **environment: str) -> dict[str, Any]:
    def result(i: int, one: Demand) -> dict[str, Any]:
        us = predicted_us(one, rates)
        estimate = {
            "latency_us": us / 2,
            "p10_us": us / 3,
            "p90_us": us * 2,
            "measured_on": "M5",
            "extrapolated": False,
        }
        return {"probe": "p", "name": f"n{i}", "network": "gemm", "sizes": {}, "gflops": 1.0, "times_us": {"p50": us}, "mode": "bound",
                "estimate": estimate, "demand": asdict(one), "operations": 0}  # fmt: skip

    where = {"asked": "M5", "target": "h17", "os_build": "25A1", "energy": "no meter", **environment}
    return {"environment": where, "cliffs": [], "results": [result(*one) for one in enumerate(DEMANDS)]}


def test_rates_follow_what_was_measured() -> None:
    results = [(one, predicted_us(one, TRUE)) for one in DEMANDS]
    found, fed = fit(results, rates_of("M5"))
    for one, us in results:
        assert predicted_us(one, found) == pytest.approx(us, rel=0.05)
    assert found.floor_us == pytest.approx(150, rel=0.1)
    assert {"floor_us", "stream_gbps"} <= fed


def test_rates_that_no_result_depends_on_stay() -> None:
    found, fed = fit([(one, predicted_us(one, TRUE)) for one in DEMANDS], rates_of("M5"))
    for name in ("conv_gops", "softmax_gops", "norm_gops", "reduction_gops", "attention_gops"):
        assert name not in fed
        assert getattr(found, name) == pytest.approx(getattr(rates_of("M5"), name))


def test_one_wrong_measurement_does_not_move_the_rest() -> None:
    results = [(one, predicted_us(one, TRUE) * (20 if i == 2 else 1)) for i, one in enumerate(DEMANDS)]
    found, _ = fit(results, rates_of("M5"))
    assert found.floor_us == pytest.approx(150, rel=0.2)


def test_the_file_says_chip_system_and_source_and_estimates_use_it(tmp_path: Path) -> None:
    path = tmp_path / "m5.toml"
    path.write_text(calibrated(document(TRUE)), encoding="utf-8")
    facts = read_rates_file(path)["M5"]
    assert tuple(facts) == RATES
    assert facts["floor_us"].source.startswith("measured on M5 (h17), OS build 25A1, 6 configurations")
    assert facts["softmax_gops"].source.startswith("fitted on ")
    found = hx.estimate(network(256, 1024), "M5", rates=path)
    assert found.latency_us == pytest.approx(predicted_us(DEMANDS[2], TRUE), rel=0.06)
    assert found.source == facts["floor_us"].source
    assert hx.estimate(network(256, 1024), "M5 Pro", rates=path).measured_on == "M5 Pro"


def test_a_chip_without_rates_of_its_own_gets_some(tmp_path: Path) -> None:
    path = tmp_path / "m6.toml"
    path.write_text(calibrated(document(TRUE, asked="M6", target="h18g", os_build='27"\n')), encoding="utf-8")
    assert hx.estimate(network(64, 256), "M6").extrapolated
    found = hx.estimate(network(64, 256), "M6", rates=path)
    assert (found.measured_on, found.extrapolated) == ("M6", False)


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(hx.Error, match="--calibrate: got no right result"):
        calibrated({**document(TRUE), "results": [{"error": "no"}]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "need source, status and tables of chips"),
        ('source = "a"\nstatus = "fitted"\nchips = {}', "need source, status and tables of chips"),
        ('source = "a"\nstatus = "fitted"\n[chips.M77]', "M77"),
        ('source = "a"\nstatus = "guessed"\n[chips.M5]', "need one of"),
        ('source = "a"\nstatus = "fitted"\n[chips.M5]\nfloor_us = 3', "need exactly"),
        ("[", "got no TOML"),
    ],
)
def test_a_wrong_file_of_rates_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rates.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(hx.Error, match=said):
        hx.estimate(network(64, 256), "M5", rates=path)


def test_the_table_has_estimates_next_to_measurements() -> None:
    made = document(TRUE)
    rows = list(estimate_rows(made))
    assert len(rows) == len(DEMANDS)
    assert {row[6] for row in rows} == {"2.00"}
    assert "estimates: 2.00 times off in the mean, 2.00 at worst; 6 of 6 between p10 and p90" in list(findings(made))


@pytest.mark.parametrize("made", [plan_engine, stand_in_engine])
def test_an_engine_that_is_measured_is_estimated_too(
    made: Callable[[], _core.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = made()
    monkeypatch.setenv("HEXANE_TARGET", "h13")
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda chip: (engine, ""))
    sizes = {"channels": 16, "depth": 2, "height": 1, "width": 4}
    found = run(Configuration("p", "n", "conv_chain", sizes, "fp16"), "ane", 0.01, None)
    assert "error" not in found
    assert found["estimate"]["measured_on"] == "M1"
    result = {"probe": "p", "name": "n", "network": "conv_chain", "mode": "bound", **found}
    where = {"asked": "", "target": "h13", "os_build": "none", "energy": ""}
    text = calibrated({"environment": where, "results": [result]})
    assert 'source = "measured on h13, OS build none, 1 configuration' in text
    assert "estimate" not in run(Configuration("p", "n", "conv_chain", sizes, "fp16"), "cpu", 0.01, 1)
