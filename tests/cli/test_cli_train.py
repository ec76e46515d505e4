"""`hexane train`: a decoder on a file of tokens; nothing is lost, and a run that goes on is that of one run."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from command import Cli, changed, spawn
from decoders import logits_in_numpy
from hexane.graph import Array
from hexane.runtime.states import read_states
from training_logs import read_log

VOCAB, SEQ = 40, 16
SIZES = ("--dim", 32, "--hidden", 48, "--layers", 2, "--heads", 4, "--kv-heads", 2, "--vocab", VOCAB, "--seq", SEQ)
COMMON = (*SIZES, "--accumulate", 2, "--threads", 1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Each id is mostly followed by the next one."""
    rng = np.random.default_rng(4)
    steps = np.where(rng.random(4000) < 0.9, 1, rng.integers(0, VOCAB, 4000))
    path = tmp_path / "tokens.bin"
    (np.cumsum(steps) % VOCAB).astype("<u2").tofile(path)
    return path


def states(run: Path) -> dict[str, Array]:
    """Of the checkpoint; the options, which may say another count of steps, left out."""
    return {name: array for name, array in read_states(run / "checkpoint.hxc").items() if name != "notes"}


def assert_same(one: Path, other: Path) -> None:
    assert read_log(one) == read_log(other)
    mine, theirs = states(one), states(other)
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert (one / "model.bin").read_bytes() == (other / "model.bin").read_bytes()


