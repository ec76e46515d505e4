"""Texts that `hexane train` makes on its way: they come from the weights of their step, and change none of them."""

import json
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from command import Cli, changed
from hexane.runtime.states import read_states
from sentencepieces import TEXT, tokenizer_bin, vocabulary
from training_logs import read_log

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
VOCAB, SEQ = len(vocabulary()[0]), 24
SIZES = ("--dim", 32, "--hidden", 48, "--layers", 2, "--heads", 4, "--kv-heads", 2, "--vocab", VOCAB, "--seq", SEQ)
COMMON = (*SIZES, "--accumulate", 2, "--threads", 1, "--lr", 1e-2, "--schedule", "constant", "--warm-up", 0)
SAMPLED = ("--sample-every", 2, "--prompt", "the cat")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(tokenizer_bin(*vocabulary()))
    return path


@pytest.fixture
def data(tmp_path: Path, tokenizer: Path) -> Path:
    ids = hx.train.load_tokenizer(tokenizer).encode(TEXT)
    hx.train.save_tokens(tmp_path / "tokens.bin", [ids] * 5, vocab=VOCAB)
    return tmp_path / "tokens.bin"


def assert_same_states(one: Path, other: Path) -> None:
    mine, theirs = (read_states(run / "checkpoint.hxc") for run in (one, other))
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        assert array.tobytes() == theirs[name].tobytes(), name


def test_samples_change_no_bit_of_the_training_nor_does_going_on(
    cli: Cli, data: Path, tokenizer: Path, tmp_path: Path
) -> None:
    plain, sampled, parts = (tmp_path / name for name in ("plain", "sampled", "parts"))
    ended = cli("train", "--data", data, *COMMON, "--steps", 6, "-o", plain)
    assert ended.code == 0, ended.err
    ended = cli("train", "--data", data, *COMMON, "--steps", 6, *SAMPLED, "--tokenizer", tokenizer, "-o", sampled)
    assert ended.code == 0, ended.err
    assert_same_states(sampled, plain)
    assert [{k: v for k, v in one.items() if k != "sample"} for one in read_log(sampled)] == read_log(plain)
    cli("train", "--data", data, *COMMON, "--steps", 3, *SAMPLED, "--tokenizer", tokenizer, "-o", parts)
    ended = cli("train", "--data", data, "--threads", 1, "--resume", "--steps", 6, *SAMPLED, "-o", parts)
    assert ended.code == 0, ended.err
    assert_same_states(parts, sampled)
    assert read_log(parts) == read_log(sampled)


