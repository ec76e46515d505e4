"""Probes Core ML's public API on this machine: its interface, a run of a network, and its planned placement."""

from pathlib import Path

import numpy as np

from hexane import build, sources
from hexane.graph import Graph
from hexane.options import Device, Options
from hexane.report.coreml_plan import compare_plan
from hexane.report.mac.probe import Context, Probe, Values
from hexane.report.preflight import examine
from hexane.runtime.coreml_library import UNITS, CoreML
from hexane.runtime.coreml_model import CoreMLModel, compile_on_coreml
from hexane.targets.query import load_chip


def _api(context: Context) -> CoreML:
    return CoreML(Path(context.library), context.coreml)


def _network(context: Context) -> Graph:
    """Returns a small convolution. The salt makes its name new, so that the first load is not cached."""
    weight = np.random.default_rng(7).standard_normal((32, 16, 3, 3)).astype(np.float32)
    x = build.input(f"x_{context.salt}", (1, 16, 32, 32))
    return build.graph({"y": build.relu(build.conv(x, build.const(weight)))})


def _loaded(context: Context, graph: Graph, units: str) -> CoreMLModel:
    opened = sources.open_network(graph, where="doctor")
    return compile_on_coreml(opened, Options(device=Device("coreml", compute_units=units)), {}, {}, _api(context))


def interface(context: Context) -> Values:
    """Returns the classes and methods that exist, and the missing ones, each with the first macOS that should have
    it."""
    rows = _api(context).probe()
    return {
        "found": [name for _, name, exists, _ in rows if exists],
        "missing": {name: since for _, name, exists, since in rows if not exists},
    }


def runs(context: Context) -> Values:
    """Runs a convolution on each choice of devices. Returns milliseconds of compile, cold and warm load, and the
    difference from the outputs of the first choice, the CPU."""
    graph, result, first = _network(context), {}, None
    x = np.random.default_rng(3).integers(0, 256, (1, 16, 32, 32)).astype(np.float32)
    for units in UNITS:
        net = _loaded(context, graph, units)
        y = net(x)
        first = y if first is None else first
        result[units] = {
            **net.load_times,
            "warm_load_ms": net.context().load_times["load_ms"],
            "most_apart": float(np.abs(y - first).max() / np.abs(first).max()),
            "copied": sorted(net.copied_outputs),
        }
    return result


def plan(context: Context) -> Values:
    """Returns Core ML's plan of the convolution, compared with the forecast."""
    graph = _network(context)
    (report,) = examine(graph, [load_chip(context.target)], "probe")
    return compare_plan(report, _loaded(context, graph, "cpu_and_ne").compute_plan()).record()


COREML = Probe(
    "coreml",
    "Does Core ML's public API have what Hexane uses, and where does it run a convolution?",
    {"interface": interface, "runs": runs, "plan": plan},
)
