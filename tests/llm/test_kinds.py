"""Folders of other models than decoders: the commands of language models say what is in them."""

import json
from pathlib import Path

import pytest

from command import Cli, in_this_process

SAID = {
    "bert": "got a text encoder (bert), which makes no text",
    "vit": "got an image encoder (vit), which makes no text",
    "deit": "got an image encoder (deit), which makes no text",
    "clip_vision_model": "got an image encoder (clip_vision_model)",
    "siglip_vision_model": "got an image encoder (siglip_vision_model)",
    "clip": "got an encoder of texts and images (clip)",
    "siglip": "got an encoder of texts and images (siglip)",
    "clip_text_model": "got an encoder of texts (clip_text_model)",
    "siglip_text_model": "got an encoder of texts (siglip_text_model)",
    "whisper": "got a speech model (whisper), which makes text of sound alone",
    "t5": "got the model_type 't5', need a decoder of text, one of llama, ",
}


CASES = [(command, kind) for command in ("llm", "generate", "chat", "serve") for kind in SAID]
# Which print their facts.
CASES.remove(("llm", "bert"))
CASES.remove(("llm", "whisper"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


@pytest.mark.parametrize(("command", "kind"), CASES)
def test_commands_name_the_kind_of_another_model(command: str, kind: str, cli: Cli, tmp_path: Path) -> None:
    """In one line, with or without a tokenizer."""
    if command == "serve":
        pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'hexane[serve]'")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    for _ in range(2):
        ended = cli(command, tmp_path)
        assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err
        assert SAID[kind] in ended.err
        runs = "transcribe" if kind == "whisper" else "embed"
        assert kind == "t5" or f"`hexane {runs}`" in ended.err
        assert kind == "t5" or "`hexane run`, `check`, `compile`" in ended.err
        (tmp_path / "tokenizer.json").write_text("{}")


def test_embed_and_transcribe_name_the_kind_of_another_model(cli: Cli, tmp_path: Path) -> None:
    """In one line."""
    for command, kind, said in (
        ("embed", "whisper", "got a speech model (whisper), need an encoder: `hexane transcribe` takes this folder"),
        ("transcribe", "bert", "got the model_type 'bert', need a Hugging Face folder of Whisper"),
        ("transcribe", "llama", "got the model_type 'llama', need a Hugging Face folder of Whisper"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        given = ["--text", "a"] if command == "embed" else [tmp_path / "a.wav"]
        ended = cli(command, tmp_path, *given)
        assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err
        assert said in ended.err
    ended = cli("transcribe", tmp_path / "nothing", tmp_path / "a.wav")
    assert (ended.code, len(ended.err.splitlines())) == (1, 1)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"model_type": "qwen2_vl", "vision_config": {}},
            "'qwen2_vl' (a decoder that also reads images or sound), need",
        ),
        ({"model_type": "mixtral", "num_local_experts": 8}, "'mixtral' (a mixture of experts), need a decoder of text"),
    ],
)
def test_a_decoder_that_is_not_supported_says_what_it_is(
    fields: dict[str, object], said: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert said in cli("generate", tmp_path).err


def test_a_folder_of_adapters_names_its_base_and_the_option(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    err = cli("generate", tmp_path).err
    assert "got adapters (LoRA), need the model that they change, org/base, and --lora" in err


def test_a_damaged_config_is_an_error_without_a_tokenizer_too(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    assert "config.json: got list, need an object" in cli("generate", tmp_path).err
