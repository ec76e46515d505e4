"""A device that runs the MIL it gets on the CPU, for the tests of the way there: in the core, and behind the stand-in
for Apple's framework."""

import gc

import pytest

from engines import plan_engine, stand_in_engine
from hexane import _core
from stand_in import forget_programs


@pytest.fixture(scope="module")
def young() -> None:
    """Python looks for garbage among what the tests of a module make. What is there already, millions of objects in a
    whole run, takes a second each time."""
    gc.freeze()


@pytest.fixture(params=["plan", "stand-in"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> _core.Device:
    made = plan_engine() if request.param == "plan" else stand_in_engine()
    if request.param != "plan":
        forget_programs()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (made, ""))
    return made
