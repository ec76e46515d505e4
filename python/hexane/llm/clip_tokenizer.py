"""Converts texts to the ids of CLIP and SigLIP: with a tokenizer.json, and SigLIP's text cleaning and padding."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from pathlib import Path

from hexane.errors import Error
from hexane.importers.image_encoders import TextHalfConfig
from hexane.llm.encoder_tokenizer import EncoderTokenizer, load_encoder_tokenizer, tokenizer_fields

SPELLED = ("SiglipTokenizer", "SiglipTokenizerFast")  # tokenizers whose code, not tokenizer.json, removes punctuation


class ClipTokenizer:
    """CLIP's or SigLIP's tokenizer. most: tokens of a text including special ones; longer texts are cut. padding: the
    id with which texts are padded to `most` tokens, None for no padding. left: pad at the beginning. plain: remove
    punctuation and outer spaces. lower: also convert to lower case.
    """

    def __init__(
        self, inner: EncoderTokenizer, padding: int | None, left: bool = False, plain: bool = False, lower: bool = False
    ) -> None:
        self._inner, self.most, self.vocab = inner, inner.most, inner.vocab
        self.padding, self.left, self.plain, self.lower = padding, left, plain, lower

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text. Raises Error for anything but texts, and for a lone surrogate."""
        for one in texts:
            if not isinstance(one, str):
                raise Error(f"[llm.embed] texts: got {type(one).__name__}, need texts")
        rows = [ids for ids, _ in self._inner.encode([self._spelled(one) for one in texts])]
        if self.padding is None:
            return rows
        rest = [[self.padding] * (self.most - len(ids)) for ids in rows]
        return [more + ids if self.left else ids + more for ids, more in zip(rows, rest, strict=True)]

    def _spelled(self, text: str) -> str:
        if not self.plain:
            return text
        text = text.lower() if self.lower else text
        text = text.translate(str.maketrans("", "", string.punctuation))
        return re.sub(r"\s+", " ", text).strip()


def load_clip_tokenizer(folder: Path, config: TextHalfConfig, given: Path | None = None) -> ClipTokenizer:
    """Returns the tokenizer of a folder, or of a tokenizer.json.

    Raises Error for a folder without one, for a damaged file, for ids beyond the vocabulary, and without the package
    tokenizers.
    """
    inner = load_encoder_tokenizer(folder, config.family, config.positions, given)
    if inner.vocab > config.vocab:
        raise Error(f"[llm.load] {folder}: got {config.vocab} tokens, need the tokenizer's {inner.vocab}")
    if config.causal:
        return ClipTokenizer(inner, None)
    fields = tokenizer_fields(folder)
    mark = fields.get("pad_token")
    mark = mark.get("content") if isinstance(mark, dict) else mark
    padding = inner.id_of(mark) if isinstance(mark, str) else None
    return ClipTokenizer(
        inner,
        config.padding if padding is None else padding,
        fields.get("padding_side") == "left",
        fields.get("tokenizer_class") in SPELLED,
        fields.get("do_lower_case", True) is True,
    )
