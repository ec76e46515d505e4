"""Converts tokens to text one by one."""

from collections.abc import Sequence

from hexane.train.text.tokenizer import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a decoded part of a character's bytes


class TextStream:
    """Converts the tokens after a prompt to text. A character is returned once all its bytes have come."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._inside = tokenizer.encode("a", begin=False)
        self._before = self._inside if tokenizer.decode(prompt) else []
        self._left: list[int] = []

    def add(self, token: int) -> str:
        """Returns the text completed by this token; empty if bytes of a character are missing."""
        self._left.append(token)
        text = self._text()
        return "" if not text or text.endswith(UNFINISHED) else self.end()

    def end(self) -> str:
        """Returns the text of the remaining tokens, complete or not."""
        text, self._left, self._before = self._text(), [], self._inside
        return text

    def _text(self) -> str:
        """Decodes the new tokens together with a preceding letter, and removes the letter: at the beginning of a text,
        a token would lose its leading space."""
        before = self._tokenizer.decode(self._before)
        return self._tokenizer.decode([*self._before, *self._left])[len(before) :]
