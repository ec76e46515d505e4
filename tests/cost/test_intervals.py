"""How benchmarks/fit_cost.py makes intervals of residuals."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def fitting(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    found = importlib.import_module("fit_cost")
    monkeypatch.setattr(found, "kind_of", lambda row: "network" if row.workload == found.WHOLE else row.workload)
    return found


def rows_of(fitting: Any, workload: str, count: int) -> list[Any]:
    return [fitting.Row("M1", "M1", workload, f"n={i}", 1.0) for i in range(count)]


def test_intervals_end_where_the_next_row_would_lie(fitting: Any) -> None:
    rows = rows_of(fitting, "conv", 19)
    assert fitting.quantiles(rows, np.arange(1.0, 20.0))["conv"] == (2.0, 18.0)


def test_whole_networks_are_in_no_interval_but_their_own(fitting: Any) -> None:
    rows = rows_of(fitting, "conv", 19) + rows_of(fitting, fitting.WHOLE, 10)
    found = fitting.quantiles(rows, np.append(np.arange(1.0, 20.0), np.full(10, 100.0)))
    assert found["other"] == found["conv"] == (2.0, 18.0)
    assert found["network"] == (100.0, 100.0)


def test_a_network_is_judged_by_the_others(fitting: Any) -> None:
    """The nearest and the farthest lie outside of what the other eleven give."""
    rows = rows_of(fitting, fitting.WHOLE, 12) + rows_of(fitting, "conv", 10)
    ratio = np.concatenate([np.linspace(1, 2, 11), [50.0], np.ones(10)])
    assert fitting.alone(rows, ratio).tolist() == [False, *[True] * 10, False, *[True] * 10]
    assert [r.chip for r in fitting.whole_networks()].count("M5 Pro") == 7
