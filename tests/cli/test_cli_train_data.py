"""`hexane train` on tokens of another vocabulary than the model's."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
import tiny_llm
from command import Cli
from sentencepieces import tokenizer_bin, vocabulary

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
SMALL = ("--dim", 8, "--hidden", 8, "--layers", 1, "--heads", 1, "--seq", 4)
ONE = ("--steps", 1, "--accumulate", 1, "--threads", 1)
TEXT = "the cat sat on the mat " * 9


def text(path: Path) -> Path:
    path.write_text(TEXT)
    return path


@pytest.fixture
def data(cli: Cli, tmp_path: Path) -> Path:
    """Tokens of the tokenizer in `model`."""
    tiny_llm.write(tmp_path / "model", seq=16)
    made = tmp_path / "tokens.bin"
    ended = cli("tokenize", text(tmp_path / "text.txt"), "--tokenizer", tmp_path / "model", "-o", made)
    assert ended.code == 0, ended.err
    return made


def test_tokens_of_the_model_train_it_without_a_word(cli: Cli, data: Path, tmp_path: Path) -> None:
    record = json.loads((tmp_path / "tokens.bin.json").read_text())
    assert (record["tokens"], record["vocab"], record["dtype"]) == (1 + len(TEXT), tiny_llm.VOCAB, "uint16")
    inner = tokenizers.Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    inner.save(str(tmp_path / "model" / "tokenizer.json"), pretty=True)
    for options in (("--model", tmp_path / "model"), (*SMALL, "--vocab", tiny_llm.VOCAB), (*SMALL, "--vocab", 600)):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        ended = cli("train", "--data", data, "--eval-data", data, *options, *ONE, "-o", tmp_path / "run")
        assert (ended.code, ended.err) == (0, "")


def test_a_vocabulary_of_another_size_is_refused(cli: Cli, data: Path, tmp_path: Path) -> None:
    first = ("train", "--data", data, *SMALL, "--vocab", 32000, *ONE, "-o", tmp_path / "run")
    ended = cli(*first)
    assert ended.code == 1
    assert "tokens.bin: got tokens of a vocabulary of 99 for a model of 32,000, need tokens of the model's" in ended.err
    assert "--vocab 99 makes a new model of them" in ended.err
    assert not (tmp_path / "run").exists()
    ended = cli(*first, "--force")
    assert ended.code == 0, ended.err
    assert "note: --data: " in ended.err
    # All ids of this text are below 98, yet the vocabulary is not the model's.
    fewer = cli("train", "--data", data, *SMALL, "--vocab", 98, *ONE, "-o", tmp_path / "fewer")
    assert "got tokens of a vocabulary of 99 for a model of 98" in fewer.err


def test_tokens_of_another_tokenizer_are_refused(cli: Cli, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "model" / "tokenizer.json"
    fields = json.loads(path.read_text())
    words = fields["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    path.write_text(json.dumps(fields))
    first = ("train", "--data", data, "--model", tmp_path / "model", *ONE, "-o", tmp_path / "run")
    ended = cli(*first)
    assert ended.code == 1
    assert "got tokens of another tokenizer than that of the model, need tokens of the model's" in ended.err
    plain = tmp_path / "plain.bin"
    shutil.copyfile(data, plain)
    held = cli(*first[:1], "--data", plain, "--eval-data", data, *first[3:])
    assert "[train] --eval-data: " in held.err
    sampled = ("--tokenizer", path, "--sample-every", 1, "--prompt", "a")
    other = cli("train", "--data", data, *SMALL, "--vocab", 99, *ONE, *sampled, "-o", tmp_path / "run")
    assert "another tokenizer than that of --tokenizer" in other.err
    assert cli(*first, "--force").code == 0


def test_files_without_a_record_get_a_word(cli: Cli, data: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens.bin.json").unlink()
    ended = cli("train", "--data", data, *SMALL, "--vocab", 32000, *ONE, "-o", tmp_path / "run")
    assert ended.code == 0, ended.err
    assert "tokens.bin has no record of its tokenizer" in ended.err


def test_a_record_of_another_file_is_refused(cli: Cli, data: Path, tmp_path: Path) -> None:
    np.arange(90, dtype="<u2").tofile(data)
    first = ("train", "--data", data, *SMALL, "--vocab", 99, *ONE, "-o", tmp_path / "run")
    assert f"got 90 ids in uint16, need the {1 + len(TEXT)} in uint16 of tokens.bin.json" in cli(*first).err
    (tmp_path / "tokens.bin.json").write_text("{")
    assert "tokens.bin.json: got something else than a record of tokens" in cli(*first).err


def test_ids_are_read_in_the_width_of_their_record(tmp_path: Path) -> None:
    hx.train.save_tokens(tmp_path / "t.bin", [range(100)], vocab=200)
    wide = hx.train.TokenFile(tmp_path / "t.bin", vocab=70000)
    assert wide[:].tolist() == list(range(100))


def test_a_tokenizer_has_one_digest_in_both_formats(tmp_path: Path) -> None:
    pieces, scores = vocabulary()
    (tmp_path / "a.bin").write_bytes(tokenizer_bin(pieces, scores))
    words = {one.replace("\n<", "<").replace(">\n", ">").replace(" ", "\u2581"): i for i, one in enumerate(pieces)}
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[])).save(str(tmp_path / "a.json"))
    one, other = (hx.train.load_tokenizer(tmp_path / name).digest for name in ("a.bin", "a.json"))
    assert one == other
