"""Plans whose steps run on a device: what readers and programs refuse before anything is touched."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from plans import PlanBuilder, copy_plan, ramp

SHAPE = (1, 2, 3, 4)
STRIDES = (2 * 3 * 64, 3 * 64, 64, 4)
PORT: "_core.DevicePort" = {"name": "x", "dtype": "fp32", "shape": SHAPE, "strides": STRIDES, "bytes": STRIDES[0]}  # type: ignore[typeddict-item]


def device_plan(**changes: Any) -> PlanBuilder:
    """x -> copy -> surface -> program -> surface -> copy -> y."""
    plan = PlanBuilder()
    x, y = plan.port("inputs", "x", SHAPE), plan.port("outputs", "y", SHAPE)
    spaces = [plan.space(changes.get("kind", "arena"), changes.get("bytes", STRIDES[0]), f"s{i}") for i in range(2)]
    strides = changes.get("strides", STRIDES)
    where = {"dtype": changes.get("dtype", "fp32"), "strides": strides, "offset": changes.get("offset", 0)}
    a, b = (plan.tensor(space, SHAPE, **where) for space in spaces)
    plan.step("copy", [x], [a])
    plan.step("program", [a], [b], device=changes.get("device", "ane"), cut=changes.get("cut", (-1, 0, 0)))
    plan.step("copy", [b], [y])
    return plan


def null_program(*outputs: "_core.DevicePort") -> "_core.MadeProgram":
    program = _core.null_device([PORT], list(outputs) or [PORT]).compile("", {}, 21)
    program.load(21)
    return program, ["x"], ["x"], 21


def test_a_program_that_does_nothing_leaves_its_surface_as_it_was() -> None:
    program = _core.Program(device_plan().sections(), programs=[null_program()])
    np.testing.assert_array_equal(program.run([ramp(SHAPE)])[0], np.zeros(SHAPE))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "gpu"}, "device: got 'gpu', need cpu or ane"),
        ({"cut": (1, 0, 2)}, "device: got ane, need cpu for a part of a step"),
        ({"offset": 4, "bytes": 2048}, "got offset 4 in arena, need the start of a memory of its own"),
        ({"bytes": 100}, r"need it inside \[0, 100\)"),
        ({"kind": "param"}, "got a tensor that is only read"),
    ],
)
def test_readers_refuse_what_no_device_can_run(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(hx.Error, match=words):
        _core.Program(device_plan(**changes).sections(), programs=[null_program()])


@pytest.mark.parametrize(
    "changes",
    [
        {"strides": (96, 48, 16, 4)},
        {"strides": (STRIDES[0], 0, 64, 4), "device": "ane"},
        {"bytes": 380, "strides": STRIDES},
    ],
)
def test_tensors_lie_as_the_ports_say(changes: dict[str, Any]) -> None:
    with pytest.raises(hx.Error, match=r"got .* need fp32\[1 every 384, 2 every 192, 3 every 64, 4 every 4\]|overlap"):
        _core.Program(device_plan(**changes).sections(), programs=[null_program()])


def test_programs_are_those_of_the_steps() -> None:
    sections = device_plan().sections()
    made = null_program()
    for programs, words in [
        ([], "programs: got 0, need 1"),
        ([made, made], "programs: got 2, need 1"),
        ([(made[0], ["y"], ["x"], 21)], "'x': got no operand of that name"),
        ([(made[0], ["x", "y"], ["x"], 21)], "got 1 operands and 2 names, need 1"),
        ([null_program(PORT, {**PORT, "name": "z"})], "got 1 operands and 1 names, need 2"),
    ]:
        with pytest.raises(hx.Error, match=words):
            _core.Program(sections, programs=programs)
    made[0].unload()
    with pytest.raises(hx.Error, match="not loaded; load it first"):
        _core.Program(sections, programs=[made])
    with pytest.raises(hx.Error, match="programs: got some together with the bytes of a plan"):
        _core.Program(copy_plan().tobytes(), programs=[made])


def test_a_surface_holds_one_tensor() -> None:
    plan = device_plan()
    row = plan.rows["operands"]
    other = plan.tensor(plan.rows["tensors"][row[2][0]][3], (1, 2, 3, 3), strides=STRIDES)
    plan.rows["operands"][3] = (other,)
    with pytest.raises(hx.Error, match=r"got a second tensor in the memory of a device|overlaps operand"):
        _core.Program(plan.sections(), programs=[null_program()])


def test_a_port_may_be_a_surface_with_gaps_only_for_a_device() -> None:
    plan = PlanBuilder()
    for side in ("inputs", "outputs"):
        space = plan.space("port", STRIDES[0], side)
        name = plan.strings.add("x")
        plan._add(side, name, name, plan.tensor(space, SHAPE, strides=STRIDES, name="x"), 0, 0, 0)
    plan.step("program", [0], [1], device="ane")
    program = _core.Program(plan.sections(), programs=[null_program()])
    call = program.bind({})
    call.inputs["x"][...] = ramp(SHAPE)
    call()
    assert call.inputs["x"].strides == call.outputs["x"].strides == STRIDES
    np.testing.assert_array_equal(program.run([ramp(SHAPE)])[0], np.zeros(SHAPE))
    plan.rows["steps"].clear(), plan.rows["operands"].clear()
    plan.step("copy", [0], [1])
    with pytest.raises(hx.Error, match="need a dense tensor that fills its space"):
        _core.Program(plan.sections())


def test_states_in_several_memories_have_their_own_first_contents() -> None:
    plan = PlanBuilder()
    x, y = plan.port("inputs", "x", (4,)), plan.port("outputs", "y", (4,))
    first, second = (plan.tensor(plan.space("state", 16, name), (4,), name=name) for name in ("a", "b"))
    plan.state = np.float32([1, 2, 3, 4, 5, 6]).tobytes()
    plan.step("copy", [second], [y])
    plan.step("copy", [first], [second])
    plan.step("copy", [x], [first])
    program = _core.Program(plan.sections())
    np.testing.assert_array_equal(program.run([np.float32([9, 9, 9, 9])])[0], [5, 6, 0, 0])
    np.testing.assert_array_equal(program.read_state("b"), [1, 2, 3, 4])
    program.reset_state()
    np.testing.assert_array_equal(program.read_state("a"), [1, 2, 3, 4])
    np.testing.assert_array_equal(program.read_state("b"), [5, 6, 0, 0])
