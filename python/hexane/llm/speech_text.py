"""Converts Whisper's tokens to text, with its tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.files import open_next_to, open_regular
from hexane.llm.encoder_tokenizer import text_of

FILE = "tokenizer.json"
TIMES = re.compile(r"<\|\d+\.\d+\|>")


class SpeechTokenizer:
    """A speech model's tokenizer. vocab: ids are below it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.vocab = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens, without special tokens such as <|en|> and timestamps such as <|1.20|>."""
        return TIMES.sub("", self._inner.decode(list(ids), skip_special_tokens=True))


def load_speech_tokenizer(folder: Path, given: Path | None = None) -> SpeechTokenizer:
    """Returns the tokenizer of a folder, or of a tokenizer.json.

    Raises Error for a folder without one, for a damaged file, and without the package tokenizers.
    """
    where = f"[llm.load] {given or folder}"
    try:
        import tokenizers
    except ImportError:
        raise Error(f"{where}: got no package tokenizers, need: pip install 'hexane[chat]'") from None
    if given is None and not (folder / FILE).is_file():
        raise Error(f"{where}: got no {FILE}, need it: it says the texts of tokens")
    file = open_next_to(folder, FILE, where) if given is None else open_regular(given, where, FILE)
    try:
        return SpeechTokenizer(tokenizers.Tokenizer.from_str(text_of(file, where)))
    except (KeyboardInterrupt, SystemExit, Error):
        raise
    except BaseException as error:  # the package's panics are no Exception
        raise Error(f"{where}: {error}, need an undamaged tokenizer") from None
