"""What the executor refuses when it loads a plan, and how cut steps and rings run."""

from typing import Any

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error
from plans import PlanBuilder, copy_plan, ramp


def one_step(kernel: str, **fields: Any) -> dict[str, Any]:
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (3, 4))
    y = plan.port("outputs", "y", (3, 4))
    plan.step(kernel, [x], [y], **fields)
    return plan.sections()


def test_a_missing_kernel_is_named_with_its_step():
    with pytest.raises(Error, match=r"no kernel is named 'frobnicate' \(step 0, frobnicate, step 0\)"):
        _core.Program(one_step("frobnicate"))


@pytest.mark.parametrize(("inputs", "outputs"), [(0, 1), (2, 1), (1, 2)])
def test_a_wrong_number_of_operands_is_refused(inputs: int, outputs: int):
    plan = PlanBuilder()
    x = [plan.port("inputs", f"x{i}", (3, 4)) for i in range(inputs)]
    y = [plan.port("outputs", f"y{i}", (3, 4)) for i in range(outputs)]
    plan.step("copy", x, y)
    with pytest.raises(Error, match=r"copy: got .* need one of"):
        _core.Program(plan.sections())


def test_unknown_numerics_are_refused():
    with pytest.raises(Error, match=r"family: got 'engine:h13', need one of ieee"):
        _core.Program(one_step("relu", numerics="engine:h13"))


def test_a_program_may_mix_arithmetics():
    plan = copy_plan()
    plan.rows["steps"][1] = (plan.rows["steps"][1][0], plan.numerics("ieee", "other"), *plan.rows["steps"][1][2:])
    assert len(plan.rows["numerics"]) == 2
    assert np.array_equal(_core.Program(plan.sections()).run([ramp()])[0], ramp())


def test_attributes_of_another_size_are_refused():
    sections = one_step("reverse", axes=[0])
    sections["steps"]["attrs_bytes"] = 8
    with pytest.raises(Error, match=r"\[reverse\] attributes: got 8 bytes, need 72"):
        _core.Program(sections)


def test_a_list_attribute_that_is_too_long_is_refused():
    sections = one_step("reverse", axes=[0])
    sections["attrs"].view(np.int64)[0] = 9
    with pytest.raises(Error, match="attribute axes: got 9 values, need at most 8"):
        _core.Program(sections)


def rows_of_a_ring(kernel: str, cuts: list[tuple[int, int, int]], **attrs: Any) -> dict[str, Any]:
    """A plan whose state has four rows, two of them kept in a ring; its output has four rows."""
    plan = PlanBuilder()
    ring = plan.tensor(plan.space("state", 2 * 3 * 4), (1, 4, 3), strides=(24, 12, 4), name="ring")
    y = plan.port("outputs", "y", (1, 4, 3))
    for cut in cuts:
        plan.step(kernel, [ring], [y], cut=cut, **attrs)
    sections = plan.sections()
    sections["tensors"]["ring"][ring] = 2
    return sections


@pytest.mark.parametrize(
    ("kernel", "cuts", "attrs", "message"),
    [
        ("relu", [(-1, 0, 0)], {}, "cut: got axis -1, need 1 for rings"),
        ("relu", [(2, 0, 3)], {}, "cut: got axis 2, need 1 for rings"),
        ("relu", [(1, 0, 3), (1, 3, 4)], {}, "operand 0: got a ring of 2 rows, need 3"),
        ("reverse", [(1, 0, 2), (1, 2, 4)], {"axes": [1]}, "operand 0: got a ring of 2 rows, need all rows"),
    ],
)
def test_a_ring_that_a_step_cannot_read_is_refused(kernel, cuts, attrs, message):
    with pytest.raises(Error, match=message):
        _core.Program(rows_of_a_ring(kernel, cuts, **attrs))


def test_steps_read_rows_of_a_ring_around_its_end():
    program = _core.Program(rows_of_a_ring("relu", [(1, 0, 1), (1, 1, 3), (1, 3, 4)]))
    program.write_state("ring", np.arange(12, dtype=np.float32).reshape(1, 4, 3))  # rows 2 and 3 are kept
    (y,) = program.run([])
    assert y[0, :, 0].tolist() == [6, 9, 6, 9]


def test_state_in_a_ring_is_read_and_written_inside_its_rows():
    plan = copy_plan()
    ring = plan.tensor(plan.space("state", 2 * 3 * 4), (1, 5, 3), strides=(24, 12, 4), name="ring")
    sections = plan.sections()
    sections["tensors"]["ring"][ring] = 2
    program = _core.Program(sections)
    program.write_state("ring", np.arange(15, dtype=np.float32).reshape(1, 5, 3))
    rows = program.read_state("ring")[0, :, 0]
    assert rows.tolist() == [12, 9, 12, 9, 12]  # the last two rows written are kept, row 4 in the place of row 2


@pytest.mark.parametrize(("axis", "begin", "end"), [(3, 0, 1), (1, 0, 99)])
def test_a_cut_outside_the_output_is_refused(axis: int, begin: int, end: int):
    with pytest.raises(Error, match="cut: got"):
        _core.Program(one_step("copy", cut=(axis, begin, end)))


def test_steps_that_are_cut_cover_the_output_together():
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (5, 4))
    y = plan.port("outputs", "y", (4, 5))
    turned = plan.tensor(plan.rows["tensors"][x][3], (4, 5), strides=(4, 16))
    for begin, end in ((2, 4), (0, 1), (1, 2)):
        plan.step("copy", [turned], [y], cut=(0, begin, end))
    assert np.array_equal(_core.Program(plan.tobytes()).run([ramp((5, 4))])[0], ramp((5, 4)).T)


def test_a_step_that_is_cut_writes_its_range_only():
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (4, 5))
    y = plan.port("outputs", "y", (4, 5))
    for begin, end in ((0, 1), (2, 4)):
        plan.step("copy", [x], [y], cut=(0, begin, end))
    with pytest.raises(Error, match="outputs: y: no step writes all of it"):
        _core.Program(plan.tobytes())
