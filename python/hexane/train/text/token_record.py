"""The record of a token file (its tokens and their tokenizer): a JSON file next to it, or metadata in it."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hexane import _core
from hexane.errors import Error
from hexane.importers.files import open_regular, read_all
from hexane.train.text.tokenizer import Tokenizer

DTYPES = ("uint16", "uint32")
VERSION = 1
SUFFIX = ".json"  # The ending of a record, after the whole name of the file of tokens.
LARGEST = 1 << 16  # The largest size of a record, in bytes.


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A record. tokens: number of ids; dtype: "uint16" or "uint32"; vocab: all ids are below it; tokenizer:
    `Tokenizer.digest`, None if unknown."""

    tokens: int
    dtype: str
    vocab: int
    tokenizer: str | None = None

    def text(self) -> str:
        """The record as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)


def record_of(tokens: int, dtype: str, vocab: int, tokenizer: Tokenizer | None) -> TokenRecord:
    """Returns the record for a new file of tokens."""
    return TokenRecord(tokens, dtype, vocab, None if tokenizer is None else tokenizer.digest)


def record_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of the record of a file of ids."""
    return Path(f"{os.fspath(path)}{SUFFIX}")


def write_record(path: str | os.PathLike[str], record: TokenRecord) -> None:
    """Writes the record of a file of ids next to it. Raises Error if it cannot be written."""
    _core.save_file(os.fspath(record_path(path)), f"{record.text()}\n".encode())


def read_record(path: str | os.PathLike[str]) -> TokenRecord | None:
    """Returns the record next to a file of ids; None without one. Raises Error for a damaged record."""
    place = record_path(path)
    if not place.exists():
        return None
    where = f"[train.TokenFile] {place}"
    return parsed_record(read_all(open_regular(place, where, "record of a file of tokens"), where), where)


def parsed_record(text: str | bytes, where: str) -> TokenRecord:
    """Returns the record in a JSON text. Raises Error for a text that is no record."""
    try:
        fields = json.loads(text) if len(text) <= LARGEST else None
    except (ValueError, RecursionError):
        fields = None
    need = "need the record that `hexane tokenize` wrote, or no such file"
    if not isinstance(fields, Mapping) or fields.keys() != {"version", "tokens", "dtype", "vocab", "tokenizer"}:
        raise Error(f"{where}: got something else than a record of tokens, {need}")
    if fields["version"] != VERSION:
        raise Error(f"{where}: version: got {fields['version']!r}, need {VERSION}")
    counts = all(isinstance(fields[name], int) and fields[name] > 0 for name in ("tokens", "vocab"))
    if not counts or fields["dtype"] not in DTYPES or not isinstance(fields["tokenizer"], str | None):
        raise Error(f"{where}: got a damaged record of tokens, {need}")
    return TokenRecord(fields["tokens"], fields["dtype"], fields["vocab"], fields["tokenizer"])
