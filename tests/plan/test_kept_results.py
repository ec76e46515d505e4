"""What a step makes of states alone stays for the next calls, until one of the states has changed."""

from collections.abc import Callable
from ctypes import c_float
from typing import Any

import numpy as np
import pytest

from hexane import _core
from hexane.graph import Array
from plans import PlanBuilder

SHAPE, STRIDES = (1, 1, 1, 16), (64, 64, 64, 4)
PORT: "_core.DevicePort" = {"name": "x", "dtype": "fp32", "shape": SHAPE, "strides": STRIDES, "bytes": 64}
FIRST = np.arange(16, dtype=np.float32)
KEEP, APPLY = (np.float32([1, 1, 1, 1, apply]) for apply in (0, 1))


def program(*, written: bool = True, shared: bool = False) -> "_core.Program":
    """y = program(copy(w)), and then w -= g where rates say so. The program gives what it reads, and adds 1 to that: so
    one sees whether the copy has been made again. shared: another step writes where the copy lies."""
    plan = PlanBuilder()
    g, rates, y = plan.port("inputs", "g", SHAPE), plan.port("inputs", "rates", (5,)), plan.port("outputs", "y", SHAPE)
    w = plan.tensor(plan.space("state", 64), SHAPE, name="w")
    a, b = (plan.tensor(plan.space("arena", 64, f"s{i}"), SHAPE, strides=STRIDES) for i in range(2))
    plan.state = FIRST.tobytes()
    if shared:
        plan.step("copy", [g], [a])
    plan.step("copy", [w], [a])
    plan.step("program", [a], [b], device="ane")
    plan.step("copy", [b], [y])
    if written:
        plan.step("sgd_step", [w, g, rates], [w], decay=0.0)

    def bind(x: Array, made: Array) -> Callable[[], None]:
        numbers = np.ctypeslib.as_array((c_float * 16).from_address(x.ctypes.data))  # x itself is read-only

        def run() -> None:
            made.view(np.float32)[...] = numbers
            numbers[...] += 1

        return run

    device = _core.callback_program([PORT], [{**PORT, "name": "z"}], bind)
    device.load(21)
    return _core.Program(plan.sections(), programs=[(device, ["x"], ["z"], 21)])


def call(made: "_core.Program", rates: Any = KEEP) -> Array:
    return made.run({"g": np.ones(SHAPE, np.float32), "rates": rates})[0].reshape(-1)


def test_a_result_is_kept_until_a_step_changes_the_state() -> None:
    made = program()
    for expected in (FIRST, FIRST + 1, FIRST + 2):
        np.testing.assert_array_equal(call(made), expected)
    np.testing.assert_array_equal(call(made, APPLY), FIRST + 3)
    for expected in (FIRST - 1, FIRST):
        np.testing.assert_array_equal(call(made), expected)


def test_steps_that_are_traced_and_profiled_keep_the_same_results() -> None:
    made = program()
    made.profile(True)
    for number in range(3):
        feeds = {"g": np.ones(SHAPE, np.float32), "rates": KEEP}
        np.testing.assert_array_equal(made.trace(feeds, lambda *_: None)[0].reshape(-1), FIRST + 2 * number)
        np.testing.assert_array_equal(call(made), FIRST + 2 * number + 1)


@pytest.mark.parametrize("written", [True, False])
def test_a_state_that_is_replaced_is_read_again(written: bool) -> None:
    made = program(written=written)
    call(made), call(made)
    made.write_state("w", np.full(SHAPE, 7, np.float32))
    np.testing.assert_array_equal(call(made), np.full(16, 7))
    np.testing.assert_array_equal(call(made), np.full(16, 8))
    made.reset_state()
    np.testing.assert_array_equal(call(made), FIRST)


def test_what_another_step_writes_over_is_made_again() -> None:
    made = program(shared=True)
    for _ in range(2):
        np.testing.assert_array_equal(call(made), FIRST)


@pytest.mark.parametrize(("last", "expected"), [(1, FIRST + 1), (3, FIRST - 1)])
def test_after_a_call_that_failed_a_result_is_as_old_as_the_state(last: int, expected: Array) -> None:
    """last: the step that the call ends with, before or behind that of the optimiser."""
    made = program()

    def after(step: int, _: object) -> None:
        if step == last:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        made.trace({"g": np.ones(SHAPE, np.float32), "rates": APPLY}, after)
    np.testing.assert_array_equal(call(made), expected)
