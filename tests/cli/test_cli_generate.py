"""`hexane generate`: text of a decoder, as it comes."""

import json
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
import tiny_llm
from command import Cli, changed
from decoders import decoder_weights, llama2c_v0
from sentencepieces import TEXT, tokenizer_bin, vocabulary

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
VOCAB, SEQ = len(vocabulary()[0]), 24
SIZES = ("--dim", 32, "--hidden", 48, "--layers", 1, "--heads", 4, "--vocab", VOCAB, "--seq", SEQ)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(tokenizer_bin(*vocabulary()))
    return path


def small(vocab: int = VOCAB) -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(vocab=vocab, dim=32, hidden=48, layers=1, heads=4, seq=SEQ)


@pytest.fixture
def model(tmp_path: Path, tokenizer: Path) -> Path:
    """Next to its tokenizer. Bytes have the logit 0, so that the likeliest token is none: random bytes are no text."""
    path = tmp_path / "model.bin"
    weights = decoder_weights(small())
    weights["model.embed_tokens.weight"][3:259] = 0
    path.write_bytes(llama2c_v0(small(), weights))
    return path


def test_a_text_is_printed_and_its_rate_on_stderr(cli: Cli, model: Path, tokenizer: Path) -> None:
    ended = cli("generate", model, "--prompt", "the cat", "--temperature", 0, "--threads", 1)
    assert ended.code == 0, ended.err
    known = hx.train.load_tokenizer(tokenizer)
    ids = known.encode("the cat")
    tokens = hx.train.generate(model, ids, temperature=0, stop=(1, 2))
    assert ended.out == known.decode(ids + tokens) + "\n"
    assert f"{len(tokens)} tokens, " in ended.err
    assert "tokens/s" in ended.err


def test_json_has_tokens_and_why_it_ended(cli: Cli, model: Path) -> None:
    found = [
        json.loads(cli("generate", model, "--prompt", "the cat", *options, "--json").out)
        for options in (("--seed", 3), ("--seed", 3), ("--seed", 4), ("--seed", 3, "--steps", 2))
    ]
    for one in found:
        del one["tokens_per_second"]
        assert one.pop("seconds_to_first_token") > 0
    assert found[0] == found[1]
    assert found[0]["tokens"] != found[2]["tokens"]
    assert found[3]["tokens"] == found[0]["tokens"][:2]
    assert found[3]["ended_by"] == "steps"
    assert {found[0]["ended_by"], found[2]["ended_by"]} <= {"seq", "end"}


def test_it_ends_where_the_next_document_would_begin(cli: Cli, model: Path, tmp_path: Path) -> None:
    weights = decoder_weights(small())
    untied = hx.train.LlamaConfig(vocab=VOCAB, dim=32, hidden=48, layers=1, heads=4, seq=SEQ, tied=False)
    # All tokens have the same channels, to which no layer adds: the head alone says the next one.
    weights |= {name: array * 0 for name, array in weights.items() if "o_proj" in name or "down_proj" in name}
    weights["model.embed_tokens.weight"] = np.ones((VOCAB, 32), np.float32)
    weights["model.norm.weight"] = np.ones(32, np.float32)
    for marker in (1, 2):
        weights["lm_head.weight"] = np.zeros((VOCAB, 32), np.float32)
        weights["lm_head.weight"][marker] = 1
        hx.train.save_llama(tmp_path / "ends.bin", untied, weights, format="llama2.c-v0")
        ended = cli("generate", tmp_path / "ends.bin", "--prompt", "the", "--temperature", 0, "--json")
        assert json.loads(ended.out)["ended_by"] == "end", ended
        assert json.loads(ended.out)["tokens"] == []


def test_what_was_trained_is_told_again(cli: Cli, tokenizer: Path, tmp_path: Path) -> None:
    """From text to text: tokenize, train, generate; the checkpoint and the exported models say the same."""
    (tmp_path / "text").write_text("the cat sat on the mat. " * 40)
    cli("tokenize", tmp_path / "text", "--tokenizer", tokenizer, "-o", tmp_path / "tokens.bin")
    folder = tmp_path / "folder"
    trained = cli(
        "train", "--data", tmp_path / "tokens.bin", *SIZES, "--steps", 80, "--accumulate", 2, "--lr", 2e-2,
        "-o", tmp_path / "run", "--export", folder, "--threads", 1,
    )  # fmt: skip
    assert trained.code == 0, trained.err
    texts = {
        cli("generate", path, "--prompt", "the cat", "--temperature", 0, "--tokenizer", tokenizer).out
        for path in (tmp_path / "run" / "checkpoint.hxc", folder)
    }
    (text,) = texts
    assert text.startswith("the cat")
    assert "the cat sat on the mat. the cat sat on the mat." in text


