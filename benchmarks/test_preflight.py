"""How long it takes to say whether a chip runs ResNet-18, the graph in memory: again, and with every verdict forgotten."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from test_whole_networks import model_path

import hexane as hx
from hexane.importers.onnx import import_onnx
from hexane.validate import node


@pytest.mark.parametrize("contestant", ["hexane", "verdicts forgotten"])
def test_preflight(contestant: str, contest: Callable[..., None], pytestconfig: Any) -> None:
    graph = import_onnx(model_path("resnet18_224", pytestconfig.getoption("--models")))

    def run() -> None:
        if contestant != "hexane":
            node._memories.clear()
        hx.preflight(graph, "h13")

    contest("preflight ResNet-18 | 1 | <= 0.5 ms", contestant, run, rounds=100)


def test_check_from_the_start_of_the_process(contest: Callable[..., None], pytestconfig: Any) -> None:
    path = model_path("resnet18_224", pytestconfig.getoption("--models"))
    command = [sys.executable, "-m", "hexane", "check", str(path), "--target", "all"]

    def run() -> None:
        subprocess.run(command, check=True, capture_output=True)

    contest("hexane check --target all | 1 | <= 1.5 s", "hexane", run, rounds=5)
