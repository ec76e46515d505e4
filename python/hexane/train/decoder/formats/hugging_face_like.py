"""The other files of a folder of Hugging Face, for a model that was trained from it: tokenizer and configurations."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.files import open_next_to, read_all
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.formats.hugging_face_config import config_in, fields_of

CONFIG = "config.json"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja"),
)
FILES = (CONFIG, "generation_config.json", *TOKENIZER_FILES)
MARKS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
DTYPES = ("dtype", "torch_dtype")  # of the weights, in new files and in older ones


def files_of(folder: Path, names: tuple[str, ...] = FILES) -> dict[str, bytes]:
    """The files that a folder has of these. Raises Error for an unreadable one, or a link out of the folder."""
    where = f"[train.save_llama] {folder}"
    return {name: read_all(open_next_to(folder, name, where), where) for name in names if (folder / name).exists()}


def fields_like(where: str, config: LlamaConfig, text: bytes | None) -> tuple[LlamaConfig, dict[str, Any]]:
    """The config of a model that is written, and its config.json. text: the config.json of the model that it was
    trained from.

    The room for tokens is that model's: rows of a training may be shorter. All fields are kept where they describe the
    model with fp32 weights; else the format's own fields, with the marks of texts. Raises Error, which begins with
    `where`, for a config.json that is damaged, and for a config that the format cannot say.
    """
    if text is None:
        return config, fields_of(where, config)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: {CONFIG}: {error}, need JSON") from None
    if not isinstance(given, dict):
        raise Error(f"{where}: {CONFIG}: got {type(given).__name__}, need an object")
    first = config_in(where, given)
    config = replace(config, seq=first.seq)
    own = fields_of(where, config)
    if own["model_type"] == given.get("model_type") and replace(first, rope=config.rope) == config:
        return config, {**given, **dict.fromkeys([one for one in DTYPES if one in given] or DTYPES[1:], "float32")}
    return config, {**own, **_marks(given)}


def _marks(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in MARKS if name in given}
