"""What the dashboard makes of a log: steps from batches, fewer points of many, and a curve of braille."""

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from hexane.train.dashboard import Plan, Run, RunLog, drawn_curve, run_of, thinned


def write(path: Path, entries: list[dict[str, Any]], end: str = "") -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + end)
    return path


def entries(count: int, each: int = 1, first: int = 0) -> list[dict[str, Any]]:
    """Of batches with 8 tokens whose losses are 100, 99, 98 ..."""
    return [
        {"call": c, "step": (c + 1) // each, "loss": 100.0 - c, "lr": 0.1, "norm": 2, "ms": c + 1, "tokens": 8 * c + 8}
        for c in range(first, count)
    ]


NOTHING = Plan()


def read(path: Path, plan: Plan = NOTHING) -> Run:
    log = RunLog(path)
    log.read()
    return run_of(log, plan)


@pytest.mark.parametrize("plan", [NOTHING, Plan(10, 4)])
def test_a_step_is_the_mean_of_its_batches_and_the_sum_of_their_times(tmp_path: Path, plan: Plan) -> None:
    run = read(write(tmp_path / "log", entries(15, each=4)), plan)
    assert (run.accumulate, run.step, run.batches, run.tokens) == (4, 3, 15, 120)
    np.testing.assert_array_equal(run.numbers, [1, 2, 3])
    np.testing.assert_array_equal(run.series["loss"], [98.5, 94.5, 90.5])
    np.testing.assert_array_equal(run.series["ms"], [10, 26, 42])
    assert run.best == (3, 90.5)
    assert run.median_ms == 26
    assert run.tokens_per_second == pytest.approx(1e3 * 32 / 26)
    assert run.seconds_left == (None if plan.steps is None else pytest.approx(7 * 0.026))


def test_a_log_that_begins_inside_a_step_has_no_loss_of_it(tmp_path: Path) -> None:
    run = read(write(tmp_path / "log", entries(12, each=4, first=2)), Plan(3, 4))
    np.testing.assert_array_equal(run.series["loss"], [nan, 94.5, 90.5])
    np.testing.assert_array_equal(run.series["ms"], [nan, 26, 42])
    assert run.is_done
    assert run.tokens_per_second == pytest.approx(1e3 * 32 / 34)


def test_numbers_that_are_not_finite_are_counted_and_left_out(tmp_path: Path) -> None:
    rows = entries(6)
    rows[2]["loss"] = None
    rows[4]["norm"] = None
    run = read(write(tmp_path / "log", rows))
    np.testing.assert_array_equal(run.not_finite, [3, 5])
    assert run.best == (6, 95.0)
    json.dumps(run.record(), allow_nan=False)
    assert run.record()["series"]["loss"][2] == [3, 3, None, None, None]


def test_a_total_that_is_exceeded_is_that_of_an_earlier_run(tmp_path: Path) -> None:
    path = write(tmp_path / "log", entries(6))
    assert read(path, Plan(6, 1)).total == 6
    assert read(path, Plan(5, 1)).total is None


def test_evaluations_have_the_step_that_they_follow(tmp_path: Path) -> None:
    rows = entries(8, each=2)
    rows[3] |= {"evaluation.loss": 3.0}
    rows[7] |= {"evaluation.loss": 4.0, "evaluation.accuracy": None}
    run = read(write(tmp_path / "log", rows))
    assert [one.step for one in run.evaluations] == [2, 4]
    found = run.evaluated("loss")
    assert found is not None
    assert [one.step for one in found] == [4, 2]
    assert run.evaluated("accuracy") is None


def test_what_was_measured_is_a_mean_over_the_last_steps(tmp_path: Path) -> None:
    rows = entries(210, each=2)
    for call, row in enumerate(rows):
        row |= {"tflops": 1.0 if call < 10 else 2.0, "memory": 1000 + call % 200, "compiles_left": 7}  # resumed at 200
        row |= {"ms.products": 9.0 if call < 10 else 3.0} | ({"ms.engine": 4.0, "mw.cpu": 10.0} if call % 2 else {})
    rows[209]["mw.cpu"] = 110.0
    rows[208]["ms.engine"] = None
    found = read(write(tmp_path / "log", rows)).measured
    assert found.lanes == {"products": 6.0, "engine": 4.0}
    assert (found.recent_steps, found.recent_ms) == (100, np.mean([row["ms"] for row in rows[-200:]]) * 2)
    assert found.milliwatts == {"cpu": pytest.approx(11.0)}
    assert (found.tflops, found.of_peak, found.memory, found.compiles_left) == (2.0, None, 1199, 7)
    assert read(write(tmp_path / "log", entries(4))).measured.record() == {
        "recent_steps": 3, "recent_ms": 3.0, "lanes": {}, "milliwatts": {}, "tflops": None, "of_peak": None,
        "memory": None, "compiles_left": None
    }  # fmt: skip


def test_a_log_has_no_end_of_lanes(tmp_path: Path) -> None:
    row = {"call": 0} | {f"ms.{i}": 1 for i in range(33)}
    with pytest.raises(Error, match="line 1: got more than 32 times and powers"):
        read(write(tmp_path / "log", [row]))


def test_an_empty_log_is_a_run_without_steps(tmp_path: Path) -> None:
    run = read(write(tmp_path / "log", []))
    assert (run.step, run.best, run.median_ms, run.tokens) == (0, None, None, None)
    json.dumps(run.record(), allow_nan=False)


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    rows = entries(3)
    log = RunLog(write(path, rows[:2], end='{"call": 2, "lo'))
    assert log.read()
    assert list(log.calls) == [0, 1]
    assert not log.read()
    write(path, rows)
    assert log.read()
    assert list(log.columns["loss"]) == [100.0, 99.0, 98.0]


def test_a_log_that_was_cut_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RunLog(write(path, entries(5)))
    log.read()
    again = [{**entry, "ms": 7} for entry in entries(9)]
    write(path, [*entries(2), *again[2:]])  # longer than before when it is looked at
    assert log.read()
    assert list(log.columns["ms"]) == [1, 2, *[7] * 7]
    write(path, [])
    assert log.read()
    assert not log.calls


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "line 2: got no entry of a training"),
        ("[" * 100_000, "line 2: got no entry"),
        ("\udcff", "line 2: got no entry"),
        ("3", "line 2: got no entry"),
        ('{"loss": 1}', "line 2: got no entry"),
        ('{"call": true}', "line 2: got no entry"),
        ('{"call": 1e3}', "line 2: got no entry"),
        ('{"call": 99999999999999999999}', "line 2: got no entry"),
        ('{"call": 0}', "got batch 0 after batch 0"),
        ('{"call": 1, "loss": "low"}', "line 2: 'loss': got str, need a number or null"),
        ('{"call": 1, "evaluation.\\u001b[2J": []}', r"'evaluation.\x1b[2J': got list"),
        ('{"call": 1, "ms": 1e200}', "'ms': got a number beyond 1e+150"),
        ('{"call": 1, "ms": 1' + "0" * 400 + "}", "'ms': got a number beyond 1e+150"),
        (" " * (1 << 20), "line 2: got more than 1048576 bytes"),
    ],
)
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"call": 0}\n' + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(Error) as caught:
        RunLog(path).read()
    assert words in str(caught.value)


