"""Loads tokenizers and chat templates, from their own files or from a model's GGUF file."""

import os
from pathlib import Path

from hexane.errors import Error
from hexane.importers.files import open_regular
from hexane.importers.gguf import is_gguf
from hexane.train.text.chat import ADDED, CONFIG, ChatTemplate, read_added_tokens, read_chat_template
from hexane.train.text.gguf import read_gguf_template, read_gguf_tokenizer
from hexane.train.text.tokenizer import NAMES, Tokenizer, read_tokenizer


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Returns the tokenizer in llama2.c's tokenizer.bin, a tokenizer.json, or a GGUF file.

    The format is GGUF if the first bytes say so, JSON if the name ends in .json, and else tokenizer.bin. Raises
    Error for a damaged file, without the package tokenizers, and for a tokenizer.json without the tokens that
    tokenizer_config.json or added_tokens.json add: their texts would be split into other tokens.
    """
    path = Path(path)
    if _holds_gguf(path, "[train.load_tokenizer]"):
        return read_gguf_tokenizer(path)
    tokenizer = read_tokenizer(path)
    if path.name == NAMES[0]:
        _check_added(path, tokenizer)
    return tokenizer


def _check_added(path: Path, tokenizer: Tokenizer) -> None:
    missing = [one for one in read_added_tokens(path.parent) if tokenizer.id_of(one) is None]
    if missing:
        raise Error(
            f"[train.load_tokenizer] {path}: got no token {missing[0]!r}, which {CONFIG} or {ADDED} adds, need a"
            " tokenizer.json with it: save_pretrained of transformers' AutoTokenizer writes one"
        )


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
