"""`hexane tokenize`."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
import tiny_llm
from command import Cli
from sentencepieces import joined_by_score, tokenizer_bin, vocabulary

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(tokenizer_bin(*vocabulary()))
    return path


def text(path: Path, content: str) -> Path:
    path.write_bytes(content.encode())
    return path


def ids(content: str) -> list[int]:
    return [1, *joined_by_score(content, *vocabulary())]


def test_texts_become_tokens_document_by_document(cli: Cli, tokenizer: Path, tmp_path: Path) -> None:
    one, two = text(tmp_path / "one.txt", "the cat\nsat"), text(tmp_path / "two.txt", "the mat é")
    output = tmp_path / "tokens.bin"
    ended = cli("tokenize", one, two, "--tokenizer", tokenizer, "-o", output)
    want = ids("the cat\nsat") + ids("the mat é")
    assert ended.code == 0, ended.err
    assert np.fromfile(output, "<u2").tolist() == want
    assert ended.out == f"{output}: {len(want)} tokens in 2 documents, uint16, ids below {len(vocabulary()[0])}\n"


def test_a_separator_parts_documents(cli: Cli, tokenizer: Path, tmp_path: Path) -> None:
    path = text(tmp_path / "all.txt", "the cat\n<|end|>\n<|end|>the mat")
    output = tmp_path / "tokens.bin"
    ended = cli("tokenize", path, "--tokenizer", tokenizer, "-o", output, "--separator", "<|end|>", "--json")
    found = json.loads(ended.out)
    want = ids("the cat") + ids("the mat")
    assert (found["documents"], found["tokens"], found["dtype"], found["begin"]) == (2, len(want), "uint16", 1)
    assert np.fromfile(output, "<u2").tolist() == want


def test_a_large_vocabulary_is_written_in_uint32(cli: Cli, tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 5, "b": 70000}, merges=[]))
    inner.save(str(tmp_path / "tokenizer.json"))
    output = tmp_path / "tokens.bin"
    path = text(tmp_path / "a.txt", "aba")
    ended = cli("tokenize", path, "--tokenizer", tmp_path / "tokenizer.json", "-o", output)
    assert np.fromfile(output, "<u4").tolist() == [5, 70000, 5]
    assert "note: uint32, as 70001 ids do not fit into uint16" in ended.out
    assert "note: the tokenizer has no mark for the beginning of a document" in ended.out


def test_what_is_wrong_is_said_and_nothing_written(cli: Cli, tokenizer: Path, tmp_path: Path) -> None:
    good, output = text(tmp_path / "good.txt", "the cat"), tmp_path / "tokens.bin"
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"the \xff cat")
    empty = text(tmp_path / "empty.txt", "")
    cases = {
        "bad.txt: byte 4: got 0xff, need UTF-8": (good, bad, "--tokenizer", tokenizer),
        "empty.txt: got no text": (empty, "--tokenizer", tokenizer),
        "missing.txt: No such file": (tmp_path / "missing.txt", "--tokenizer", tokenizer),
        "bad.txt: token 0": (good, "--tokenizer", bad),
    }
    for message, args in cases.items():
        ended = cli("tokenize", *args, "-o", output)
        assert ended.code == 1
        assert message in ended.err
        assert not output.exists()
    ended = cli("tokenize", good, "--tokenizer", tokenizer, "-o", good)
    assert "got an input as the output" in ended.err
    assert good.read_bytes() == b"the cat"
    ended = cli("tokenize", good, "--tokenizer", tokenizer, "-o", tmp_path / "missing" / "tokens.bin")
    assert ended.code == 1
    assert ended.err.startswith("error: --output: ")


def test_a_tokenizer_is_learnt_from_the_texts(cli: Cli, tmp_path: Path) -> None:
    words = "the cat sat on the mat, naïve 日本\n"
    texts = [
        text(tmp_path / "a.txt", words * 20 + "<end>" + words),
        text(tmp_path / "b.txt", "and then the cat saw it"),
    ]
    found = []
    for name in ("one", "two"):
        made, out = tmp_path / f"{name}.json", tmp_path / f"{name}.bin"
        ended = cli(
            "tokenize", *texts, "--learn", 280, "--tokenizer", made, "-o", out, "--separator", "<end>", "--json"
        )
        assert ended.code == 0, ended.err
        found.append((made.read_bytes(), out.read_bytes()))
    assert found[0] == found[1]
    told = json.loads(ended.out)
    assert (told["documents"], told["begin"], told["vocab"]) == (3, 0, 280)
    known = tokenizers.Tokenizer.from_file(str(made))
    tokens = np.fromfile(out, "<u2")
    ends = [*np.flatnonzero(tokens == 0), len(tokens)]
    documents = [known.decode(tokens[a + 1 : b].tolist()) for a, b in pairwise(ends)]
    assert documents == [(words * 20).strip(), words.strip(), "and then the cat saw it"]
    assert len(tokens) < len((words * 21).encode()) / 2
    other = text(tmp_path / "c.txt", "Ein anderer Text: Ä\x00")
    assert cli("tokenize", other, "--tokenizer", made, "-o", out).code == 0
    assert known.decode(np.fromfile(out, "<u2")[1:].tolist()) == "Ein anderer Text: Ä\x00"


def test_a_learnt_tokenizer_is_named_with_its_size(cli: Cli, tmp_path: Path) -> None:
    made, out = tmp_path / "made.json", tmp_path / "out.bin"
    some = text(tmp_path / "a.txt", "the cat sat on the mat " * 20)
    lines = cli("tokenize", some, "--learn", 400, "--tokenizer", made, "-o", out).out.splitlines()
    size = json.loads(cli("tokenize", some, "--tokenizer", made, "-o", out, "--json").out)["vocab"]
    fewer = f"{size} tokens instead of 400: these texts have no more pairs to merge"
    assert lines[0] == f"{made}: {fewer}, learnt from 1 file"
    assert lines[1].startswith(f"{out}: ")
    (tmp_path / "made.json").unlink()
    lines = cli("tokenize", some, "--learn", 260, "--tokenizer", made, "-o", out).out.splitlines()
    assert lines[0] == f"{made}: 260 tokens, learnt from 1 file"


def test_a_tokenizer_that_is_there_is_not_replaced_by_a_learnt_one(cli: Cli, tokenizer: Path, tmp_path: Path) -> None:
    some = text(tmp_path / "a.txt", "the cat")
    there = text(tmp_path / "there.json", "{}")
    for made, count, words in (
        (there, 300, "there.json is there already, need another name, or no --learn"),
        (tokenizer, 300, "need a name that ends in .json"),
        (tmp_path / "new.json", 256, "vocab: got 256, need 257 (all bytes and a mark)"),
        (tmp_path / "none" / "new.json", 300, "--tokenizer"),
    ):
        ended = cli("tokenize", some, "--learn", count, "--tokenizer", made, "-o", tmp_path / "out.bin")
        assert ended.code == 1, ended
        assert words in ended.err, ended.err
    assert there.read_text() == "{}"
    assert not (tmp_path / "out.bin").exists()


def test_conversations_become_tokens_with_marks_and_train_a_model(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    model, output, run = tiny_llm.write(tmp_path / "model"), tmp_path / "tokens.bin", tmp_path / "run"
    talk = [{"role": "user", "content": "say a"}, {"role": "assistant", "content": "aaaa"}]
    lines = [json.dumps({"messages": talk}), json.dumps({"prompt": "say b", "completion": "bb"})]
    lines.append(json.dumps({"messages": [*talk, {"role": "user", "content": "x" * 90}, talk[1]]}))
    lines.append(json.dumps({"prompt": "y" * 90, "completion": "late"}))
    conversations = text(tmp_path / "data.jsonl", "\n".join(lines))
    ended = cli("tokenize", conversations, "--chat", "--tokenizer", model, "-o", output)
    assert ended.code == 0, ended.err
    assert "in 4 conversations, the longest of 145; 23 are learnt; uint16" in ended.out
    found = json.loads(cli("tokenize", conversations, "--chat", "--tokenizer", model, "-o", output, "--json").out)
    assert (found["learnt"], found["conversations"], found["unended"]) == (23, 4, 0)
    options = ("--model", model, "--seq", 48, "--batch", 3, "--accumulate", 1, "--threads", 1, "--lr", 1e-2)
    ended = cli(
        "train", "--data", output, "--eval-data", output, *options, "--steps", 40, "--eval-every", 40, "-o", run
    )
    assert ended.code == 0, ended.err
    assert "of 4 conversations 1 are longer than a row of 48 tokens and lose their ends; 1 have no answer" in ended.err
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert log[-1]["evaluation.loss"] < log[0]["loss"] / 4
    made = hx.train.Generator(run / "checkpoint.hxc", options=hx.Options(target="host", threads=1))
    asked = hx.train.load_tokenizer(model / "tokenizer.json")
    prompt = asked.encode("<|im_start|>user\nsay b<|im_end|>\n<|im_start|>assistant\n", begin=False)
    answer = list(made(prompt, steps=8, temperature=0, stop=asked.stops))
    assert asked.decode(answer) == "bb"


def test_what_is_wrong_with_conversations_is_said(cli: Cli, tokenizer: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    model, output = tiny_llm.write(tmp_path / "model"), tmp_path / "tokens.bin"
    good = text(tmp_path / "good.jsonl", json.dumps({"prompt": "a", "completion": "b"}))
    bad = text(tmp_path / "bad.jsonl", good.read_text() + "\nno JSON\n")
    (tmp_path / "none").mkdir()
    cases = {
        "bad.jsonl: line 2: Expecting value": (bad, "--tokenizer", model),
        "got no chat template": (good, "--tokenizer", tokenizer),
        "none with no tokenizer in it": (good, "--tokenizer", tmp_path / "none"),
        "empty.jsonl: got no conversation": (text(tmp_path / "empty.jsonl", "\n"), "--tokenizer", model),
    }
    for message, args in cases.items():
        ended = cli("tokenize", *args, "--chat", "-o", output)
        assert ended.code == 1, ended
        assert message in ended.err
        assert not output.exists()
    ended = cli("tokenize", good, "--chat", "--tokenizer", model, "-o", output, "--separator", "x")
    assert ended.code == 2
    assert "--separator: got it with --chat" in ended.err
