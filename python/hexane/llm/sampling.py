"""The default sampling of a model, from its generation_config.json."""

import json
from collections.abc import Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from hexane.errors import Error
from hexane.train.decoder.formats.hugging_face import GENERATION

LIKELIEST = 50  # transformers' default of top_k

# Fields of generation_config.json that Hexane ignores, and the value, besides None and [], with which a field has no
# effect.
UNREAD: Mapping[str, Any] = {
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "stop_strings")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
    **dict.fromkeys(("no_repeat_ngram_size", "min_length", "min_new_tokens", "epsilon_cutoff", "eta_cutoff"), 0),
    **dict.fromkeys(("num_beams", "typical_p", "guidance_scale", "encoder_repetition_penalty"), 1),
}


class Sampling(NamedTuple):
    """Options of sampling; see `hx.train.Generator`."""

    temperature: float = 0.8
    top_p: float = 0.9
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def with_given(self, **given: float | None) -> "Sampling":
        """Returns these options, replaced by the fields of `given` that are not None."""
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return self._replace(**chosen)


HEXANE = Sampling()
OPENAI = Sampling(temperature=1.0, top_p=1.0)  # defaults of OpenAI's API


def sampling_of(folder: Path, default: Sampling = HEXANE) -> Sampling:
    """Returns the options in the folder's generation_config.json, if it has `do_sample`. Missing fields get
    transformers' defaults. Without the file or `do_sample`, returns `default` with the file's repetition penalty.

    Raises Error if the file is no JSON object, if a field is no finite number, and if top_k is no integer.
    """
    file, fields = _read(folder)
    if fields is None:
        return default
    penalty = _number(file, fields, "repetition_penalty", 1.0)
    if not fields.get("do_sample"):
        return default._replace(repetition_penalty=penalty)
    return Sampling(
        _number(file, fields, "temperature", 1.0),
        _number(file, fields, "top_p", 1.0),
        _integer(file, fields, "top_k", LIKELIEST),
        _number(file, fields, "min_p", 0.0),
        penalty,
    )


def fields_without_effect(folder: Path) -> list[str]:
    """Returns the fields of the folder's generation_config.json that change a text in transformers, but not in Hexane.
    Raises Error if the file is no JSON object."""
    fields = _read(folder)[1] or {}
    return [name for name, neutral in UNREAD.items() if fields.get(name) not in (None, [], neutral)]


def _read(folder: Path) -> tuple[Path, dict[str, Any] | None]:
    """Returns the path of generation_config.json and its fields; None without the file."""
    file = folder / GENERATION
    if not file.is_file():
        return file, None
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Error(f"[llm] {file}: got a file that cannot be read ({error}), need JSON") from None
    if not isinstance(fields, dict):
        raise Error(f"[llm] {file}: got {type(fields).__name__}, need an object")
    return file, fields


def _number(file: Path, fields: Mapping[str, Any], name: str, default: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Error(f"[llm] {file}: {name}: got {value!r}, need a number")
    try:
        number = float(value)
    except OverflowError:  # the number is a huge integer
        number = inf
    if not isfinite(number):
        raise Error(f"[llm] {file}: {name}: got {number}, need a finite number")
    return number


def _integer(file: Path, fields: Mapping[str, Any], name: str, default: int) -> int:
    number = _number(file, fields, name, default)
    if number != int(number):
        raise Error(f"[llm] {file}: {name}: got {number}, need an integer")
    return int(number)
