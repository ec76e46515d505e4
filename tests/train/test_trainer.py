"""The Trainer: the loop, its log, evaluation, checkpoints, and going on as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array
from training_logs import read_log

FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]  # of processes that tests start
PARAMS = {"w1": (12, 6), "b1": (12,), "w2": (3, 12)}


def batch(number: int) -> dict[str, Array]:
    rng = np.random.default_rng(number)
    x = rng.standard_normal((16, 6)).astype(np.float32)
    return {"x": x, "labels": (np.abs(x[:, :3]).argmax(axis=1)).astype(np.int32)}


def trainer(folder: Path | None = None, hidden: int = 12, **options: Any) -> hx.train.Trainer:
    rng = np.random.default_rng(5)
    shapes = {"w1": (hidden, 6), "b1": (hidden,), "w2": (3, hidden)}
    p = {n: hx.param(n, rng.standard_normal(s).astype(np.float32) * 0.3) for n, s in shapes.items()}
    labels = hx.input("labels", (16,), "int32")
    logits = hx.linear(hx.relu(hx.linear(hx.input("x", (16, 6)), p["w1"], p["b1"])), p["w2"])
    right = hx.cast(hx.equal(hx.reduce_argmax(logits), labels), dtype="fp32")
    made = hx.train.Trainer(
        hx.cross_entropy(logits, labels), list(p.values()), hx.train.adamw(0.02), clip=1.0,
        metrics={"accuracy": right}, folder=folder, threads=1, **options,
    )  # fmt: skip
    made.logits = logits  # type: ignore[attr-defined]
    return made


def contents(made: hx.train.Trainer) -> dict[str, Array]:
    return {name: made.net.read_state(name) for name in made.net.state_names}


def assert_same(got: hx.train.Trainer, want: hx.train.Trainer) -> None:
    mine, theirs = contents(got), contents(want)
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_it_learns_and_keeps_a_log(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    entries = made.fit(batch, 120, evaluate_every=60, evaluation=[batch(1000 + i) for i in range(8)], progress=False)
    assert [e["call"] for e in entries] == list(range(120))
    assert entries[-1]["loss"] < 0.6 * entries[0]["loss"]
    assert [i for i, e in enumerate(entries) if "evaluation.accuracy" in e] == [59, 119]
    assert entries[119]["evaluation.accuracy"] > 0.7
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == entries


def test_entries_count_updates_and_tokens(tmp_path: Path) -> None:
    made = trainer(tmp_path, accumulate=3)
    entries = made.fit(batch, 7, progress=False, tokens=10)
    assert [e["step"] for e in entries] == [0, 0, 1, 1, 1, 2, 2]
    assert [e["tokens"] for e in entries] == list(range(10, 80, 10))
    assert made.updates == 2


@pytest.mark.parametrize("after", ['{"call": 6, "loss": 1.0}\n{"call": 7, "loss": 1.0}\n', '{"call": 6, "lo', ""])
def test_the_log_of_a_resumed_run_is_that_of_one_run(tmp_path: Path, after: str) -> None:
    trainer(tmp_path / "whole").fit(batch, 9, progress=False)
    trainer(tmp_path / "parts").fit(batch, 6, progress=False)
    with (tmp_path / "parts" / "log.jsonl").open("a") as log:
        log.write(after)  # by a run that was killed before its next checkpoint
    trainer(tmp_path / "parts").fit(batch, 9, resume=True, progress=False)
    assert read_log(tmp_path / "parts") == read_log(tmp_path / "whole")


def test_a_log_that_is_none_is_left_as_it_is(tmp_path: Path) -> None:
    trainer(tmp_path).fit(batch, 2, progress=False)
    (tmp_path / "log.jsonl").write_text("my notes\n")
    with pytest.raises(hx.Error, match=r"log\.jsonl: line 1: got no entry"):
        trainer(tmp_path).fit(batch, 4, resume=True, progress=False)
    assert (tmp_path / "log.jsonl").read_text() == "my notes\n"


def test_a_number_that_is_not_finite_is_null_in_the_log(tmp_path: Path) -> None:
    def broken(number: int) -> dict[str, Array]:
        return {**batch(number), "x": np.full((16, 6), np.nan, np.float32)}

    trainer(tmp_path).fit(broken, 1, progress=False)
    assert read_log(tmp_path)[0]["loss"] is None


def test_checkpoints_carry_notes(tmp_path: Path) -> None:
    notes = {"model": {"sizes": [6, 12, 3]}, "text": "é"}
    trainer(tmp_path, notes=notes).fit(batch, 3, progress=False)
    assert hx.train.read_notes(tmp_path / "checkpoint.hxc") == notes
    longer = trainer(tmp_path, notes={**notes, "text": "other"})
    longer.fit(batch, 5, resume=True, progress=False)
    assert hx.train.read_notes(longer.net)["text"] == "other"
    assert hx.train.read_notes(trainer().net) == {}
    with pytest.raises(hx.Error, match=r"notes: .*need values that JSON can represent"):
        trainer(notes={"model": np.zeros(3)})


@pytest.mark.parametrize("accumulate", [1, 3])
def test_going_on_is_as_if_nothing_had_happened(tmp_path: Path, accumulate: int) -> None:
    whole = trainer(accumulate=accumulate)
    whole.fit(batch, 20, progress=False)
    trainer(tmp_path, accumulate=accumulate).fit(batch, 8, progress=False)
    rest = trainer(tmp_path, accumulate=accumulate)
    entries = rest.fit(batch, 20, resume=True, progress=False)
    assert [e["call"] for e in entries] == list(range(8, 20))
    assert_same(rest, whole)


def test_batches_in_an_iterable_begin_at_0(tmp_path: Path) -> None:
    def some() -> Iterator[dict[str, Array]]:
        return map(batch, range(9))

    whole = trainer()
    whole.fit(some(), 9, progress=False)
    trainer(tmp_path).fit(some(), 4, progress=False)
    rest = trainer(tmp_path)
    rest.fit(some(), 9, resume=True, progress=False)
    assert_same(rest, whole)
    with pytest.raises(hx.Error, match="batches: got 9, need 12"):
        trainer().fit(some(), 12, progress=False)


SCRIPT = """
import os, sys
sys.path[:0] = {tests!r}
from pathlib import Path
from test_trainer import batch, trainer
def slow(number):
    if number == 6:
        print("ready", flush=True)
        import time; time.sleep(60)
    return batch(number)
