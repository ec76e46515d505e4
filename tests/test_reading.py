"""A reader who follows a compile does not have to open more code than `.ci/reading` allows."""

import subprocess
import sys
from pathlib import Path

import pytest

READING = Path(__file__).parents[1] / ".ci" / "reading"


@pytest.fixture(autouse=True)
def no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks after each pass enter functions that a compile does not."""
    monkeypatch.delenv("HEXANE_VERIFY")


@pytest.mark.parametrize("case", ["host", "chip", "memory", "train"])
def test_a_case_enters_no_more_lines_than_allowed(case: str) -> None:
    done = subprocess.run([sys.executable, READING, case], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_are_listed_with_their_functions() -> None:
    done = subprocess.run([sys.executable, READING, "--files", "host"], capture_output=True, text=True)
    title, *rows = done.stdout.splitlines()[1:]
    assert title.split() == ["file", "lines", "entered", "functions"]
    missed = [int(lines.replace(",", "")) - int(entered) for _, lines, entered, *_ in map(str.split, rows)]
    assert missed == sorted(missed, reverse=True)
