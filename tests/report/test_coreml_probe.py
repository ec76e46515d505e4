"""The probe of Core ML in `hexane doctor --report`, against the stand-in."""

from collections.abc import Iterator

import pytest

from coreml_stand_in import FRAMEWORK, CoreMLStandIn, coreml_stand_in
from hexane.report.mac.coreml import COREML
from hexane.report.mac.probe import Context
from stand_in import LIBRARY


@pytest.fixture
def mac() -> Iterator[CoreMLStandIn]:
    with coreml_stand_in({"relu": ("gpu", "cpu,gpu")}) as made:
        yield made


CONTEXT = Context(library=str(LIBRARY), framework="", salt="5a17", programs=1, target="h13", coreml=str(FRAMEWORK))


def test_the_interface_says_what_is_missing_and_since_when(mac: CoreMLStandIn) -> None:
    mac.set(macos=1300)
    found = COREML.cases["interface"](CONTEXT)
    assert found["missing"]["+[MLComputePlan loadContentsOfURL:configuration:completionHandler:]"] == "14.4"
    assert "MLModel" in found["found"]


def test_each_choice_of_devices_is_run(mac: CoreMLStandIn) -> None:
    found = COREML.cases["runs"](CONTEXT)
    assert list(found) == ["cpu", "cpu_and_gpu", "all", "cpu_and_ne"]
    assert all(run["most_apart"] == 0 and run["warm_load_ms"] > 0 for run in found.values())


def test_the_plan_is_compared_with_the_forecast(mac: CoreMLStandIn) -> None:
    found = COREML.cases["plan"](CONTEXT)
    (relu,) = [op for op in found["operations"] if op["op"] == "ios16.relu"]
    assert relu["preferred"] == "gpu"
