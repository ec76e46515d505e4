"""Verdicts beside those of ANEForge: every difference has its fact in benchmarks/aneforge_differences.csv."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "aneforge_verdicts.py"


@pytest.mark.skipif(find_spec("aneforge") is None, reason="aneforge is not installed (pip install --group bench)")
def test_every_difference_from_aneforge_is_explained() -> None:
    ran = subprocess.run([sys.executable, SCRIPT, "--no-timing"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "58 graphs" in ran.stdout
