"""Devices for tests. They compile MIL by reading it again, and run the chip's program of what it says on the CPU, with
rows of 64 bytes."""

import pytest

from hexane import _core
from hexane.emit.mil.refusals import Loaded
from hexane.emit.plan import emit_plan
from hexane.graph import Graph
from hexane.importers.mil import MODEL_PATH, load_mil, load_mil_file
from hexane.options import Options
from hexane.pipeline import compile_segments, divide
from hexane.runtime import engine
from hexane.runtime.chip import chip_program
from hexane.runtime.model import Model
from hexane.targets.query import load_chip
from stand_in import FRAMEWORK, LIBRARY, StandIn, needs_stand_in, no_budget

ROWS = 64


def stand_in_engine() -> _core.Device:
    """The dispatch of macOS over what stands in for its private framework. Skips the test where these are not built."""
    needs_stand_in()
    StandIn(lambda folder: to_plan(load_mil_file(folder / "model.mil")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "dispatch", no_budget)
        return _core.ane_device(engine.ane_setup(LIBRARY, str(FRAMEWORK)))


def plan_engine() -> _core.Device:
    """The same without Objective-C."""

    def compiled(mil: str, weights: dict[str, bytes]) -> bytes:
        return to_plan(load_mil(mil, {MODEL_PATH + name: data for name, data in weights.items()}))

    return _core.plan_device(compiled, ROWS)


def to_plan(graph: Graph) -> bytes:
    """The bytes of the plan that h13's program of a graph is, op for op: nobody repairs what an engine gets."""
    return _core.plan_write(emit_plan(chip_program(graph, load_chip("h13"), Options(io="fp16", repair=False))))


def in_the_same_pieces(graph: Graph) -> Model:
    """h13's program of a graph on the CPU, with the same nodes on the host as beside its engine."""
    chip = load_chip("h13")
    divided, segments = divide(graph, chip, programs=Loaded())
    return Model(_core.Program(emit_plan(compile_segments(divided, segments, chip))))
