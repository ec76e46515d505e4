"""The engine's arithmetic on each instruction set of this machine: the same oracles, in a process that has that one
alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from hexane import _core

HERE = Path(__file__).parent
FILES = ["test_engine_planar.py", "test_engine_lines.py", "test_numeric_cases.py", "test_engine_products.py"]


@pytest.mark.parametrize("name", _core.instruction_sets()[1:])  # all other tests run on the best
def test_oracles_hold_on_an_instruction_set(name: str) -> None:
    code = (
        f"from hexane import _core; _core.use_instruction_set({name!r}); import pytest, sys;"
        " sys.exit(pytest.main(sys.argv[1:]))"
    )
    options = ["-q", "-x", "-p", "no:cacheprovider", "-k", "not products or 33 or 37 or 6-2-2"]
    run = [sys.executable, "-c", code, *options, *(str(HERE / file) for file in FILES)]
    done = subprocess.run(run, cwd=HERE.parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_best_instruction_set_runs_unless_another_is_chosen() -> None:
    assert _core.instruction_sets()[0] == _core.isa()