def test_mistakes_say_what_is_needed(cli: Cli, model: Path, tokenizer: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "model.bin").write_bytes(model.read_bytes())
    (alone / "few.bin").write_bytes(llama2c_v0(small(20), decoder_weights(small(20))))
    (alone / "plan.hxp").write_bytes(b"HEXANE\x1a\n")
    x = hx.input("x", (2,))
    hx.compile(hx.graph({"y": x + x})).save(alone / "other.hxp")
    (alone / "story.txt").write_text("Once upon a time there was a model. " * 9)
    for arguments, words in (
        ((alone / "model.bin",), "(next to model.bin), or give --tokenizer FILE"),
        ((alone / "story.txt",), "story.txt: got a text file, which is no language model"),
        ((alone / "story.txt", "--tokenizer", tokenizer), "story.txt: got a text file, which is no language model"),
        ((alone / "few.bin", "--tokenizer", tokenizer), f"got 20 tokens, need the tokenizer's {VOCAB}"),
        ((alone / "none.bin", "--tokenizer", tokenizer), "none.bin"),
        ((alone / "plan.hxp", "--tokenizer", tokenizer), "plan.hxp"),
        ((alone / "other.hxp", "--tokenizer", tokenizer), "no checkpoint of a decoder"),
        ((model, "--top-p", 0), "top_p: got 0.0"),
        ((model, "--prompt", "the cat " * 30), f"need at most the {SEQ} of the context"),
    ):
        ended = cli("generate", *arguments)
        assert ended.code == 1, (arguments, ended)
        assert words in ended.err, ended.err


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [("net.onnx", b"\x08\x07", "an ONNX model"), ("net.tflite", b"\x1c\0\0\0TFL3", "a TFLite model"), ("net.pt", b"\x80\x02", "a Python pickle")],
)  # fmt: skip
@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("llm",)])
def test_a_file_of_another_kind_is_named(
    cli: Cli, tmp_path: Path, command: tuple[str, ...], name: str, data: bytes, kind: str
) -> None:
    (tmp_path / name).write_bytes(data + bytes(64))
    ended = cli(command[0], tmp_path / name, *command[1:])
    assert ended.code == 1
    assert f"got {kind}" in ended.err
    assert "no language model, need a Hugging Face folder (config.json, safetensors, a tokenizer), a GGUF" in ended.err


def test_characters_are_printed_when_their_bytes_are_whole(tokenizer: Path) -> None:
    known = hx.train.load_tokenizer(tokenizer)
    for text in (TEXT, "naïve 語語 日本語 x", "héhé"):
        ids = known.encode(text)
        for cut in (1, 4, len(ids)):
            stream = hx.train.text.TextStream(known, ids[:cut])
            parts = [stream.add(token) for token in ids[cut:]]
            assert "\N{REPLACEMENT CHARACTER}" not in "".join(parts)
            if cut == 1:
                assert "".join(parts) == text
    stream = hx.train.text.TextStream(known, [1])
    assert [stream.add(3 + byte) for byte in "語".encode()] == ["", "", "語"]
    assert stream.add(3 + 0xE8) == ""
    assert stream.end() == "\N{REPLACEMENT CHARACTER}"


# ---- folders of Hugging Face ----

NAMES = ["a", "b", "<|endoftext|>", "<|im_end|>", "<other>"]


