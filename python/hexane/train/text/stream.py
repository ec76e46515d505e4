"""Text of tokens that come one after the other."""

from collections.abc import Sequence

from hexane.train.text.tokenizer import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a part of a character's bytes, decoded


class TextStream:
    """Turns tokens that follow a prompt into text, as soon as their characters are whole."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._inside = tokenizer.encode("a", begin=False)
        self._before = self._inside if tokenizer.decode(prompt) else []
        self._left: list[int] = []

    def add(self, token: int) -> str:
        """The text that this token makes whole, empty where bytes of a character are to come."""
        self._left.append(token)
        text = self._text()
        return "" if not text or text.endswith(UNFINISHED) else self.end()

    def end(self) -> str:
        """The text of the tokens that are left, whole or not."""
        text, self._left, self._before = self._text(), [], self._inside
        return text

    def _text(self) -> str:
        """The first token of a text decodes otherwise, without its space, than the same one inside a text, for which
        a letter stands here."""
        before = self._tokenizer.decode(self._before)
        return self._tokenizer.decode([*self._before, *self._left])[len(before) :]