def test_numbers_that_json_calls_infinite_are_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"call": 0, "loss": NaN, "norm": Infinity}\n')
    log = RunLog(path)
    log.read()
    np.testing.assert_array_equal([log.columns["loss"][0], log.columns["norm"][0]], [nan, nan])


@pytest.mark.parametrize(("count", "most"), [(0, 5), (3, 5), (5, 5), (1003, 7)])
def test_thinning_keeps_ends_extremes_and_order(count: int, most: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    found = thinned(values, most)
    assert len(found) == min(count, most)
    assert [place for b in found for place in range(b.first, b.last + 1)] == list(range(count))
    for b in found:
        part = values[b.first : b.last + 1]
        assert (b.low, b.high) == (part.min(), part.max())
        assert b.mean == pytest.approx(part.mean())


def test_a_bucket_leaves_out_what_is_not_finite() -> None:
    some, none = thinned(np.array([1.0, nan, 3.0, nan, inf, nan]), 2)
    assert (some.low, some.mean, some.high) == (1, 2, 3)
    assert np.isnan([none.low, none.mean, none.high]).all()


def dots(rows: tuple[str, ...]) -> np.ndarray:
    """The characters as an image, by the places that Unicode gives to dots 1 to 8."""
    order = {1: (0, 0), 2: (1, 0), 3: (2, 0), 4: (0, 1), 5: (1, 1), 6: (2, 1), 7: (3, 0), 8: (3, 1)}
    image = np.zeros((4 * len(rows), 2 * len(rows[0])), bool)
    for y, row in enumerate(rows):
        for x, character in enumerate(row):
            for dot, (down, right) in order.items():
                image[4 * y + down, 2 * x + right] = (ord(character) - 0x2800) >> (dot - 1) & 1
    return image


def test_a_line_is_drawn_as_a_diagonal_of_dots() -> None:
    curve = drawn_curve(np.arange(8.0), width=4, height=2)
    assert curve is not None
    np.testing.assert_array_equal(dots(curve.rows), np.eye(8, dtype=bool)[::-1])
    assert (curve.low, curve.high) == (0, 7)


def test_neighbours_are_joined() -> None:
    curve = drawn_curve(np.array([0.0, 7.0, 7.0, 0.0]), width=2, height=2)
    assert curve is not None
    image = dots(curve.rows)
    np.testing.assert_array_equal(image.sum(axis=0), [1, 7, 1, 7])
    assert image[7, 0]
    assert image[0, 1]
    assert image[0, 2]
    assert image[7, 3]


def test_a_gap_stays_empty() -> None:
    curve = drawn_curve(np.array([1.0, 1.0, nan, nan, 2.0, 2.0]), width=3, height=1)
    assert curve is not None
    assert curve.rows[0][1] == "\u2800"
    np.testing.assert_array_equal(dots(curve.rows).any(axis=0), [1, 1, 0, 0, 1, 1])


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [-2.0] * 500])
def test_a_curve_of_one_value_is_a_straight_line(values: list[float]) -> None:
    curve = drawn_curve(np.array(values), width=10, height=3)
    assert curve is not None
    assert curve.low < values[0] < curve.high
    image = dots(curve.rows)
    assert image.any(axis=0).all()
    assert image.any(axis=1).sum() == 1


def test_many_values_are_their_means() -> None:
    rng = np.random.default_rng(2)
    values = np.repeat(np.arange(20.0), 1000) + np.tile([-0.4, 0.4], 10_000)
    curve = drawn_curve(rng.permuted(values.reshape(20, 1000), axis=1).ravel(), width=10, height=5)
    assert curve is not None
    np.testing.assert_array_equal(dots(curve.rows), np.eye(20, dtype=bool)[::-1])


def test_marks_lie_where_their_values_are() -> None:
    curve = drawn_curve(np.array([0.0, 1.0]), width=4, height=4, marks=[(0.0, 1.0), (1.0, 0.0), (2.0, 0.5)], mark="o")
    assert curve is not None
    assert curve.rows[0][0] == "o"
    assert curve.rows[3][3] == "o"
    assert "".join(curve.rows).count("o") == 2


def test_without_a_finite_value_there_is_no_curve() -> None:
    assert drawn_curve(np.array([nan, inf]), 10, 3) is None
    assert drawn_curve(np.empty(0), 10, 3) is None