def test_a_small_decoder_learns_and_is_exported(cli: Cli, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = cli("train", "--data", data, *COMMON, "--steps", 60, "--lr", 1e-2, "-o", run, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    entries = read_log(run)
    assert [e["call"] for e in entries] == list(range(120))
    assert found["last"]["step"] == entries[-1]["step"] == 60
    assert entries[-1]["tokens"] == 120 * SEQ
    assert set(entries[0]) == {"call", "step", "loss", "lr", "norm", "tokens"}
    assert abs(entries[0]["loss"] - np.log(VOCAB)) < 0.3
    assert np.mean([e["loss"] for e in entries[-10:]]) < 2.0
    assert found["loss"] == json.loads(cli("dashboard", run, "--json").out)["loss"]
    assert found["loss"] == np.mean([e["loss"] for e in entries[-2:]]) != found["last"]["loss"]
    config, weights = hx.train.read_llama(run / "model.bin")
    kept, trained = hx.train.read_llama(run / "checkpoint.hxc")
    assert (config.dim, config.kv_heads, config.vocab, config.seq) == (32, 2, VOCAB, SEQ)
    assert kept == config
    for name, array in trained.items():
        np.testing.assert_array_equal(weights[name], array, err_msg=name)
    tokens = np.arange(SEQ, dtype=np.int32)[None]
    got = hx.compile(hx.graph({"logits": hx.train.load_llama(found["model"]).logits}))(tokens)
    np.testing.assert_allclose(got, logits_in_numpy(kept, trained, tokens), rtol=1e-4, atol=1e-4)


def test_the_printed_loss_is_that_of_the_last_step(cli: Cli, data: Path, tmp_path: Path) -> None:
    """The mean of its batches, as the dashboard shows it."""
    run = tmp_path / "run"
    ended = cli("train", "--data", data, *COMMON, "--steps", 3, "-o", run)
    batches = [e["loss"] for e in read_log(run)][-2:]
    assert f"{run}: 3 steps, {3 * 2 * SEQ} tokens, loss {np.mean(batches):.4g} in the last step\n" in ended.out
    assert f"loss           {np.mean(batches):.4g}, best" in cli("dashboard", run).out


def test_the_learning_rate_warms_up_and_falls_to_a_tenth(cli: Cli, data: Path, tmp_path: Path) -> None:
    cli("train", "--data", data, *COMMON, "--steps", 20, "--warm-up", 4, "--lr", 1e-3, "-o", tmp_path / "run")
    rates = [e["lr"] for e in read_log(tmp_path / "run")][::2]
    down = 1e-4 + 0.5 * 9e-4 * (1 + np.cos(np.pi * np.arange(16) / 16))
    np.testing.assert_allclose(rates, [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, *down], rtol=1e-5)


def test_a_run_that_goes_on_is_that_of_one_run(cli: Cli, data: Path, tmp_path: Path) -> None:
    options = ("--schedule", "constant", "--warm-up", 3)
    cli("train", "--data", data, *COMMON, *options, "--steps", 11, "-o", tmp_path / "whole")
    cli("train", "--data", data, *COMMON, *options, "--steps", 4, "-o", tmp_path / "parts")
    ended = cli("train", "--data", data, "--threads", 1, "--steps", 11, "--resume", "-o", tmp_path / "parts")
    assert ended.code == 0, ended.err
    assert_same(tmp_path / "parts", tmp_path / "whole")
    assert read_log(tmp_path / "parts")[-1]["lr"] == np.float32(3e-4)


def test_the_whole_command_with_resume_goes_on_or_begins(cli: Cli, data: Path, tmp_path: Path) -> None:
    for steps in (3, 6, 6):
        ended = cli("train", "--data", data, *COMMON, "--steps", steps, "--resume", "-o", tmp_path / "run")
        assert ended.code == 0, ended.err
        assert f"run: {steps} steps" in ended.out
    assert len(read_log(tmp_path / "run")) == 12


def test_held_out_tokens_are_evaluated(cli: Cli, data: Path, tmp_path: Path) -> None:
    common = ("--steps", 6, "--eval-data", data, "--eval-every", 3, "--eval-batches", 5)
    ended = cli("train", "--data", data, *COMMON, *common, "-o", tmp_path / "run")
    assert ended.code == 0, ended.err
    entries = read_log(tmp_path / "run")
    assert [i for i, e in enumerate(entries) if "evaluation.loss" in e] == [5, 11]
    config, weights = hx.train.read_llama(tmp_path / "run" / "checkpoint.hxc")
    ids = np.fromfile(data, "<u2").astype(np.int64)[: 5 * SEQ + 1]
    logits = logits_in_numpy(config, weights, ids[:-1].reshape(5, SEQ))
    top = logits.max(-1, keepdims=True)
    logarithms = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    want = -np.take_along_axis(logarithms, ids[1:].reshape(5, SEQ, 1), -1).mean()
    assert abs(entries[-1]["evaluation.loss"] - want) < 1e-5


@pytest.mark.parametrize("form", ["model.bin", "folder"])
def test_training_begins_from_the_weights_of_a_file(cli: Cli, data: Path, tmp_path: Path, form: str) -> None:
    first = cli("train", "--data", data, *COMMON, "--steps", 3, "-o", tmp_path / "a", "--export", tmp_path / form)
    assert first.code == 0, first.err
    model = tmp_path / form
    ended = cli(
        "train", "--data", data, "--model", model, "--seq", 8, "--steps", 1, "-o", tmp_path / "b", "--accumulate", 1,
        "--lr", 1e-9, "--weight-decay", 0, "--threads", 1,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    was, now = (hx.train.read_llama(path)[1] for path in (model, tmp_path / "b" / "checkpoint.hxc"))
    for name, array in was.items():
        np.testing.assert_allclose(now[name], array, atol=1e-8, err_msg=name)
    small = cli("train", "--data", data, "--model", model, "--dim", 64, "-o", tmp_path / "c")
    assert "--dim: got 64 with --model" in small.err
    long = cli("train", "--data", data, "--model", model, "--seq", 64, "-o", tmp_path / "c")
    assert f"--seq: got 64, need at most the {SEQ}" in long.err


def test_a_chip_trains_with_a_scaled_loss(cli: Cli, data: Path, tmp_path: Path) -> None:
    common = ("--steps", 2, "--target", "h13", "--numerics", "ieee", "-o", tmp_path / "run", "--eval-data", data)
    ended = cli("train", "--data", data, *COMMON, *common, "--eval-every", 1)
    assert ended.code == 0, ended.err
    notes = hx.train.read_notes(tmp_path / "run" / "checkpoint.hxc")
    assert notes["training"]["target"] == "h13"
    cli("train", "--data", data, *COMMON, "--steps", 2, "-o", tmp_path / "host")
    mine, theirs = read_log(tmp_path / "run"), read_log(tmp_path / "host")
    np.testing.assert_allclose([e["norm"] for e in mine], [e["norm"] for e in theirs], rtol=2e-2)


def test_the_default_warm_up_stays_when_a_run_gets_more_steps(cli: Cli, data: Path, tmp_path: Path) -> None:
    for steps in (20, 200):
        cli(
            "train",
            "--data",
            data,
            *COMMON,
            "--schedule",
            "constant",
            "--steps",
            steps,
            "--resume",
            "-o",
            tmp_path / "a",
        )
    rates = [e["lr"] for e in read_log(tmp_path / "a")][::2]
    assert rates == [np.float32(1.5e-4), *[np.float32(3e-4)] * 199]


def test_mistakes_are_told_before_anything_is_computed(cli: Cli, data: Path, tmp_path: Path) -> None:
    short, large = tmp_path / "short.bin", tmp_path / "large.bin"
    np.zeros(SEQ, "<u2").tofile(short)
    np.full(500, VOCAB, "<u2").tofile(large)
    (tmp_path / "file").write_text("x")
    run = ("-o", tmp_path / "run")
    for arguments, words in (
        (run, "--data: got none, need a file of tokens, from any text file:\n  hexane tokenize TEXT.txt --learn 4096"),
        (("--data", tmp_path / "none.bin", *run), "none.bin, need a file of tokens, from any text file:"),
        (("--data", short, *COMMON, *run), f"got {SEQ} tokens of training, need at least {SEQ + 1}"),
        (("--data", large, *COMMON, *run), f"token 0: got the id {VOCAB}, need 0 to {VOCAB - 1}"),
        (("--data", data, *COMMON, "-o", tmp_path / "file"), "need a folder"),
        (("--data", data, *COMMON, "-o", tmp_path / "file" / "run"), "need a place that can be written to"),
        (("--data", data, *changed(COMMON, heads=3), *run), "need a divisor of dim 32"),
        (("--data", data, *COMMON, *run, "--model", "stories1M"), "--model: got 'stories1M', need stories15M"),
        (("--data", data, *COMMON, *run, "--export", tmp_path / "no" / "m.bin"), "got no folder"),
        (("--data", data, *COMMON, *run, "--export", tmp_path), "got something that is there already"),
        (("--data", data, *COMMON, *run, "--steps", 5, "--warm-up", 5), "warm_up: got 5, need fewer than the 5"),
        (("--data", data, *COMMON, *run, "--eval-data", short), "tokens to evaluate on"),
        (("--data", data, *COMMON, *run, "--target", "M99"), "M99"),
        (("--data", data, *COMMON, *run, "--lr", 0), "lr: got 0"),
    ):
        ended = cli("train", *arguments)
        assert ended.code == 1, (arguments, ended)
        assert words in ended.err, ended.err
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_the_checkpoint_of_another_run_is_left_as_it_is(cli: Cli, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    cli("train", "--data", data, *COMMON, "--steps", 2, "-o", run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    longer = tmp_path / "longer.bin"
    longer.write_bytes(data.read_bytes() * 2)
    for arguments, words in (
        (("--data", data, *COMMON), "need --resume to go on from it, or another folder"),
        (("--data", data, "--resume", "--dim", 64), "dim: got 32, need the 64 that is asked for"),
        (("--data", data, "--resume", "--model", "stories15M"), "vocab: got 40, need the 32000"),
        (("--data", data, "--resume", "--seed", 3), "seed: got 3, need 0: the checkpoint's"),
        (("--data", data, "--resume", "--accumulate", 3), "accumulate: got 3, need 2: the checkpoint's"),
        (("--data", longer, "--resume"), "got 8000 tokens, need the 4000 that the run began with"),
    ):
        ended = cli("train", *arguments, "--steps", 4, "-o", run)
        assert ended.code == 1, (arguments, ended)
        assert words in ended.err, ended.err
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    (run / "checkpoint.hxc").write_bytes(before["checkpoint.hxc"][:-100])
    ended = cli("train", "--data", data, "--resume", "--steps", 4, "-o", run)
    assert ended.code == 1
    assert "checkpoint.hxc" in ended.err


def test_a_full_disk_leaves_the_checkpoint_before(cli: Cli, data: Path, tmp_path: Path) -> None:
    """A limit of a file's size stands for the disk: the log fits, the checkpoint does not."""
    run = tmp_path / "run"
    cli("train", "--data", data, *COMMON, "--steps", 2, "-o", run)
    before = (run / "checkpoint.hxc").read_bytes()
    code = (
        "import resource, signal, sys; from hexane.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2}, {len(before) // 2}))\n"
        f"sys.argv = ['hexane', 'train', '--data', {str(data)!r}, '--resume', '--steps', '6', '-o', {str(run)!r}]\n"
        "main()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert ended.returncode == 1
    assert "checkpoint.hxc: cannot write: File too large" in ended.stderr
    assert (run / "checkpoint.hxc").read_bytes() == before
    cli("train", "--data", data, "--threads", 1, "--resume", "--steps", 6, "-o", run)
    assert [e["call"] for e in read_log(run)] == list(range(12))


def started(data: Path, run: Path, steps: int) -> "subprocess.Popen[str]":
    options = ("--schedule", "constant", "--warm-up", 5, "--steps", steps, "--checkpoint-every", 10, "--resume")
    return spawn("train", "--data", data, *COMMON, *options, "-o", run, stdout=subprocess.DEVNULL)


def count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(process: "subprocess.Popen[str]", path: Path, lines: int) -> None:
    while process.poll() is None and count(path) < lines:
        time.sleep(0.001)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_a_checkpoint_that_goes_on(
    cli: Cli, data: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    run = tmp_path / "run"
    with started(data, run, 100_000) as process:
        wait_for(process, run / "log.jsonl", 30)
        process.send_signal(number)
        told = process.communicate(timeout=60)[1]
    assert process.returncode == code
    entries = read_log(run)
    assert f"checkpoint.hxc has {len(entries) // 2} step" in told
    assert read_states(run / "checkpoint.hxc")["calls"][0] == len(entries)
    steps = len(entries) // 2 + 5
    cli("train", "--data", data, "--threads", 1, "--resume", "--steps", steps, "-o", run)
    options = ("--schedule", "constant", "--warm-up", 5, "--steps", steps)
    cli("train", "--data", data, *COMMON, *options, "-o", tmp_path / "whole")
    assert_same(run, tmp_path / "whole")


@pytest.mark.parametrize("place", ["start_of", "DecoderTraining", "keep_tokenizer", "_head"])
def test_sigterm_before_the_first_batch_leaves_no_folder(
    cli: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    module = importlib.import_module("hexane.cli.train")
    if place == "keep_tokenizer":
        monkeypatch.setattr(module, "tokenizer_of", lambda *given, **options: None)
    monkeypatch.setattr(module, place, lambda *given, **options: signal.raise_signal(signal.SIGTERM))
    tokenizer = ("--tokenizer", data) if place == "keep_tokenizer" else ()
    assert cli("train", "--data", data, *COMMON, *tokenizer, "-o", tmp_path / "a" / "run").code == 143
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_loses_at_most_the_steps_since_the_checkpoint(
    cli: Cli, data: Path, tmp_path: Path, request: pytest.FixtureRequest, kills: int
) -> None:
    seed = request.config.getoption("--seed")
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    run, steps, interval = tmp_path / "run", 250 * kills, 2 * 10
    for _ in range(kills):
        done = count(run / "log.jsonl")
        with started(data, run, steps) as process:
            wait_for(process, run / "log.jsonl", done + int(rng.integers(-10, 120)))
            time.sleep(float(rng.random() * 0.02))
            process.kill()
        path = run / "checkpoint.hxc"
        calls = int(read_states(path)["calls"][0]) if path.exists() else 0
        assert calls >= count(run / "log.jsonl") - interval - 1
    with started(data, run, steps) as process:
        assert process.wait() == 0, process.communicate()[1]
    with started(data, tmp_path / "whole", steps) as process:
        assert process.wait() == 0
    assert_same(run, tmp_path / "whole")


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
def test_a_chip_s_programs_train_and_a_trace_shows_the_steps(cli: Cli, data: Path, tmp_path: Path) -> None:
    bad = cli("train", "--data", data, *COMMON, "--variant", "ane-head", "-o", tmp_path / "bad")
    assert "variant: got 'ane-head' for the host, need a chip as the target" in bad.err
    losses = []
    for given in (("host",), ("M4",), ("M4", "--variant", "ane-head")):
        run = tmp_path / "-".join(given)
        trace = run.with_suffix(".json")
        options = ("--steps", 4, "--lr", 1e-2, "--trace", trace, "-o", run)
        ended = cli("train", "--data", data, *COMMON, *options, "--target", *given)
        assert ended.code == 0, ended.err
        losses.append([entry["loss"] for entry in read_log(run)])
        bars = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
        assert {"adam_step", "cross_entropy"} & {bar["name"] for bar in bars}
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=0.01)