trainer(Path({folder!r})).fit(slow, 100, progress=False)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    code = SCRIPT.format(tests=FOLDERS, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, number)
        code = process.wait(timeout=60)
    assert code == 143 if number == signal.SIGTERM else code != 0
    rest, whole = trainer(tmp_path), trainer()
    rest.fit(batch, 15, resume=True, progress=False)
    whole.fit(batch, 15, progress=False)
    assert_same(rest, whole)


def test_a_handler_of_the_program_keeps_sigterm(tmp_path: Path) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        trainer(tmp_path).fit(lambda i: (signal.raise_signal(signal.SIGTERM), batch(i))[1], 3, progress=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM] * 3
    assert len(read_log(tmp_path)) == 3


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_cut_off_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: signal.Signals, second: signal.Signals
) -> None:
    made = trainer(tmp_path)
    save = made.save

    def interrupted() -> None:
        signal.raise_signal(second)
        save()

    monkeypatch.setattr(made, "save", interrupted)
    with pytest.raises(SystemExit if first == signal.SIGTERM else KeyboardInterrupt):
        made.fit(lambda i: (signal.raise_signal(first) if i == 4 else None, batch(i))[1], 9, progress=False)
    rest, whole = trainer(tmp_path), trainer()
    rest.load()
    assert rest.calls == 4
    rest.fit(batch, 9, progress=False)
    whole.fit(batch, 9, progress=False)
    assert_same(rest, whole)


def test_a_signal_at_the_end_comes_after_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path)
    save = made.save
    monkeypatch.setattr(made, "save", lambda: (signal.raise_signal(signal.SIGINT), save()))
    with pytest.raises(KeyboardInterrupt):
        made.fit(batch, 3, progress=False)
    made.load()
    assert made.calls == 3


HELD = """
import os, signal, sys
sys.path[:0] = {tests!r}
from pathlib import Path
from test_trainer import batch, trainer
made = trainer(Path({folder!r}))
class Interrupted:  # Ctrl-C comes while the program of batch 6 runs
    def __getattr__(self, name):
        return getattr(made.inner, name)
    def __call__(self, fed):
        if made.calls == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return made.inner(fed)
made.inner, made.net = made.net, Interrupted()
made.fit(batch, 100, progress=False)
"""


