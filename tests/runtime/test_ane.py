"""The catalogue on the Neural Engine of this machine, next to the CPU's arithmetic of it: `pytest --ane`, on a Mac.

Without the option one case shows that the test itself works, on the stand-in.
"""

import numpy as np
import pytest

from cases import CASES, IDS
from engines import stand_in_engine
from hexane.ops import USER_OPS, Op
from hexane.report.mac.catalogue import distance, engine_against_cpu
from hexane.report.mac.facts import NEAR
from hexane.report.mac.probe import Context
from hexane.runtime.engine import find_engine, library_path, own_chip


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Context:
    """This machine's. It is an error to ask for it where there is none."""
    if not request.config.getoption("--ane"):
        pytest.skip("runs with --ane, on a machine with a Neural Engine")
    device, missing = find_engine(own_chip())
    assert device is not None, missing
    return Context(library=str(library_path()), framework="", salt="pytest", programs=0, target=own_chip())


def check(op: Op, index: int, context: Context) -> None:
    found = engine_against_cpu(op, op.cases[index], context)
    assert found["programs"] or not {"native", "decomposed"} & set(found["verdicts"])
    assert found["error"] != "infinite"
    assert found["error"] <= NEAR


@pytest.mark.parametrize(("op", "index"), CASES, ids=IDS)
def test_the_engine_computes_what_the_cpu_says(op: Op, index: int, engine: Context) -> None:
    check(op, index, engine)


@pytest.mark.parametrize("name", ["relu", "conv", "matmul", "softmax", "is_nan"])
def test_the_check_itself_on_the_stand_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = stand_in_engine()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
    check(USER_OPS[name], 0, Context(library="", framework="", salt="", programs=0, target="h13"))


def test_a_distance_sees_what_is_not_finite_or_of_another_shape() -> None:
    one, infinite = np.ones(3), np.array([1, np.inf, 1])
    assert distance([one], [one]) == {"error": 0.0, "same_bits": True}
    assert distance([one], [infinite])["error"] == "infinite"
    assert distance([infinite], [infinite]) == {"error": 0.0, "same_bits": True}
    assert distance([-infinite], [infinite])["error"] == "infinite"
    assert distance([one[:2]], [one])["error"] == "infinite"
    assert distance([one, one], [one]) == {"error": "infinite", "same_bits": False}
    assert distance([one * 0], [one * -0.0]) == {"error": 0.0, "same_bits": False}
    assert distance([one * 1e200], [one * 1e201])["error"] == pytest.approx(0.9)
    assert distance([one], [one * 0])["error"] == pytest.approx(3**0.5)
    assert distance([one[:0]], [one[:0]]) == {"error": 0.0, "same_bits": True}
    assert distance([one * 1.1], [one])["error"] == pytest.approx(0.1)
