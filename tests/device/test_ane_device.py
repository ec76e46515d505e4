"""The Device of the core over the stand-in: a C++ program without Python compiles, binds and runs four models."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stand_in import BUILD, FRAMEWORK, LIBRARY, needs_stand_in

sys.path.insert(0, str(Path(__file__).parents[1] / "fake_ane"))
from driver_models import write_plans


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the driver prints for four threads with 64 calls each."""
    needs_stand_in()
    folder = tmp_path_factory.mktemp("plans")
    command = [BUILD / "ane_driver", LIBRARY, FRAMEWORK, "4", "64", *write_plans(folder)]
    environment = os.environ | {"TMP": str(folder)}
    environment.pop("LD_PRELOAD", None)  # a sanitizer's allocator would not know the driver's
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert list(folder.rglob("FAKE*")) == []
    return result.stdout.splitlines()


def test_threads_get_what_the_plans_compute(lines: list[str]) -> None:
    assert lines[0] == "wrong results: 0"


def test_a_call_allocates_nothing(lines: list[str]) -> None:
    assert lines[1] == "allocations in 1000 calls: 0"
