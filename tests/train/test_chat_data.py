"""Conversations as tokens: answers and their end marks are learnt, and nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
import tiny_llm
from decoders import logits_in_numpy
from hexane.train.text import ChatData, load_chat_template, load_tokenizer, save_conversations, save_tokens

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
GENERATION = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}"
    "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi <user>"},
    {"role": "assistant", "content": "ho ho"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": "so long"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.write(tmp_path_factory.mktemp("chats") / "model")


def data(folder: Path, template: str | None = None) -> ChatData:
    made = load_chat_template(folder) if template is None else hx.train.text.ChatTemplate(template, {})
    return ChatData(load_tokenizer(folder / "tokenizer.json"), made)


def parts(folder: Path, ids: list[int], learnt: Any) -> list[str]:
    """The runs of tokens that are learnt, as the texts of tokens."""
    names = dict(enumerate([*tiny_llm.LETTERS, *tiny_llm.MARKS]))
    text = "".join(names[i] if one else "\0" for i, one in zip(ids, learnt, strict=True))
    return [one for one in text.split("\0") if one]


@pytest.mark.parametrize("template", [None, GENERATION])
def test_answers_and_their_end_marks_are_learnt(folder: Path, template: str | None) -> None:
    ids, learnt = data(folder, template)(TALK)
    assert parts(folder, ids, learnt) == ["ho ho<|im_end|>", "so long<|im_end|>"]
    prompt = load_tokenizer(folder / "tokenizer.json").encode(load_chat_template(folder)(TALK[:2]), begin=False)
    assert ids[: len(prompt)] == prompt  # what `hexane generate --chat` gives the model
    assert not learnt[: len(prompt)].any()


@pytest.mark.parametrize("template", [None, GENERATION])
def test_an_answer_of_weight_0_is_not_learnt(folder: Path, template: str | None) -> None:
    talk = [dict(one) for one in TALK]
    talk[2]["weight"] = 0
    assert parts(folder, *data(folder, template)(talk)) == ["so long<|im_end|>"]


def test_characters_of_several_tokens_are_learnt_as_a_whole(tmp_path: Path) -> None:
    text = "<|im_start|>user\n naïve 日本 <|im_end|>\nassistant " * 9
    (tmp_path / "t.json").write_bytes(hx.train.learn_tokenizer([text], 280))
    tokenizer = load_tokenizer(tmp_path / "t.json")
    talk = [{"role": "user", "content": "日本?"}, {"role": "assistant", "content": "naïve 猫 日本"}]
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    made = ChatData(
        tokenizer, hx.train.text.ChatTemplate(template + "{{ 'assistant: ' if add_generation_prompt }}", {})
    )
    ids, learnt = made(talk)
    assert tokenizer.decode(ids) == "user: 日本?\nassistant: naïve 猫 日本\n"
    # A token that begins in the prompt, such as a space and a letter, belongs to the answer whose letter it has.
    assert tokenizer.decode([i for i, one in zip(ids, learnt, strict=True) if one]).strip() == "naïve 猫 日本"
    assert made.unended == 1


def test_a_template_that_writes_earlier_answers_otherwise_is_refused(folder: Path) -> None:
    changing = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ 'thought ' if loop.last and m.role == 'assistant' }}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    with pytest.raises(hx.Error, match="got an answer, message 3, that the chat template writes otherwise"):
        data(folder, changing)(TALK)
    assert parts(folder, *data(folder, changing)(TALK[3:])) == ["thought so long<|im_end|>"]


def test_wrong_lines_are_named_by_number(folder: Path, tmp_path: Path) -> None:
    good = json.dumps({"messages": TALK, "id": 7, "weight": 2.5})
    pair = json.dumps({"prompt": "hi", "completion": "ho"})
    path = tmp_path / "data.jsonl"
    path.write_text(f"{good}\n\n{pair}\r\n")
    first, second = data(folder).read(path)
    assert parts(folder, *first) == ["ho ho<|im_end|>", "so long<|im_end|>"]
    assert parts(folder, *second) == ["ho<|im_end|>"]
    for line, words in (
        ("{", "Expecting property name"),
        ("[1]", "got list, need"),
        ('{"text": "a"}', "got text, need"),
        ('{"prompt": "a"}', "got prompt, need"),
        ('{"prompt": "a", "completion": 3}', "message 2: got role, content, need role and content, both texts"),
        ('{"messages": []}', "messages: got none, need a list"),
        ('{"messages": ["a"]}', "message 1: got str, need an object"),
        ('{"messages": [{"role": "user"}]}', "message 1: got role, need role and content"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "got no answer to learn"),
        (json.dumps({"messages": TALK, "tools": [{}]}), "tools: got some, need none"),
        (json.dumps({"messages": [{**TALK[2], "weight": 2}]}), "message 1: weight: got 2, need 0 or 1"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "need text in UTF-8"),
    ):
        path.write_text(f"{good}\n{line}\n")
        with pytest.raises(hx.Error, match=r"\[tokenize\] .*data\.jsonl: line 2: ") as caught:
            list(data(folder).read(path))
        assert words in str(caught.value)


def saved(path: Path, talks: list[tuple[list[int], list[int]]], vocab: int = 50) -> hx.train.TokenFile:
    save_conversations(path, talks, vocab=vocab)
    return hx.train.TokenFile(path, vocab=vocab)


TALKS = [([1, 2, 3, 4], [0, 0, 1, 1]), ([5, 6], [0, 1]), ([7, 8, 9, 10, 11, 12], [0, 0, 1, 0, 0, 1]), ([13], [1])]


@pytest.mark.parametrize("vocab", [50, 70000])
def test_a_file_of_conversations_is_safetensors_with_marks(tmp_path: Path, vocab: int) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    found = saved(tmp_path / "t.bin", TALKS, vocab)
    stored = safetensors.load_file(tmp_path / "t.bin")
    assert stored["ids"].tolist() == list(range(1, 14))
    assert stored["ids"].dtype == ("uint16" if vocab == 50 else "uint32")
    assert stored["marks"].tolist() == [2, 0, 1, 1, 2, 1, 2, 0, 1, 0, 0, 1, 3]
    assert found[:].tolist() == list(range(1, 14))
    assert found.learnt(slice(2, 6)).tolist() == [True, True, False, True]
    assert found.starts is not None
    assert found.starts.tolist() == [0, 4, 6, 12]


def test_rows_are_conversations_and_prompts_are_ignored(tmp_path: Path) -> None:
    rows = hx.train.Conversations(saved(tmp_path / "t.bin", TALKS), batch=3, seq=4, seed=2)
    assert (len(rows), rows.cut, rows.left_out) == (3, 1, 1)  # nothing predicts the only token of the last one
    (ordered,) = rows.in_order()
    assert ordered["tokens"].tolist() == [[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 9, 10]]
    assert ordered["labels"].tolist() == [[-100, 3, 4, -100], [6, -100, -100, -100], [-100, 9, -100, -100]]
    for n in range(5):
        assert sorted(map(tuple, rows(n)["tokens"])) == sorted(map(tuple, ordered["tokens"]))
    assert len({tuple(rows(n)["tokens"][:, 0]) for n in range(20)}) > 1
    again = hx.train.Conversations(rows.tokens, batch=3, seq=4, seed=2)
    assert again(7)["tokens"].tolist() == rows(7)["tokens"].tolist()
    halves = [hx.train.Conversations(rows.tokens, batch=2, seq=4, seed=2, rank=i, ranks=2) for i in range(2)]
    whole = hx.train.Conversations(rows.tokens, batch=2, seq=4, seed=2)
    assert np.concatenate([half(3)["labels"] for half in halves]).tolist() == whole(3)["labels"].tolist()


def test_a_row_that_is_as_long_as_a_conversation_keeps_its_last_answer(tmp_path: Path) -> None:
    rows = hx.train.Conversations(saved(tmp_path / "t.bin", TALKS[2:3]), batch=1, seq=5)
    assert rows.cut == 0
    assert rows(0)["labels"].tolist() == [[-100, 9, -100, -100, 12]]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    chats = saved(tmp_path / "t.bin", TALKS)
    with pytest.raises(hx.Error, match=r"got conversations, need plain ids, or hx\.train.Conversations"):
        hx.train.TokenWindows(chats, batch=1, seq=4)
    save_tokens(tmp_path / "plain.bin", [[1, 2, 3]], vocab=50)
    with pytest.raises(hx.Error, match="got plain ids, need conversations"):
        hx.train.Conversations(hx.train.TokenFile(tmp_path / "plain.bin", vocab=50), batch=1, seq=4)
    late = saved(tmp_path / "late.bin", [([1, 2, 3, 4, 5], [0, 0, 0, 0, 1])])
    with pytest.raises(hx.Error, match="got no conversation with an answer in its first 4 tokens, need a larger seq"):
        hx.train.Conversations(late, batch=1, seq=3)
    with pytest.raises(hx.Error, match="token 2: got the id 3, need 0 to 2"):
        hx.train.TokenFile(tmp_path / "t.bin", vocab=3)
    with pytest.raises(hx.Error, match="conversation 0: got 2 ids and 1 marks"):
        save_conversations(tmp_path / "u.bin", [([1, 2], [1])], vocab=9)


def test_damaged_files_of_conversations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    saved(path, TALKS)
    whole = path.read_bytes()
    for changed, words in (
        (whole[:-1], "got 416 bytes, need"),
        (whole[:20], "need an undamaged file of conversations"),
        (whole.replace(b'"U8"', b'"I8"'), "got other tensors than ids and marks"),
        (whole.replace(b"hexane.tokens", b"hexane.others"), "without a record of tokens"),
        (whole.replace(b'\\"version\\": 1', b'\\"version\\": 2'), "version: got 2, need 1"),
        (whole[:-13] + b"\x09" * 13, "got marks of another kind"),
    ):
        path.write_bytes(changed)
        with pytest.raises(hx.Error) as caught:
            hx.train.TokenFile(path, vocab=50)
        assert words.replace("416", str(len(whole) - 1)) in str(caught.value)


def test_the_loss_is_the_mean_over_the_answers_tokens(folder: Path, tmp_path: Path) -> None:
    """transformers 5.24 gives 8.0646629 for this model and batch, with labels of -100; its mask of `TALK` is the one
    above."""
    made = data(folder)
    talks = [made(TALK), made(TALK[3:]), made([{**TALK[1]}, {"role": "assistant", "content": "x"}])]
    save_conversations(tmp_path / "t.bin", talks, vocab=tiny_llm.VOCAB)
    config, weights = hx.train.read_llama(folder)
    model = hx.train.load_llama(folder, batch=3, seq=96)
    rows = hx.train.Conversations(hx.train.TokenFile(tmp_path / "t.bin", vocab=config.vocab), batch=3, seq=96)
    batch = rows.in_order()[0]
    got = float(np.asarray(hx.compile(hx.graph({"loss": model.loss}))(**batch)).reshape(()))
    logits = logits_in_numpy(config, weights, batch["tokens"])
    top = logits.max(-1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    learnt = batch["labels"] >= 0
    assert learnt.sum() == len("ho ho.so long.so long.x.")
    want = -np.take_along_axis(logs, np.where(learnt, batch["labels"], 0)[..., None], -1)[..., 0][learnt].mean()
    np.testing.assert_allclose([got, 8.0646629], want, rtol=1e-6)
