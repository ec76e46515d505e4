"""Tests on an instruction set of this machine that is not its best."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hexane import _core

on_others = pytest.mark.parametrize("name", _core.instruction_sets()[1:])  # all other tests run on the best


def assert_passes_on(name: str, chosen: str, files: Sequence[Path | str]) -> None:
    """Runs the tests of these files that pytest's -k chooses, in a process whose kernels are those of one set."""
    code = (
        f"from hexane import _core; _core.use_instruction_set({name!r}); import pytest, sys;"
        " sys.exit(pytest.main(sys.argv[1:]))"
    )
    run = [sys.executable, "-c", code, "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *map(str, files)]
    done = subprocess.run(run, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
