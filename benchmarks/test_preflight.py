"""The time of the verdict whether chips run a network: with cached verdicts, without them, for all chips, and as a
command.

`aneforge_verdicts.py` compares with ANEForge, each in a process of its own.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_whole_networks import model_path

import hexane as hx
from hexane.graph import Graph
from hexane.importers.onnx import import_onnx
from hexane.report import html_page
from hexane.report.preflight import examine
from hexane.targets.query import load_chip
from hexane.targets.tables import target_names
from hexane.validate import constants, verdict_cache


def forget() -> None:
    verdict_cache._caches.clear()
    constants._constant.clear()


@pytest.mark.parametrize("contestant", ["hexane", "verdicts forgotten"])
def test_preflight(contestant: str, contest: Callable[..., None], pytestconfig: Any) -> None:
    graph = import_onnx(model_path("resnet18_224", pytestconfig.getoption("--models")))

    def run() -> None:
        if contestant != "hexane":
            forget()
        hx.preflight(graph, "h13")

    contest("preflight ResNet-18 | 1 | <= 0.5 ms", contestant, run, rounds=100)


def chain(distinct: bool) -> Graph:
    """A chain of 10,000 nodes: of a few kinds, or, as the worst case, each of its own kind."""
    y = hx.input("x", (1, 8, 16, 16))
    for i in range(10_000):
        if distinct:
            y = hx.leaky_relu(y, alpha=i * 1e-6)
        elif i % 4:
            y = (hx.sin, hx.tanh, hx.tan)[i % 4 - 1](y)
        else:
            y = hx.conv(y, np.full((8, 8, 3, 3), i, np.float32), pad=1)
    return hx.graph(y)


@pytest.mark.parametrize("kinds", ["5 kinds", "10,000 kinds"])
def test_a_large_graph_on_all_chips(kinds: str, contest: Callable[..., None]) -> None:
    graph = chain(kinds == "10,000 kinds")
    chips = [load_chip(name) for name in target_names() if name != "host"]

    def run() -> None:
        forget()
        assert not all(report.ok for report in examine(graph, chips))

    contest(f"10,000 nodes, {kinds}, {len(chips)} chips | 1 | <= 3 s", "hexane", run, rounds=3)


def test_the_page_of_a_large_graph(contest: Callable[..., None]) -> None:
    reports = examine(chain(False), [load_chip(name) for name in target_names() if name != "host"])
    contest("page of 10,000 nodes | 1 | -", "hexane", lambda: html_page(reports), rounds=3)


def test_check_from_the_start_of_the_process(contest: Callable[..., None], pytestconfig: Any) -> None:
    path = model_path("resnet18_224", pytestconfig.getoption("--models"))
    command = [sys.executable, "-m", "hexane", "check", str(path), "--target", "all"]
    # Modules are cached as bytecode, as in an installation, even if the environment forbids it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> None:
        subprocess.run(command, check=True, capture_output=True, env=environment)

    contest("hexane check --target all | 1 | <= 1.5 s", "hexane", run, rounds=5)
