"""One conversation with a model, whose cache keeps the tokens that successive prompts have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from hexane.errors import Error
from hexane.graph import Array
from hexane.llm.answer import Answer
from hexane.train.decoder.generate import Sampler, Steps, check_request
from hexane.train.text import TextStream

if TYPE_CHECKING:
    from hexane.llm.model import LanguageModel

Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]


@dataclass(slots=True)
class Cache:
    """A conversation's cache. steps: the programs with it; tokens: the tokens whose keys and values it has, in
    order."""

    steps: Steps
    tokens: list[int] = field(default_factory=list)
    turn: int = 0
    using: Lock = field(default_factory=Lock)

    def begin(self, ids: Sequence[int]) -> tuple[Array, int]:
        """Returns the logits after a prompt, and how many of its tokens were in the cache."""
        common = self.known_of(ids)
        del self.tokens[common:]  # the remaining tokens stay valid if `prompt` is interrupted
        logits = self.steps.prompt(ids, common)
        self.tokens = list(ids)
        return logits, common

    def known_of(self, ids: Sequence[int]) -> int:
        """Returns how many tokens of a prompt the cache has. The last token always runs: its logits are needed."""
        common = 0
        for one, other in zip(self.tokens, ids[:-1], strict=False):
            if one != other:
                break
            common += 1
        return common

    def add(self, token: int) -> Array:
        logits = self.steps.one(token, len(self.tokens))
        self.tokens.append(token)
        return logits


class Conversation:
    """A conversation with its own cache, from `LanguageModel.context`. Weights are shared.

    A prompt that continues the previous text costs only its new tokens. Conversations may run at the same time. Calls
    of one conversation run one after the other.
    """

    def __init__(self, model: LanguageModel, steps: Steps) -> None:
        self._model, self._cache = model, Cache(steps)

    def generate(
        self,
        prompt: Prompt,
        *,
        steps: int = 256,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int = 0,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        stop: Sequence[str] = (),
    ) -> Answer:
        """Returns the text after a prompt, or the answer to messages such as {"role": "user", "content": ".."}, which
        are rendered with the model's chat template. A prompt may also be a list of ids.

        steps: most tokens; stop: texts that end the answer; other arguments: see `hx.train.Generator`; None: the
        model's `sampling`. A new answer ends an unfinished answer of the same conversation. Raises Error for a prompt
        that is empty or too long, and for numbers out of range.
        """
        model = self._model
        ids = model.encode(prompt)
        if model.config.seq < len(ids) <= model.longest:
            raise Error(
                f"[llm.generate] prompt: got {len(ids)} tokens, need at most the {model.config.seq} of the context, or"
                f" a larger context= (--context): the model takes {model.longest}"
            )
        chosen = model.sampling.with_given(
            temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, repetition_penalty=repetition_penalty
        )
        check_request(model.config, ids, steps, chosen.temperature, chosen.top_p, seed, model.tokenizer.vocab)
        draw = Sampler(seed=seed, **chosen._asdict())
        stream = TextStream(model.tokenizer, ids)
        answer: Answer

        def reused(count: int) -> None:
            answer.reused = count

        source = _Source(self._cache, ids, min(len(ids) + steps, model.config.seq), draw, model)
        answer = Answer(ids, source.tokens(reused), stream, steps=steps, context=model.config.seq, stop=stop)
        return answer

    def known_of(self, ids: Sequence[int]) -> int:
        """Returns how many tokens of a prompt the cache has."""
        return self._cache.known_of(ids)

    def reset(self) -> None:
        """Empties the cache. Unfinished answers cannot continue after that."""
        with self._cache.using:
            self._cache.turn += 1
            self._cache.tokens.clear()

    def close(self) -> None:
        """Frees the cache."""
        self._cache.steps.close()


class _Source:
    def __init__(self, cache: Cache, ids: list[int], end: int, draw: Sampler, model: LanguageModel) -> None:
        self._cache, self._ids, self._end, self._draw = cache, ids, end, draw
        self._stops, self._vocab = model.stops, model.tokenizer.vocab

    def tokens(self, reused: Callable[[int], None]) -> Iterator[int]:
        if len(self._ids) == self._end:
            return
        cache, seen = self._cache, set(self._ids)
        with cache.using:
            cache.turn += 1
            turn = cache.turn
            logits, count = cache.begin(self._ids)
        reused(count)
        for position in range(len(self._ids), self._end):
            token = self._draw(logits[: self._vocab], seen)
            if token in self._stops:
                return
            seen.add(token)
            yield token
            if position + 1 < self._end:
                with cache.using:
                    if turn != cache.turn:
                        raise Error(
                            "[llm.generate] got a step of an older answer, need the newest of this conversation, or"
                            " model.context() for another one"
                        )
                    logits = cache.add(token)
