"""Loops over steps and rings of rows: what runs gives the bits of the steps without loops, what is wrong is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error
from plans import PlanBuilder

ROWS, COLUMNS = 13, 40


def chain_plan(ring: int = 0, block: int = 2, delay: int = 0, trips: int = 0, tanhs: int = 2) -> PlanBuilder:
    """y = tanh(... (x + x)), rows of axis 1 in blocks; step i is `delay` rows behind the one before; rings between
    them."""
    plan = PlanBuilder()
    shape = (1, ROWS, COLUMNS)
    x, y = plan.port("inputs", "x", shape), plan.port("outputs", "y", shape)
    size = 4 * COLUMNS * (ring or ROWS)
    arena = plan.space("arena", size * tanhs)
    last = x
    for i in range(tanhs + 1):
        middle = plan.tensor(arena, shape, offset=size * i, ring=ring) if i < tanhs else y
        cut = (1, -delay * i, block - delay * i)
        plan.step("tanh" if i else "add", [last] if i else [x, x], [middle], cut, **({} if i else {"epilogue": []}))
        last = middle
    trips = trips or -(-(ROWS + delay * tanhs) // block)
    plan.loop(0, trips, [block] * (tanhs + 1))
    return plan


def inputs() -> Any:
    return np.random.default_rng(1).standard_normal((1, ROWS, COLUMNS), np.float32)


def run(plan: PlanBuilder, threads: int = 1) -> Any:
    _core.plan_read(plan.tobytes())
    return _core.Program(plan.sections(), threads).run([inputs()])[0]


def whole() -> Any:
    plan = chain_plan()
    plan.rows["steps"] = [(*step[:-3], -1, 0, 0) for step in plan.rows["steps"]]
    plan.rows["loops"], plan.rows["moves"] = [], []
    return run(plan)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("ring", "block", "delay"),
    [(0, 1, 0), (0, 4, 0), (0, 20, 0), (1, 1, 0), (2, 2, 0), (3, 2, 0), (3, 1, 1), (5, 2, 2), (4, 3, 1), (13, 5, 3)],
)
def test_a_loop_gives_the_bits_of_whole_steps(ring: int, block: int, delay: int, threads: int):
    assert run(chain_plan(ring, block, delay), threads).tobytes() == whole().tobytes()


def test_loops_may_be_nested():
    plan = chain_plan(block=2)
    plan.rows["loops"], plan.rows["moves"] = [], []
    plan.loop(0, 2, [6, 6, 6])
    plan.loop(0, 3, [2, 2, 2])
    with pytest.raises(Error, match="reads bytes that no earlier step has written"):
        run(plan)  # 12 of 13 rows
    put(0, 2, 3)(plan)
    assert run(plan).tobytes() == whole().tobytes()


def test_a_loop_may_stand_between_other_steps():
    plan = chain_plan(2)
    z = plan.port("outputs", "z", (1, ROWS, COLUMNS))
    plan.step("copy", [plan.rows["operands"][-1][0]], [z])
    _, z_value = _core.Program(plan.sections()).run([inputs()])
    assert z_value.tobytes() == whole().tobytes()


def test_a_bound_program_runs_its_loops_again_and_again():
    program = _core.Program(chain_plan(3, 1, 1).sections())
    call = program.bind({"x": inputs()})
    for _ in range(3):
        call()
        assert call.outputs["y"].tobytes() == whole().tobytes()


def test_steps_of_a_loop_are_traced_once_and_profiled():
    program = _core.Program(chain_plan(2).sections())
    seen: list[int] = []
    program.trace([inputs()], lambda step, _: seen.append(step))
    assert seen == [0, 1, 2]
    program.profile(True)
    program.run([inputs()])
    assert [step["calls"] for step in program.steps] == [1, 1, 1]


def test_a_row_that_is_overwritten_before_it_is_read_is_refused():
    with pytest.raises(
        Error, match=r"input 0: row 0 is not there, need it written before and not overwritten .*step 1"
    ):
        run(chain_plan(ring=2, block=1, delay=2))
    run(chain_plan(ring=3, block=1, delay=2))


def test_a_row_that_is_read_before_it_is_written_is_refused():
    plan = chain_plan(block=1, delay=1)
    cut(1, -2, -1)(plan)
    with pytest.raises(Error, match="input 0: row 0 is not there"):
        run(plan)


def test_a_ring_that_is_smaller_than_a_run_is_refused():
    with pytest.raises(Error, match="got a ring of 2 rows, need 3"):
        run(chain_plan(ring=2, block=3))


def pooling_plan(ring: int) -> PlanBuilder:
    """y = the largest of 3x3 windows over tanh(x), row by row; without a loop where there is no ring."""
    plan = PlanBuilder()
    shape = (1, ROWS, 5, 8)
    x, y = plan.port("inputs", "x", shape), plan.port("outputs", "y", shape)
    middle = plan.tensor(plan.space("arena", 4 * 5 * 8 * (ring or ROWS)), shape, ring=ring)
    window = {"strides": [1, 1], "dilations": [1, 1], "pads": [1, 1, 1, 1], "kernel_sizes": [3, 3], "ceil_mode": 0}
    plan.step("tanh", [x], [middle], (1, 0, 1) if ring else (-1, 0, 0))
    plan.step("max_pool", [middle], [y], (1, -1, 0) if ring else (-1, 0, 0), **window)
    if ring:
        plan.loop(0, ROWS + 1, [1, 1])
    return plan


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ring", [3, 4, 7])
def test_windows_read_rows_of_a_ring(ring: int, threads: int):
    x = np.random.default_rng(2).standard_normal((1, ROWS, 5, 8), np.float32)
    got, want = (_core.Program(pooling_plan(rows).sections(), threads).run([x])[0] for rows in (ring, 0))
    assert got.tobytes() == want.tobytes()


def test_a_ring_that_does_not_hold_a_window_is_refused():
    with pytest.raises(Error, match="got a ring of 2 rows, need 3"):
        _core.Program(pooling_plan(2).sections())


def put(row: int, field: int, value: int) -> Callable[[PlanBuilder], None]:
    def change(plan: PlanBuilder) -> None:
        fields = list(plan.rows["loops"][row])
        fields[field] = value
        plan.rows["loops"][row] = tuple(fields)

    return change


def move(value: int) -> Callable[[PlanBuilder], None]:
    def change(plan: PlanBuilder) -> None:
        plan.rows["moves"][0] = (value,)

    return change


def cut(*fields: int) -> Callable[[PlanBuilder], None]:
    def change(plan: PlanBuilder) -> None:
        plan.rows["steps"][0] = (*plan.rows["steps"][0][:-3], *fields)

    return change


def another(first: int, trips: int, steps: int) -> Callable[[PlanBuilder], None]:
    return lambda plan: plan.loop(first, trips, [0] * steps) and None


def many(plan: PlanBuilder) -> None:
    for _ in range(8):
        plan.loop(0, 1, [0, 0, 0])


WRONG = [
    ("steps", put(0, 1, 4), r"loops\[0\]\] steps: got \[0, 4\), need some of 3"),
    ("no_steps", put(0, 1, 0), r"steps: got \[0, 0\)"),
    ("trips", put(0, 2, 0), "trips: got 0, need 1 to 1048576"),
    ("trips_huge", put(0, 2, 2**40), "trips: got 1099511627776, need 1 to"),
    ("runs", put(0, 2, 2**19), "got more than 1048576 runs"),
    ("moves", put(0, 3, 1), r"moves: got \[1, \+3\)"),
    ("move", move(2**33), "moves: got 8589934592"),
    ("cut", cut(-1, 0, 0), "cut: got axis -1 in a loop, need one of the 3"),
    ("cut_axis", cut(3, 0, 2), "cut: got axis 3 in a loop"),
    ("cut_huge", cut(1, -(2**33), 2), "cut: got -8589934592"),
    ("cut_other_axis", cut(2, 0, 2), "reads bytes that no earlier step has written"),
    ("crossing", another(2, 1, 2), r"loops\[1\]\] steps: got \[2, 4\), need some of 3"),
    ("longer_inside", another(0, 1, 3), None),
    ("too_deep", many, "got a loop in 8 others"),
    ("nothing_is_left", put(0, 2, 3), "reads bytes that no earlier step has written"),
]


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_loops_are_refused(change: Callable[[PlanBuilder], None], message: str | None):
    plan = chain_plan()
    change(plan)
    if message is None:
        run(plan)
        return
    with pytest.raises(Error, match=message):
        run(plan)


def test_loops_come_in_order():
    plan = chain_plan()
    plan.rows["loops"][0] = (1, 2, *plan.rows["loops"][0][2:])
    plan.loop(0, 1, [0])
    with pytest.raises(Error, match=r"loops\[1\]\] first_step: got 0, need at least 1"):
        run(plan)


def test_a_loop_inside_another_does_not_cross_its_end():
    plan = chain_plan()
    plan.rows["loops"][0] = (0, 2, *plan.rows["loops"][0][2:])
    plan.loop(1, 1, [0, 0])
    with pytest.raises(Error, match="got the end 3, need at most 2, that of the loop around it"):
        run(plan)


def pieces_plan(delay: int = 0, ring: int = 2, from_column: int = 0) -> PlanBuilder:
    """y = what a, of 2 columns, and b, of 3, are side by side, from a column on: rows of a ring, b's written `delay`
    runs later."""
    plan = PlanBuilder()
    a, b = plan.port("inputs", "a", (1, ROWS, 4, 2)), plan.port("inputs", "b", (1, ROWS, 4, 3))
    y = plan.port("outputs", "y", (1, ROWS, 4, 5 - from_column))
    arena = plan.space("arena", ring * 80)
    strides = (80 * ROWS, 80, 20, 4)

    def columns(begin: int, end: int) -> int:
        return plan.tensor(arena, (1, ROWS, 4, end - begin), offset=4 * begin, strides=strides, ring=ring)

    plan.step("copy", [a], [columns(0, 2)], (1, 0, 1))
    plan.step("copy", [b], [columns(2, 5)], (1, -delay, 1 - delay))
    plan.step("copy", [columns(from_column, 5)], [y], (1, 0, 1))
    plan.loop(0, ROWS + delay, [1, 1, 1])
    return plan


@pytest.mark.parametrize("from_column", [0, 1, 3])
def test_a_row_may_be_written_in_pieces_and_read_in_others(from_column: int):
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((1, ROWS, 4, 2), np.float32), rng.standard_normal((1, ROWS, 4, 3), np.float32)
    (got,) = _core.Program(pieces_plan(from_column=from_column).sections()).run([a, b])
    assert got.tobytes() == np.concatenate([a, b], axis=-1)[..., from_column:].tobytes()


def test_a_row_of_which_a_piece_is_missing_is_refused():
    with pytest.raises(Error, match=r"input 0: row 0 is not there, need it written before .*step 2"):
        _core.Program(pieces_plan(delay=1).sections())
    late = pieces_plan(ring=1)
    late.rows["steps"][2] = (*late.rows["steps"][2][:-3], 1, -1, 0)
    late.rows["loops"] = [(0, 3, ROWS + 1, 0)]
    with pytest.raises(Error, match=r"input 0: row 0 is not there, need it .* not overwritten .*step 2"):
        _core.Program(late.sections())


def overlaid_plan(behind: int = 0, last: str = "") -> PlanBuilder:
    """y = tanh(tanh(tanh(x))): the middle is a ring of one row, and the third result begins `behind` rows before the
    first, over its rows, which the loop has read. last: a kernel that writes over one row of the first before the
    loop."""
    plan = PlanBuilder()
    shape, row = (1, ROWS, COLUMNS), 4 * COLUMNS
    x, y = plan.port("inputs", "x", shape), plan.port("outputs", "y", shape)
    arena = plan.space("arena", (ROWS + abs(behind) + 1) * row)
    under = plan.tensor(arena, shape, offset=max(0, behind) * row)
    over = plan.tensor(arena, shape, offset=max(0, -behind) * row)
    ring = plan.tensor(arena, shape, offset=(ROWS + abs(behind)) * row, ring=1)
    plan.step("tanh", [x], [under])
    if last:
        part = plan.tensor(arena, (1, 1, COLUMNS), offset=(behind + 1) * row)
        plan.step(last, [plan.tensor(arena, (1, 1, COLUMNS), offset=behind * row)], [part])
    begin = len(plan.rows["steps"])
    plan.step("tanh", [under], [ring], (1, 0, 1))
    plan.step("tanh", [ring], [over], (1, 0, 1))
    plan.loop(begin, ROWS, [1, 1])
    plan.step("copy", [over], [y])
    return plan


@pytest.mark.parametrize("behind", [0, 1])
def test_rows_may_be_written_over_rows_that_nobody_reads_any_more(behind: int):
    want = np.tanh(np.tanh(np.tanh(inputs())))
    np.testing.assert_allclose(run(overlaid_plan(behind)), want, rtol=1e-5)


def test_a_row_from_before_a_loop_that_is_overwritten_too_early_is_refused():
    with pytest.raises(Error, match="input 0: row 1 is not there, need it written before and not overwritten"):
        run(overlaid_plan(-1))


def test_a_tensor_of_which_another_step_wrote_a_row_is_not_there_before_a_loop():
    with pytest.raises(Error, match="input 0: row 0 is not there"):
        run(overlaid_plan(last="tanh"))
