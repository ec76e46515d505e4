"""Loads tokenizers and chat templates, from their own files or from a model's GGUF file."""

import os
from pathlib import Path

from hexane.importers.files import open_regular
from hexane.importers.gguf import is_gguf
from hexane.train.text.chat import ChatTemplate, read_chat_template
from hexane.train.text.gguf import read_gguf_template, read_gguf_tokenizer
from hexane.train.text.tokenizer import Tokenizer, read_tokenizer


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Returns the tokenizer in llama2.c's tokenizer.bin, a tokenizer.json, or a GGUF file.

    The format is JSON if the name ends in .json, GGUF if the first bytes say so, and else tokenizer.bin. Raises
    Error for a damaged file, and without the package tokenizers.
    """
    path = Path(path)
    return read_gguf_tokenizer(path) if _holds_gguf(path, "[train.load_tokenizer]") else read_tokenizer(path)


def load_chat_template(path: Path) -> ChatTemplate:
    """Returns the chat template in a model's folder (chat_template.jinja or tokenizer_config.json), or in a GGUF file.

    Raises Error for a model without one, and as `ChatTemplate` does.
    """
    if not path.is_dir() and _holds_gguf(path, "[train.load_chat_template]"):
        return read_gguf_template(path)
    return read_chat_template(path if path.is_dir() else path.parent)


def _holds_gguf(path: Path, where: str) -> bool:
    with os.fdopen(open_regular(path, f"{where} {path}", "tokenizer.bin, tokenizer.json or GGUF file"), "rb") as file:
        return is_gguf(file.read(4))
