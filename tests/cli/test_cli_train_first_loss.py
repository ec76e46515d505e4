"""The first loss of `hexane train` on a chip is that of fp32, also with large activations."""

from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from command import Cli
from decoders import decoder_weights, logits_in_numpy
from training_logs import read_log

VOCAB, SEQ = 40, 32
ONE = ("--steps", 1, "--accumulate", 1, "--threads", 1, "--seq", SEQ)
SIZES = ("--dim", 32, "--hidden", 48, "--layers", 2, "--heads", 4, "--kv-heads", 2, "--vocab", VOCAB)


def config(**changes: bool) -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(VOCAB, 32, 48, layers=2, heads=4, kv_heads=2, seq=SEQ, rope="half", **changes)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """One window: its place does not depend on what is drawn."""
    ids = np.random.default_rng(4).integers(0, VOCAB, SEQ + 1)
    hx.train.save_tokens(tmp_path / "t.bin", [ids], vocab=VOCAB)
    return tmp_path / "t.bin"


def first_loss(cli: Cli, data: Path, run: Path, *options: object) -> float:
    ended = cli("train", "--data", data, *ONE, *options, "-o", run)
    assert ended.code == 0, ended.err
    loss = read_log(run)[0]["loss"]
    assert isinstance(loss, float)
    return loss


@pytest.mark.parametrize("target", ["M4", "h13"])
@pytest.mark.parametrize("options", [(), ("--lora", 2)])
@pytest.mark.parametrize("largest", [0.0, 300.0, 20000.0])
def test_of_a_folder(cli: Cli, data: Path, tmp_path: Path, target: str, options: tuple[object], largest: float) -> None:
    """largest: one channel of one token, as the first token of published models has it. Its square is no fp16."""
    c = config(tied=False)
    weights = decoder_weights(c)
    ids = np.fromfile(data, "<u2").astype(np.int64)
    if largest:
        weights["model.embed_tokens.weight"][ids[3], 7] = largest
    hx.train.save_llama(tmp_path / "model", c, weights, format="hugging-face")
    got = first_loss(cli, data, tmp_path / "run", "--model", tmp_path / "model", "--target", target, *options)
    logits = logits_in_numpy(c, weights, ids[None, :-1])[0]
    top = logits.max(-1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    want = -logs[np.arange(SEQ), ids[1:]].mean()
    assert abs(got / want - 1) < 0.01
    assert abs(np.log(VOCAB) / want - 1) > 0.05  # zeros would have another loss


@pytest.mark.parametrize("target", ["M4", "h13"])
def test_of_a_new_model(cli: Cli, data: Path, tmp_path: Path, target: str) -> None:
    want = first_loss(cli, data, tmp_path / "host", *SIZES)
    assert abs(first_loss(cli, data, tmp_path / "chip", *SIZES, "--target", target) / want - 1) < 0.01