def test_an_interrupt_inside_a_batch_lets_it_end_and_be_logged(tmp_path: Path) -> None:
    code = HELD.format(tests=FOLDERS, folder=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "KeyboardInterrupt" in ended.stderr
    assert [entry["call"] for entry in read_log(tmp_path)] == list(range(7))
    made = trainer(tmp_path)
    made.load()
    assert made.calls == 7


def test_a_training_goes_on_from_a_plan_with_its_states(tmp_path: Path) -> None:
    """Earlier versions wrote such checkpoints."""
    made = trainer(tmp_path)
    made.fit(batch, 5, progress=False)
    (tmp_path / "checkpoint.hxc").unlink()
    made.net.save(tmp_path / "checkpoint.hxp", states="now")
    other = trainer(tmp_path)
    other.fit(batch, 7, resume=True, progress=False)
    assert other.calls == 7
    made.fit(batch, 7, progress=False)
    np.testing.assert_array_equal(other.net.read_state("w1"), made.net.read_state("w1"))


def test_a_step_that_fails_half_way_is_not_saved(tmp_path: Path) -> None:
    """The count of batches is updated before the label is found to be none."""

    def wrong(number: int) -> dict[str, Array]:
        given = batch(number)
        return {**given, "labels": given["labels"] + 100} if number == 3 else given

    made = trainer(tmp_path)
    made.fit(batch, 2, progress=False)
    with pytest.raises(hx.Error, match=r"batch 3: .*index: got 10"):
        made.fit(wrong, 5, progress=False)
    assert made.calls == 4
    for call in (made.save, lambda: made.fit(batch, 5, progress=False)):
        with pytest.raises(hx.Error, match="half way, need load"):
            call()
    made.load()
    assert made.calls == 2
    made.fit(batch, 5, resume=True, progress=False)
    whole = trainer(tmp_path / "whole")
    whole.fit(batch, 5, progress=False)
    np.testing.assert_array_equal(made.net.read_state("w1"), whole.net.read_state("w1"))
    assert [entry["call"] for entry in read_log(tmp_path)] == list(range(5))


def test_a_refused_checkpoint_changes_nothing(tmp_path: Path) -> None:
    trainer(tmp_path / "a", hidden=8).fit(batch, 3, progress=False)
    made = trainer()
    made.fit(batch, 2, progress=False)
    before = {name: made.net.read_state(name) for name in made.net.state_names}
    with pytest.raises(hx.Error, match=r"\[train\.load\] .*a/checkpoint\.hxc: state 'w1': got fp32"):
        made.load(tmp_path / "a" / "checkpoint.hxc")
    for name, array in before.items():
        np.testing.assert_array_equal(made.net.read_state(name), array)


def test_the_trained_network_infers_with_its_params() -> None:
    made = trainer()
    made.fit(batch, 10, progress=False)
    net = made.trained({"logits": made.logits})  # type: ignore[attr-defined]
    x = batch(77)["x"]
    w1, b1, w2 = (made.net.read_state(n) for n in PARAMS)
    np.testing.assert_allclose(net(x), np.maximum(x @ w1.T + b1, 0) @ w2.T, rtol=1e-4, atol=1e-5)
    assert set(net.param_names) == set(PARAMS)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path).fit(batch, 1, progress=False)
    with pytest.raises(hx.Error, match=r"checkpoint\.hxc.*w1"):
        trainer(tmp_path, hidden=8).fit(batch, 2, resume=True, progress=False)
    with pytest.raises(hx.Error, match="other states"):
        trainer(tmp_path, accumulate=2).fit(batch, 2, resume=True, progress=False)
    (tmp_path / "checkpoint.hxc").write_bytes(b"no plan")
    with pytest.raises(hx.Error, match=r"checkpoint\.hxc|plan"):
        trainer(tmp_path).fit(batch, 2, resume=True, progress=False)


def test_bad_calls_say_what_is_needed(tmp_path: Path) -> None:
    made = trainer()
    for call, words in (
        (lambda: made.fit(lambda number: {"x": np.zeros((16, 6), np.float32)}, 1, progress=False), "batch 0"),
        (lambda: made.fit(batch, -1), "steps: got -1"),
        (lambda: made.fit(batch, 1, evaluate_every=1), "without evaluation"),
        (lambda: made.fit(batch, 1, resume=True), "no folder"),
        (lambda: made.save(), "path: got none"),
        (lambda: made.evaluate([]), "got none"),
        (lambda: made.net.save(tmp_path / "x.hxp", states="old"), "states: got 'old'"),
    ):
        with pytest.raises(hx.Error, match="need") as told:
            call()
        assert words in str(told.value)


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    trainer().fit(batch, 3, progress=True)
    assert "3/3" in capsys.readouterr().err
    trainer(accumulate=2).fit(batch, 6, progress=True, tokens=16)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "tokens/s" in shown