def published(folder: Path, next_token: int, processor: str = "", **fields: object) -> Path:
    """A model that always makes one token, with a tokenizer whose ids are those of NAMES."""
    tokenizers = pytest.importorskip("tokenizers")
    c = hx.train.LlamaConfig(vocab=5, dim=8, hidden=8, layers=1, heads=2, seq=12, tied=False)
    w = {name: np.zeros(shape, np.float32) for name, shape in c.shapes().items()}
    w["model.embed_tokens.weight"] += 1
    w["model.norm.weight"] += 1
    w["lm_head.weight"][next_token] = 1
    hx.train.save_llama(folder, c, w, format="hugging-face")
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | fields))
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={n: i for i, n in enumerate(NAMES)}, merges=[]))
    inner.add_special_tokens(NAMES[2:])
    if processor:
        inner.post_processor = tokenizers.processors.TemplateProcessing(processor, special_tokens=[(NAMES[2], 2)])
    inner.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(("processor", "ids"), [("", [0, 1]), ("<|endoftext|> $A", [2, 0, 1])])
def test_a_prompt_begins_as_the_tokenizer_says(cli: Cli, tmp_path: Path, processor: str, ids: list[int]) -> None:
    folder = published(tmp_path / "m", 1, processor)
    ended = cli("generate", folder, "--prompt", "ab", "--temperature", 0, "--steps", 2, "--json")
    assert json.loads(ended.out)["prompt_tokens"] == ids
    assert json.loads(ended.out)["tokens"] == [1, 1]


@pytest.mark.parametrize("ends", [0, [1, 0]])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_text_ends_at_the_model_s_eos_token_id(cli: Cli, tmp_path: Path, file: str, ends: object) -> None:
    folder = published(tmp_path / "m", 0)
    written = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(written | {"eos_token_id": ends}))
    ended = json.loads(cli("generate", folder, "--prompt", "b", "--temperature", 0, "--json").out)
    assert (ended["tokens"], ended["ended_by"]) == ([], "end")
    assert hx.train.generate(folder, [1], steps=3, temperature=0) == []
    assert hx.train.generate(folder, [1], steps=3, temperature=0, stop=()) == [0, 0, 0]


def test_a_text_ends_where_an_answer_in_a_chat_ends(cli: Cli, tmp_path: Path) -> None:
    ended = json.loads(cli("generate", published(tmp_path / "m", 3), "--prompt", "b", "--temperature", 0, "--json").out)
    assert (ended["tokens"], ended["ended_by"]) == ([], "end")


def test_an_eos_token_id_that_is_none_is_named(cli: Cli, tmp_path: Path) -> None:
    ended = cli("generate", published(tmp_path / "m", 3, eos_token_id="x"), "--prompt", "b")
    assert (ended.code, "eos_token_id: got 'x', need an integer" in ended.err) == (1, True)


def test_a_chat_puts_the_prompt_into_the_model_s_template(cli: Cli, tmp_path: Path) -> None:
    """Marks in it are tokens, nothing is put before it, and the answer alone is printed."""
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    folder = published(tmp_path / "m", 1, "<|endoftext|> $A")
    asked = ("generate", folder, "--prompt", "ab", "--temperature", 0, "--steps", 2, "--chat")
    ended = cli(*asked)
    assert (ended.code, "got no chat template, need chat_template.jinja" in ended.err) == (1, True)
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}b{% endif %}"
    (folder / "chat_template.jinja").write_text(template)
    assert cli(*asked).out.split() == ["b", "b"]
    assert json.loads(cli(*asked, "--json").out)["prompt_tokens"] == [0, 1, 3, 1]


def test_a_draw_is_limited_by_options(cli: Cli, tmp_path: Path) -> None:
    folder = published(tmp_path / "m", 1)
    for options in (("--top-k", 1), ("--min-p", 1)):
        ended = cli(
            "generate", folder, "--prompt", "a", "--temperature", 2, "--top-p", 1, "--steps", 8, "--json", *options
        )
        assert json.loads(ended.out)["tokens"] == [1] * 8
    refused = cli("generate", folder, "--prompt", "a", "--repetition-penalty", 0)
    assert (refused.code, "repetition_penalty: got 0.0" in refused.err) == (1, True)


def trained(cli: Cli, tokenizer: Path, tmp_path: Path, *options: object, sizes: tuple[object, ...] = SIZES) -> Path:
    np.tile(np.array([5, 6, 7, 8], np.uint16), 40).tofile(tmp_path / "tokens.bin")
    run = tmp_path / "run"
    common = ("--data", tmp_path / "tokens.bin", "--steps", 1, "--accumulate", 1, "--threads", 1, "-o", run)
    ended = cli("train", *common, "--tokenizer", tokenizer, *sizes, *options)
    assert ended.code == 0, ended.err
    return run


