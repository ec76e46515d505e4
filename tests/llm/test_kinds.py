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
    "whisper": "got the model_type 'whisper', need a decoder, one of llama, ",
}


CASES = [(command, kind) for command in ("llm", "generate", "chat", "serve") for kind in SAID]
CASES.remove(("llm", "bert"))  # which prints its facts


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
        assert kind == "whisper" or "`hexane embed`" in ended.err
        assert kind == "whisper" or "`hexane run`, `check`, `compile`" in ended.err
        (tmp_path / "tokenizer.json").write_text("{}")


def test_a_damaged_config_is_an_error_without_a_tokenizer_too(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    assert "config.json: got list, need an object" in cli("generate", tmp_path).err
