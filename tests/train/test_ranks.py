"""Several processes that train one model: the same curve as one process, the same bits on all ranks and in every run.

Ranks are threads here; tests/cli/test_cli_train_mpi.py has real ones."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array
from hexane.train import all_reduce
from ranks import ThreadCommunicator, run_ranks
from training_logs import read_log, repeatable

ROWS = 24  # of a global batch
INITIAL = {"w1": (12, 6), "b1": (12,), "w2": (3, 12)}


def batch(number: int) -> dict[str, Array]:
    rng = np.random.default_rng(number)
    x = rng.standard_normal((ROWS, 6)).astype(np.float32)
    return {"x": x, "labels": (np.abs(x[:, :3]).argmax(axis=1)).astype(np.int32)}


def trainer(
    communicator: Any = None,
    folder: Path | None = None,
    *,
    seed: int = 5,
    dropout: bool = False,
    clip: float | None = 1.0,
    **options: Any,
) -> hx.train.Trainer:
    rows = ROWS // (communicator.Get_size() if communicator else 1)
    rng = np.random.default_rng(seed)
    p = {n: hx.param(n, rng.standard_normal(s).astype(np.float32) * 0.3) for n, s in INITIAL.items()}
    labels = hx.input("labels", (rows,), "int32")
    hidden = hx.relu(hx.linear(hx.input("x", (rows, 6)), p["w1"], p["b1"]))
    if dropout:
        hidden = hx.dropout(hidden, hx.stream(7, "drop"), p=0.1)
    logits = hx.linear(hidden, p["w2"])
    right = hx.cast(hx.equal(hx.reduce_argmax(logits), labels), dtype="fp32")
    return hx.train.Trainer(
        hx.cross_entropy(logits, labels), list(p.values()), hx.train.adamw(0.02), clip=clip,
        metrics={"accuracy": right}, folder=folder, threads=1, communicator=communicator, **options,
    )  # fmt: skip


def own(communicator: ThreadCommunicator, number: int) -> dict[str, Array]:
    """The rows of this rank."""
    each = ROWS // communicator.Get_size()
    begin = communicator.Get_rank() * each
    return {name: array[begin : begin + each] for name, array in batch(number).items()}


def fit(communicator: ThreadCommunicator, made: hx.train.Trainer, steps: int, **options: Any) -> list[dict[str, Any]]:
    if "evaluation" in options:
        options["evaluation"] = [own(communicator, number) for number in options["evaluation"]]
    entries = made.fit(lambda number: own(communicator, number), steps, progress=False, **options)
    return repeatable(entries)


def bits(made: hx.train.Trainer) -> dict[str, bytes]:
    """Of all states but gradients that are summed up, which each rank has of its own rows."""
    return {n: made.net.read_state(n).tobytes() for n in made.net.state_names if not n.endswith(".grad")}


@pytest.fixture(params=[1 << 20, 50], ids=["one-bucket", "buckets"])
def buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_reduce, "BUCKET", request.param)


@pytest.mark.usefixtures("buckets")
@pytest.mark.parametrize("options", [{}, {"accumulate": 3}, {"guard": "each", "clip": None}, {"clip_value": 1e-3}])
@pytest.mark.parametrize("count", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_the_curve_is_that_of_one_process(count: int, options: dict[str, Any]) -> None:
    steps, held = 30, [1000, 1001]
    alone = trainer(**options)
    want = alone.fit(batch, steps, progress=False, evaluate_every=15, evaluation=map(batch, held))

    def work(communicator: ThreadCommunicator) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
        made = trainer(communicator, **options)
        return fit(communicator, made, steps, evaluate_every=15, evaluation=held), bits(made)

    found = run_ranks(count, work)
    assert all(one == found[0] for one in found)
    for got, one in zip(found[0][0], want, strict=True):
        names = ["loss", "lr", "norm", "step", *(n for n in one if n.startswith("evaluation"))]
        for name in names:
            assert got[name] == pytest.approx(one[name], abs=1e-5), (name, got, one)
    for name in INITIAL:
        array = np.frombuffer(found[0][1][name], np.float32).reshape(INITIAL[name])
        np.testing.assert_allclose(array, alone.net.read_state(name), atol=1e-5, err_msg=name)


def weights_after(communicator: ThreadCommunicator, steps: int, folder: Path, **options: Any) -> dict[str, bytes]:
    made = trainer(communicator, folder, accumulate=2)
    fit(communicator, made, steps, checkpoint_every=4, **options)
    return bits(made)


@pytest.mark.usefixtures("buckets")
def test_every_run_has_the_same_bits(tmp_path: Path) -> None:
    runs = [run_ranks(3, lambda c, i=i: weights_after(c, 20, tmp_path / str(i))) for i in range(3)]  # type: ignore[misc]
    assert all(one == runs[0][0] for run in runs for one in run)
    assert read_log(tmp_path / "0") == read_log(tmp_path / "1")


def test_a_resumed_run_is_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = run_ranks(3, lambda c: weights_after(c, 20, tmp_path / "whole"))
    run_ranks(3, lambda c: weights_after(c, 8, tmp_path / "parts"))
    parts = run_ranks(3, lambda c: weights_after(c, 20, tmp_path / "parts", resume=True))
    assert parts == whole
    assert read_log(tmp_path / "parts") == read_log(tmp_path / "whole")


def test_another_number_of_ranks_goes_on_within_rounding(tmp_path: Path) -> None:
    run_ranks(3, lambda c: weights_after(c, 8, tmp_path))
    run_ranks(2, lambda c: weights_after(c, 20, tmp_path, resume=True))
    alone = trainer(accumulate=2)
    want = alone.fit(batch, 20, progress=False)
    assert [e["loss"] for e in read_log(tmp_path)] == pytest.approx([e["loss"] for e in want], abs=1e-5)


def test_rank_0_alone_writes(tmp_path: Path) -> None:
    run_ranks(2, lambda c: weights_after(c, 4, tmp_path / str(c.Get_rank())))
    assert [one.name for one in tmp_path.iterdir()] == ["0"]


def test_ranks_begin_with_the_weights_of_rank_0() -> None:
    def work(communicator: ThreadCommunicator) -> dict[str, bytes]:
        made = trainer(communicator, seed=communicator.Get_rank())
        fit(communicator, made, 3)
        return bits(made)

    first, second = run_ranks(2, work)
    assert first == second


def test_gradients_travel_once_for_each_update() -> None:
    def work(communicator: ThreadCommunicator) -> int:
        fit(communicator, trainer(communicator, accumulate=4), 12)
        return communicator.calls["Alltoall"]

    assert run_ranks(2, work) == [3, 3]


def test_a_gradient_that_is_not_finite_stops_the_update_of_all() -> None:
    def work(communicator: ThreadCommunicator) -> tuple[dict[str, bytes], dict[str, bytes], int]:
        made = trainer(communicator)
        fit(communicator, made, 2)
        before = bits(made)

        def batches(number: int) -> dict[str, Array]:
            given = own(communicator, number)
            return {**given, "x": given["x"] * np.float32("inf" if communicator.Get_rank() else 1)}

        made.fit(batches, 3, progress=False)
        return before, bits(made), made.updates

    for before, after, updates in run_ranks(2, work):
        assert updates == 2
        assert all(before[name] == after[name] for name in INITIAL)


def failing(communicator: ThreadCommunicator, folder: Path, fail: Any) -> str:
    made = trainer(communicator, folder, accumulate=2)

    def batches(number: int) -> dict[str, Array]:
        if number == 6 and communicator.Get_rank() == 1:
            fail(communicator)
        return own(communicator, number)

    try:
        made.fit(batches, 20, progress=False, checkpoint_every=4)
    except (hx.Error, OSError) as error:
        return str(error)
    return ""


def test_what_fails_on_one_rank_ends_on_all_with_a_checkpoint(tmp_path: Path) -> None:
    def fail(communicator: ThreadCommunicator) -> None:
        raise OSError("the disk is gone")

    told = run_ranks(3, lambda c: failing(c, tmp_path, fail))
    assert told[1] == "the disk is gone"
    assert "another rank has failed" in told[0]
    assert "another rank has failed" in told[2]
    saved = trainer(folder=tmp_path, accumulate=2)
    saved.load()
    assert saved.calls == 6


def test_a_rank_that_dies_in_a_batch_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    def work(communicator: ThreadCommunicator) -> str:
        made = trainer(communicator, tmp_path)
        fit(communicator, made, 4)
        if communicator.Get_rank() == 1:
            made.net(**own(communicator, 4))  # so that the others are inside of a batch
            communicator.leave()
            return ""
        try:
            made.net(**own(communicator, 4))
            made.net(**own(communicator, 5))
        except hx.Error as error:
            return str(error)
        return "went on"

    assert "went on" not in run_ranks(2, work)
    saved = trainer(folder=tmp_path)
    saved.load()
    assert saved.calls == 4


def test_a_batch_in_which_others_die_is_not_saved(tmp_path: Path) -> None:
    def work(communicator: ThreadCommunicator) -> str:
        made = trainer(communicator, tmp_path)
        sums = communicator.Alltoall

        def dies(sendbuf: Any, recvbuf: Any) -> None:
            if communicator.calls.get("Alltoall", 0) == 6 and communicator.Get_rank() == 1:
                communicator.leave()
            sums(sendbuf, recvbuf)

        communicator.Alltoall = dies  # type: ignore[method-assign]
        try:
            fit(communicator, made, 20, checkpoint_every=4)
        except hx.Error as error:
            return str(error)
        return "went on"

    assert all("batch 6" in told for told in run_ranks(2, work))
    saved = trainer(folder=tmp_path)
    saved.load()
    assert saved.calls == 4


def error_of(work: Any, count: int = 2) -> str:
    """What all ranks say."""

    def run(communicator: ThreadCommunicator) -> str:
        with pytest.raises(hx.Error) as told:
            work(communicator)
        return str(told.value)

    first, *others = run_ranks(count, run)
    assert all(one == first for one in others)
    return first


def test_dropout_is_refused() -> None:
    assert "'drop'" in error_of(lambda c: trainer(c, dropout=True))


@pytest.mark.parametrize("options", [{"steps": 5}, {"steps": 4, "checkpoint_every": 3}])
def test_counts_that_end_between_two_updates_are_refused(options: dict[str, int]) -> None:
    assert "need a multiple of the 2 batches" in error_of(lambda c: fit(c, trainer(c, accumulate=2), **options))


def test_ranks_with_other_counts_are_refused() -> None:
    assert "different trainings" in error_of(lambda c: fit(c, trainer(c), 3 + c.Get_rank()))


def test_a_checkpoint_between_two_updates_is_refused(tmp_path: Path) -> None:
    trainer(folder=tmp_path, accumulate=2).fit(batch, 3, progress=False)
    assert "between two updates" in error_of(lambda c: weights_after(c, 8, tmp_path, resume=True))


def test_ranks_whose_weights_differ_are_found(tmp_path: Path) -> None:
    def work(communicator: ThreadCommunicator) -> None:
        made = trainer(communicator, tmp_path)

        def batches(number: int) -> dict[str, Array]:
            if number == 3 and communicator.Get_rank() == 1:
                made.net.update(b1=np.ones(12, np.float32))
            return own(communicator, number)

        made.fit(batches, 8, progress=False, checkpoint_every=2)

    assert "different weights" in error_of(work)


def test_buckets_travel_while_the_backward_pass_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_reduce, "BUCKET", 20)
    steps = run_ranks(2, lambda c: trainer(c).net.steps)[0]
    sums = [i for i, step in enumerate(steps) if step["source"] == "all_reduce" and step["kernel"] == "program"]
    assert len(sums) == 3
    for i, after in itertools.pairwise(sums):
        assert steps[i]["waited"] == after > i + 1  # steps of the backward pass, up to the next bucket
    assert all("adam" not in step["kernel"] for step in steps[: sums[-1]])
