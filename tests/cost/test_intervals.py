"""How benchmarks/fit_cost.py makes intervals of residuals."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hexane.cost.demand import Demand, LayerDemand
from hexane.cost.estimate import layer_parts, predicted_us
from hexane.cost.formula import layer_us
from hexane.cost.parameters import rates_of


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


def test_what_further_layers_take_is_the_median_of_what_networks_tell(
    fitting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latencies made with a known part give it back, with one network that is far off."""
    rates = rates_of("M5 Pro")

    def network(number: int) -> Demand:
        layer = LayerDemand("conv", 10**9, 0, 0, 0)
        layers = (*(replace(layer, operations=10**9 * (i + number)) for i in range(1, 5)), replace(layer, kind="norm"))
        return Demand("network", 1, 1000, 1000, 0, 0, 0, 0, layers)

    def latency(number: int, part: float) -> float:
        of = network(number)
        alone = [float(layer_us(*layer_parts(layer, rates).values())) for layer in of.layers]
        return predicted_us(replace(of, layers=()), rates) + max(alone) + part * (sum(alone) - max(alone))

    monkeypatch.setattr(fitting, "demanded", lambda workload, params, chip: network(int(params.split()[1])))
    parts = (0.5, 0.6, 0.6, 4.0, 0.7)
    rows = [fitting.Row("", "M5 Pro", fitting.WHOLE, f"net{i} {i}", latency(i, part)) for i, part in enumerate(parts)]
    known = {"M5 Pro": rates}
    assert fitting.further_layers(rows, known) == pytest.approx({"M5 Pro": 0.6})
    assert fitting.further_layers(rows[:1], known) == {}
    found = fitting.factors(rows, known, {"M5 Pro": 0.6})
    assert found[1] == pytest.approx(1)
    # Each by the other four: 0.65, the median of 0.6, 0.6, 0.7 and 4, for the first one.
    assert fitting.unseen_networks(rows, known)[0] == pytest.approx(
        latency(0, 0.5) / latency(0, float(np.sqrt(0.6 * 0.7)))
    )
