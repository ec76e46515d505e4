"""The engine's arithmetic on each instruction set of this machine: the same oracles, in a process that has that one
alone."""

from pathlib import Path

from hexane import _core
from instruction_sets import assert_passes_on, on_others

HERE = Path(__file__).parent
FILES = ["test_engine_planar.py", "test_engine_lines.py", "test_numeric_cases.py", "test_engine_products.py"]


@on_others
def test_oracles_hold_on_an_instruction_set(name: str) -> None:
    assert_passes_on(name, "not products or 33 or 37 or 6-2-2", [HERE / file for file in FILES])


def test_the_best_instruction_set_runs_unless_another_is_chosen() -> None:
    assert _core.instruction_sets()[0] == _core.isa()