def test_a_sample_is_what_generate_makes_of_the_checkpoint(
    cli: Cli, data: Path, tokenizer: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = cli(
        "train", "--data", data, *COMMON, "--steps", 60, "--sample-every", 20, "--prompt", "the cat", "--seed", 5,
        "--tokenizer", tokenizer, "-o", run,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    samples = {entry["step"]: entry["sample"] for entry in read_log(run) if "sample" in entry}
    assert list(samples) == [20, 40, 60]
    assert samples[20] != samples[60]
    assert (run / "tokenizer.bin").read_bytes() == tokenizer.read_bytes()
    found = cli("generate", run / "checkpoint.hxc", "--prompt", "the cat", "--seed", 65, "--steps", 64)  # 60 + 5
    assert found.out == samples[60] + "\n"
    assert "step 60, loss " in ended.err
    assert samples[60].strip() in ended.err


def test_a_sample_of_logits_that_are_not_finite_is_null(cli: Cli, data: Path, tokenizer: Path, tmp_path: Path) -> None:
    config = hx.train.LlamaConfig(vocab=VOCAB, dim=32, hidden=48, layers=1, heads=4, seq=SEQ)
    weights = {name: np.ones(shape, np.float32) for name, shape in config.shapes().items()}
    weights["model.norm.weight"] *= 3e38
    hx.train.save_llama(tmp_path / "large.bin", config, weights, format="llama2.c-v0")
    options = ("--model", tmp_path / "large.bin", "--steps", 1, "--accumulate", 1, "--warm-up", 0, "--threads", 1)
    ended = cli(
        "train", "--data", data, *options, "--sample-every", 1, "--tokenizer", tokenizer, "-o", tmp_path / "run"
    )
    assert ended.code == 0, ended.err
    assert read_log(tmp_path / "run")[0]["sample"] is None
    assert ": no sample" in ended.err


def test_mistakes_are_told_before_anything_is_computed(cli: Cli, data: Path, tokenizer: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.bin").write_bytes(tokenizer_bin(*vocabulary(20)))
    for arguments, code, words in (
        ((*COMMON, "--sample-every", 2, "-o", run), 1, "got no tokenizer, need --tokenizer FILE, or tokenizer.json or"),
        ((*COMMON, "--prompt", "the", "-o", run), 2, "got it without --sample-every"),
        ((*COMMON, *SAMPLED, "--tokenizer", data, "-o", run), 1, "tokens.bin"),
        ((*COMMON, *SAMPLED, "--tokenizer", tokenizer, "-o", other), 1, "got another one than"),
        ((*changed(COMMON, vocab=99), *SAMPLED, "--tokenizer", tokenizer, "-o", run), 1, "need"),
        ((*COMMON, *SAMPLED[:3], "cat" * 50, "--tokenizer", tokenizer, "-o", run), 1, f"fewer than the {SEQ} of a row"),
    ):
        ended = cli("train", "--data", data, *arguments, "--steps", 2)
        assert ended.code == code, (arguments, ended)
        assert words in ended.err, ended.err
    assert not (run / "log.jsonl").exists()


def test_what_a_terminal_would_obey_is_written_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    w = hx.param("w", np.ones((1, 4), np.float32))
    loss = hx.mse(hx.linear(hx.input("x", (2, 4)), w), hx.input("y", (2, 1)))
    trainer = hx.train.Trainer(loss, [w], hx.train.sgd(0.1), folder=tmp_path, threads=1)
    batch = {"x": np.ones((2, 4), np.float32), "y": np.ones((2, 1), np.float32)}
    entries = trainer.fit([batch] * 4, 4, sample=lambda: "a\x1b[2Jb\ncafé", sample_every=3)
    assert [entry.get("sample") for entry in entries] == [None, None, "a\x1b[2Jb\ncafé", None]
    assert capsys.readouterr().err.splitlines()[1:] == ["  a\\x1b[2Jb", "  café"]
    trainer.fit([batch] * 5, 5, sample=lambda: "a", sample_every=1, progress=False)
    assert not capsys.readouterr().err
    with pytest.raises(hx.Error, match="sample_every: got it without sample"):
        trainer.fit([batch], 1, sample_every=1)


def test_samples_of_adapters_are_what_generate_makes_with_them(
    cli: Cli, data: Path, tokenizer: Path, tmp_path: Path
) -> None:
    base, run = tmp_path / "base.bin", tmp_path / "run"
    cli("train", "--data", data, *COMMON, "--steps", 1, "--export", base, "-o", tmp_path / "first")
    options = ("--accumulate", 1, "--threads", 1, "--lr", 3e-2, "--seq", SEQ, "--seed", 5, "--lora", 4, "--steps", 8)
    first = ("train", "--data", data, "--model", base, *options, *SAMPLED, "--tokenizer", tokenizer)
    ended = cli(*first, "-o", run)
    assert ended.code == 0, ended.err
    texts = [entry["sample"] for entry in read_log(run) if "sample" in entry]
    common = ("--prompt", "the cat", "--seed", 13, "--steps", 64, "--threads", 1, "--tokenizer", tokenizer, "--json")
    for adapters in (run / "adapter", run / "checkpoint.hxc"):
        made = json.loads(cli("generate", base, *common, "--lora", adapters).out)
        known = hx.train.load_tokenizer(tokenizer)
        assert known.decode(made["prompt_tokens"] + made["tokens"]) == texts[-1]
    assert json.loads(cli("generate", base, *common).out)["tokens"] != made["tokens"]
    ended = cli("generate", tmp_path / "first" / "checkpoint.hxc", *common, "--lora", tmp_path)
    assert ended.code == 1
    assert "adapter_config.json" in ended.err