def test_the_folder_of_a_training_is_a_model(cli: Cli, tokenizer: Path, tmp_path: Path) -> None:
    run = trained(cli, tokenizer, tmp_path)
    found = [
        cli("generate", model, "--prompt", "the cat", "--temperature", 0, "--steps", 4, "--threads", 1)
        for model in (run, run / "checkpoint.hxc")
    ]
    assert [one.code for one in found] == [0, 0], found[0].err
    assert found[0].out == found[1].out
    assert "tokenizer has" not in found[0].err


def test_a_tokenizer_that_is_smaller_than_the_model_is_said(cli: Cli, tokenizer: Path, tmp_path: Path) -> None:
    says = f"the tokenizer has {VOCAB:,} tokens and the model 2,000: {2000 - VOCAB:,} of them never occur"
    sizes = changed(SIZES, vocab=2000)
    run = trained(cli, tokenizer, tmp_path, sizes=sizes)
    common = ("--data", tmp_path / "tokens.bin", "--steps", 1, "--threads", 1, "--tokenizer", tokenizer, *sizes)
    ended = cli("train", *common, "-o", tmp_path / "other")
    assert says in ended.err
    assert says in cli("generate", run, "--prompt", "the cat", "--steps", 1, "--threads", 1).err


def test_a_training_that_fails_leaves_no_empty_folder(cli: Cli, tmp_path: Path) -> None:
    np.tile(np.array([5, 6, 7, 9999], np.uint16), 40).tofile(tmp_path / "tokens.bin")
    (tmp_path / "kept").mkdir()
    for run in (tmp_path / "new" / "run", tmp_path / "kept"):
        was = run.exists()
        ended = cli("train", "--data", tmp_path / "tokens.bin", *SIZES, "--steps", 1, "--threads", 1, "-o", run)
        assert ended.code == 1
        assert "9999" in ended.err
        assert run.exists() == was
    assert not (tmp_path / "new").exists()


def test_weights_in_fewer_bits_make_a_text(cli: Cli, tmp_path: Path) -> None:
    folder = tiny_llm.write(tmp_path / "tiny")
    asked = ("--prompt", "tide", "--temperature", 0, "--steps", 8, "--threads", 1, "--json")
    for encoding in ("int8", "blockwise4:b32"):
        ended = cli("generate", folder, *asked, "--compress", encoding)
        made = json.loads(ended.out)
        known = hx.llm.load(folder, compress=encoding, threads=1)
        assert known.encoded > 4
        assert f"[generate] {encoding}: {known.encoded} weight matrices are stored in this encoding\n" in ended.err
        want = known.generate("tide", temperature=0, steps=8)
        assert (made["text"], made["tokens"]) == (want.text(), want.tokens)
    for encoding, words in (("int9", "got 'int9', need none, auto, int8"),):
        refused = cli("generate", folder, *asked, "--compress", encoding)
        assert (refused.code, words in refused.err) == (1, True), refused.err


def test_a_repository_in_the_local_cache_is_named_by_its_id(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    tiny_llm.write(tmp_path / "models--org--tiny" / "snapshots" / "1f")
    (tmp_path / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text("1f\n")
    asked = ("--prompt", "tide", "--temperature", 0, "--steps", 4, "--threads", 1)
    ended = cli("generate", "org/tiny", *asked)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("tide")
    missing = cli("generate", "org/none", *asked)
    assert (missing.code, "hf download org/none" in missing.err) == (1, True), missing.err


@pytest.mark.parametrize("command", ["llm", "chat", "serve"])
def test_commands_without_the_option_do_not_advise_it(cli, command: str, tmp_path):
    (tmp_path / "model.bin").write_bytes(llama2c_v0(small(20), decoder_weights(small(20))))
    said = cli(command, tmp_path / "model.bin")
    assert said.code == 1
    assert f"model.bin has no tokenizer: copy its tokenizer.json or tokenizer.bin into {tmp_path}" in said.err
    assert said.err.rstrip().endswith("(next to model.bin)")
