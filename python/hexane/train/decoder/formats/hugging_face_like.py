"""Copies the tokenizer and configs of the Hugging Face folder that a model was trained from."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.files import open_next_to, read_all
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.formats.hugging_face_config import config_in, fields_of, of_texts
from hexane.train.decoder.formats.hugging_face_families import FAMILIES, MARKS, WITH_IMAGES
from hexane.train.decoder.formats.hugging_face_names import NAMES

CONFIG = "config.json"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja"),
)
FILES = (CONFIG, "generation_config.json", *TOKENIZER_FILES)
DTYPES = ("dtype", "torch_dtype")  # field of the weights' dtype, in new files and in older ones


def files_of(folder: Path, names: tuple[str, ...] = FILES) -> dict[str, bytes]:
    """Returns the contents of the named files that exist. Raises Error for an unreadable file, or a link out of the
    folder."""
    where = f"[train.save_llama] {folder}"
    return {name: read_all(open_next_to(folder, name, where), where) for name in names if (folder / name).exists()}


def fields_like(where: str, config: LlamaConfig, text: bytes | None) -> tuple[LlamaConfig, dict[str, Any]]:
    """Returns the config to write, and the fields of its config.json. text: the config.json of the model that this one
    was trained from.

    The context length is the original's: training texts may be shorter. If the original fields describe the model, all
    are kept with fp32 as dtype; else, and for families whose tensors have other names than ours, only the special token
    ids. Raises Error, beginning with `where`, for a damaged
    config.json, and for a config that the format cannot describe.
    """
    if text is None:
        return config, fields_of(where, config)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: {CONFIG}: {error}, need JSON") from None
    if not isinstance(given, dict):
        raise Error(f"{where}: {CONFIG}: got {type(given).__name__}, need an object")
    if given.get("model_type") in tuple(WITH_IMAGES):  # a model trained on texts reads no images
        given = dict(of_texts(where, given))
        given["architectures"] = [FAMILIES[given["model_type"]].about]
    first = config_in(where, given)
    config = replace(config, seq=first.seq)
    if given["model_type"] not in NAMES and replace(first, rope=config.rope) == config:
        return config, {**given, **dict.fromkeys([one for one in DTYPES if one in given] or DTYPES[1:], "float32")}
    return config, {**fields_of(where, config), **_marks(given)}


def _marks(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in MARKS if name in given}
