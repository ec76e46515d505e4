"""What `hexane llm` says of a model."""

import json
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
import tiny_llm
from command import Cli, in_this_process
from decoders import decoder_weights
from hexane.llm.facts import ENCODINGS, encoded_bytes
from hexane.train.decoder.generate import Steps


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.write(tmp_path_factory.mktemp("llm") / "tiny")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_memory_of_an_encoding_is_that_of_the_whole_model(encoding: str) -> None:
    """Of more layers and more rows of the embedding than are encoded to know it."""
    c = tiny_llm.config(layers=5, vocab=5000)
    options = hx.Options(target="host", compress=None if encoding == "none" else encoding)
    whole = Steps(c, decoder_weights(c), options).net.memory["weights"]
    assert abs(encoded_bytes(c, encoding) - whole) <= 0.01 * whole


def test_json_has_the_facts(cli: Cli, folder: Path) -> None:
    ended = cli("llm", folder, "--threads", 1, "--compress", "int8", "--target", "M1", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    c = tiny_llm.config()
    assert (found["family"], found["parameters"], found["context"]) == ("llama", c.parameters, c.seq)
    assert list(found["weights"]) == list(ENCODINGS)
    assert found["weights"]["blockwise4:b32"] < found["weights"]["int8"] < found["weights"]["none"]
    assert found["cache_per_1024_tokens"] == 2 * 4 * c.layers * c.kv_heads * c.head_dim * 1024
    assert (found["compress"], found["threads"]) == ("int8", 1)
    assert found["tokens_per_second"] > 0
    assert found["prompt_tokens_per_second"] > 0
    (chip,) = found["chips"]
    assert chip["low"] < chip["tokens_per_second"] < chip["high"]


def test_a_page_says_what_is_measured_estimated_and_missing(cli: Cli, tmp_path: Path) -> None:
    plain = tiny_llm.write(tmp_path / "plain", template=None)
    ended = cli("llm", plain, "--threads", 1, "--target", "M1")
    assert ended.code == 0, ended.err
    for words in (
        "llama, 68,096 parameters, context of 320 tokens",
        "measured here (1 thread, weights not compressed):",
        "): estimated ",
        "not supported:\n  chats: got no chat template",
    ):
        assert words in ended.out, ended.out


def test_a_page_names_what_generation_config_asks_for_in_vain(cli: Cli, tmp_path: Path) -> None:
    folder = tiny_llm.write(tmp_path / "tiny")
    fields = {"suppress_tokens": [3], "stop_strings": ["."], "num_beams": 1, "bad_words_ids": [], "min_length": 0}
    (folder / "generation_config.json").write_text(json.dumps(fields))
    out = cli("llm", folder, "--threads", 1).out
    assert "\n  fields of generation_config.json: suppress_tokens, stop_strings\n" in out, out


def test_mistakes_are_one_line(cli: Cli, folder: Path, tmp_path: Path) -> None:
    for arguments, words in (
        (
            (tmp_path / "none",),
            "need a folder of Hugging Face or `hexane train`, a GGUF file, or a repository (org/name) in",
        ),
        ((folder, "--target", "host"), "need chips: this CPU is measured"),
        ((folder, "--compress", "int9"), "got 'int9'"),
    ):
        ended = cli("llm", *arguments)
        assert (ended.code, words in ended.err) == (1, True), ended


def test_a_short_context_is_measured_within_its_room(tmp_path: Path) -> None:
    model = hx.llm.load(tiny_llm.write(tmp_path / "short", seq=8), threads=1)
    found = hx.llm.facts(model)
    assert np.isfinite([found.tokens_per_second, found.prompt_tokens_per_second]).all()


def test_facts_of_products_in_bf16_say_so(cli: Cli, folder: Path) -> None:
    said = cli("llm", str(folder), "--dtype", "bf16", "--threads", "1")
    assert "weights not compressed, products in bf16)" in said.out
    assert json.loads(cli("llm", str(folder), "--dtype", "bf16", "--json").out)["dtype"] == "bf16"


@pytest.mark.parametrize(
    ("command", "arguments", "need"),
    [
        ("transcribe", ("a.wav",), "a Hugging Face folder of Whisper"),
        ("embed", ("--text", "A tide."), "a Hugging Face folder of an encoder"),
        ("generate", (), "a folder or checkpoint of `hexane train`, a file of llama2.c, a GGUF file, a folder"),
        ("chat", (), "a folder of Hugging Face or `hexane train`, a GGUF file"),
        ("serve", (), "a folder of Hugging Face or `hexane train`, a GGUF file"),
    ],
)
def test_a_missing_model_names_what_the_command_takes(
    cli: Cli, tmp_path: Path, command: str, arguments: tuple[str, ...], need: str
) -> None:
    ended = cli(command, tmp_path / "none", *arguments)
    assert (ended.code, ended.out) == (1, "")
    assert f"none: got no such path, need {need}" in ended.err
    assert ended.err.endswith("in Hugging Face's local cache; nothing is downloaded\n")
