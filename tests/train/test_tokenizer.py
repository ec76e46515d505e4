"""Tokenizers of files: ids against joining pieces by their scores, texts back from ids, damaged files."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from sentencepieces import TEXT, joined_by_score, tokenizer_bin, vocabulary

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")


def saved(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(data)
    return path


def random_text(rng: np.random.Generator) -> str:
    letters = [*"the cat sono ab  ab aaa bna.\n", "é", "日", "本", "語", "🙂", "<s>", "<0x41>", "\n<s>\n", "ba", "ab"]
    return "".join(rng.choice(letters, int(rng.integers(0, 40))))


@pytest.mark.parametrize("seed", range(4))
def test_ids_are_those_of_joining_by_score(seed: int, tmp_path: Path) -> None:
    pieces, scores = vocabulary()
    found = hx.train.load_tokenizer(saved(tmp_path, tokenizer_bin(pieces, scores)))
    assert (found.vocab, found.begin) == (len(pieces), 1)
    rng = np.random.default_rng(seed)
    for text in ["", " ", "the cat", TEXT, *(random_text(rng) for _ in range(200))]:
        want = joined_by_score(text, pieces, scores)
        assert found.encode(text, begin=False) == want
        assert found.encode(text) == [1, *want]
        assert found.decode(found.encode(text)) == text


@pytest.mark.parametrize("joins_lines", [False, True])
def test_long_texts_are_encoded_in_parts_that_change_nothing(
    joins_lines: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, scores = vocabulary()
    if joins_lines:
        pieces, scores = [*pieces, "\n", "\n\n", "t\n"], [*scores, -900.0, -901.0, -902.0]
    found = hx.train.load_tokenizer(saved(tmp_path, tokenizer_bin(pieces, scores)))
    monkeypatch.setattr("hexane.train.text.tokenizer.PART", 10)
    rng = np.random.default_rng(3)
    for _ in range(100):
        text = "".join(rng.choice([*"the cat\n\n\n"], 60))
        assert found.encode(text, begin=False) == joined_by_score(text, pieces, scores)
    assert found._lines_apart is not joins_lines


def test_files_of_older_writers_have_characters_for_bytes(tmp_path: Path) -> None:
    pieces, scores = vocabulary()
    older = pieces[:3] + [chr(byte) for byte in range(256)] + pieces[259:]
    found = hx.train.load_tokenizer(saved(tmp_path, tokenizer_bin(older, scores)))
    for text in ("the cat\tsat", "語🙂"):
        assert found.encode(text, begin=False) == joined_by_score(text, pieces, scores)
        assert found.decode(found.encode(text)) == text


def test_a_tokenizer_json_begins_documents_as_it_says(tmp_path: Path) -> None:
    ids = {"<pad>": 0, "<s>": 1, "a": 2, "b": 3, "ab": 4, "<unk>": 9}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[("a", "b")], unk_token="<unk>"))
    inner.add_special_tokens(["<s>", "<pad>"])
    inner.enable_truncation(3)
    inner.enable_padding(length=8, pad_id=0, pad_token="<pad>")
    path = tmp_path / "tokenizer.json"
    inner.save(str(path))
    found = hx.train.load_tokenizer(path)
    assert (found.vocab, found.begin) == (10, 1)
    assert found.encode("abbaaab") == [1, 4, 3, 2, 2, 4]

    inner.post_processor = tokenizers.processors.TemplateProcessing("<pad> $A", special_tokens=[("<pad>", 0)])
    inner.save(str(path))
    assert hx.train.load_tokenizer(path).encode("ab") == [0, 4]


def test_a_tokenizer_without_a_beginning_adds_none(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0}, merges=[])).save(str(path))
    found = hx.train.load_tokenizer(path)
    assert found.begin is None
    assert found.encode("aa") == [0, 0]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": {"content": "<|user|>", "special": True}}}),
        ("added_tokens.json", {"<|user|>": 1}),
    ],
)
def test_tokens_that_the_files_next_to_it_add_must_be_in_tokenizer_json(
    name: str, fields: dict[str, object], tmp_path: Path
) -> None:
    """transformers adds them; without them a chat's marks are plain text."""
    path = tmp_path / "tokenizer.json"
    (tmp_path / name).write_text(json.dumps(fields))
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0}, merges=[]))
    inner.save(str(path))
    with pytest.raises(
        hx.Error, match=r"got no token '<\|user\|>', which tokenizer_config.json or added_tokens.json adds"
    ):
        hx.train.load_tokenizer(path)
    inner.add_special_tokens(["<|user|>"])
    inner.save(str(path))
    assert hx.train.load_tokenizer(path).encode("a<|user|>") == [0, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"got 0 bytes, need a tokenizer.bin"),
        (struct.pack("<i", 7), r"got 0 tokens, need more than the 3 markers"),
        (struct.pack("<ifi", 7, 0.0, 2**31 - 1) + b"abc", r"token 0: got 2147483647 bytes of text, need 1 to 3"),
        (struct.pack("<ifi", 7, 0.0, -1) + b"abc", r"token 0: got 4294967295 bytes"),
        (struct.pack("<ifi", 7, float("nan"), 1) + b"a", r"token 0: got the score nan, need a finite one"),
        (struct.pack("<ifi", 7, 0.0, 2) + b"\xff\xff", r"token 0: got b'\\xff\\xff', need UTF-8"),
        (struct.pack("<i", 7) + (struct.pack("<fi", 0, 1) + b"a") * 5, r"tokens 3 and 4: got 'a' twice"),
        (struct.pack("<i", 7) + (struct.pack("<fi", 0, 1) + b"a") + b"1234", r"token 1: got 4 bytes, need a score"),
    ],
)
def test_damaged_files_are_named(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match=message):
        hx.train.load_tokenizer(saved(tmp_path, data))


def test_damaged_files_are_errors_and_nothing_else(tmp_path: Path) -> None:
    good = tokenizer_bin(*vocabulary())
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    text = json.dumps(json.loads(inner.to_str())).encode()
    rng = np.random.default_rng(1)
    for _ in range(60):
        for name, data in (("t.bin", good), ("t.json", text)):
            changed = bytearray(data)
            if rng.integers(2):
                del changed[rng.integers(len(changed)) :]
            else:
                for at in rng.integers(0, len(changed), 3):
                    changed[at] = int(rng.integers(256))
            (tmp_path / name).write_bytes(bytes(changed))
            try:
                found = hx.train.load_tokenizer(tmp_path / name)
            except hx.Error:
                continue
            assert all(0 <= i < found.vocab for i in found.encode("the cat ab"))


def test_ids_beyond_the_vocabulary_are_not_decoded(tmp_path: Path) -> None:
    pieces, scores = vocabulary()
    found = hx.train.load_tokenizer(saved(tmp_path, tokenizer_bin(pieces, scores)))
    with pytest.raises(hx.Error, match=f"got the id {len(pieces)}, need one below"):
        found.decode([5, len(pieces)])
