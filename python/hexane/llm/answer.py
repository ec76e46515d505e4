"""The text that a model generates after a prompt, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from hexane.errors import Error
from hexane.train.text import TextStream


class Answer(Iterator[str]):
    """Iterates over pieces of the generated text, each computed when it is requested.

    prompt: the ids of the prompt; tokens: the ids generated so far; ended_by: "" while the answer is unfinished, then
    "end" (the model ended its text), "steps" (the limit of tokens), "seq" (the context is full) or "stop" (a text of
    `stop` was generated; the answer ends before it). reused: how many tokens of the prompt were in the cache.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        tokens: Iterator[int],
        stream: TextStream,
        *,
        steps: int,
        context: int,
        stop: Sequence[str] = (),
    ) -> None:
        self.prompt, self.tokens, self.ended_by, self.reused = list(prompt), list[int](), "", 0
        self._source, self._stream, self._steps, self._context = tokens, stream, steps, context
        self._stops = _checked(stop)
        self._held = ""  # text that may be the beginning of a stop
        self._started: float | None = None
        self._times: list[float] = []

    def __next__(self) -> str:
        while not self.ended_by:
            if self._started is None:
                self._started = time.perf_counter()
            token = next(self._source, None)
            if token is None:
                return self._last()
            self._times.append(time.perf_counter())
            self.tokens.append(token)
            if piece := self._shown(self._stream.add(token)):
                return piece
        raise StopIteration

    def text(self) -> str:
        """Returns the remaining pieces as one text."""
        return "".join(self)

    @property
    def seconds_to_first_token(self) -> float | None:
        return None if not self._times or self._started is None else self._times[0] - self._started

    @property
    def tokens_per_second(self) -> float | None:
        """The speed after the first token; None for fewer than two tokens."""
        count = len(self._times) - 1
        return count / (self._times[-1] - self._times[0]) if count > 0 else None

    def _last(self) -> str:
        rest = self._shown(self._stream.end()) + self._held
        if not self.ended_by:
            full = len(self.prompt) + len(self.tokens) >= self._context
            self.ended_by = "steps" if len(self.tokens) == self._steps else "seq" if full else "end"
        if not rest:
            raise StopIteration
        return rest

    def _shown(self, text: str) -> str:
        """Returns the new text, without an end that may be the beginning of a stop."""
        if not self._stops:
            return text
        text = self._held + text
        self._held = ""
        places = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if places:
            self.ended_by = "stop"
            return text[: min(places)]
        longest = max(map(len, self._stops)) - 1
        for count in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                self._held = text[-count:]
                return text[:-count]
        return text


def _checked(stop: Sequence[str]) -> tuple[str, ...]:
    given = (stop,) if isinstance(stop, str) else tuple(stop)
    for one in given:
        if not isinstance(one, str) or not one:
            raise Error(f"[llm.generate] stop: got {one!r}, need texts that are not empty")
    return given
