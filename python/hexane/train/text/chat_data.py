"""Converts conversations in JSON lines to token ids, and marks the answers that instruction tuning learns."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_regular, read_all
from hexane.train.text.chat import ChatTemplate
from hexane.train.text.tokenizer import Tokenizer

ASSISTANT = "assistant"
# Unsupported fields, which would change a template's text.
REFUSED = ("tools", "functions", "documents", "tool_calls", "function_call")
Messages = list[dict[str, Any]]


class ChatData:
    """Converts messages to conversations. tokenizer, template: of the trained model; ends: further ids that end an
    answer, such as `eos_token` of the model's files.

    The template renders a whole conversation. The tokens of the assistant's messages are learnt, each message with its
    end token; roles, other messages and the text after an end token are not. A {% generation %} of the template
    encloses the answers. Without {% generation %}, an answer begins after the template's prompt for it. unended: how
    many answers had no end token (0 with {% generation %}).
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, ends: frozenset[int] = frozenset()) -> None:
        own = () if tokenizer.end is None else (tokenizer.end,)
        self._tokenizer, self._template = tokenizer, template
        self._ends = np.array(sorted({*own, *tokenizer.chat_ends, *ends}), np.int64)
        self.unended = 0

    def read(self, path: Path) -> Iterator[tuple[list[int], Array]]:
        """Yields the conversations of a file, one per line: ids, and which of them are learnt. Empty lines are skipped.

        A line is {"messages": [{"role": .., "content": ..}, ..]} or {"prompt": .., "completion": ..}. A message may
        have OpenAI's "weight": 0, for an answer that is not learnt. Raises Error for other lines, with the line number.
        """
        where = f"[tokenize] {path}"
        for number, line in enumerate(read_all(open_regular(path, where, "file of JSON lines"), where).split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                yield self(_messages(line))
            except Error as error:
                raise Error(f"{where}: line {number}: {error}") from None

    def __call__(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], Array]:
        """Returns the ids of a conversation, and which of them are learnt. Raises Error if no id is learnt, if the
        template refuses the messages, or if the beginning of an answer cannot be found."""
        plain = [{name: one[name] for name in one if name != "weight"} for one in messages]
        answers = [i for i, one in enumerate(messages) if one["role"] == ASSISTANT]
        text, marked = self._template.answers(plain)
        ids, places = self._tokenizer.encode_at(text)
        begins, ends = (np.array([place[i] for place in places], np.int64) for i in (0, 1))
        if marked is None:
            spans = [self._span(plain, i, text) for i in answers]
        elif len(marked) == len(answers):
            spans = list(marked)
        else:
            raise Error(f"got {len(marked)} marked answers of {len(answers)}, need one {{% generation %}} for each")
        learnt = np.zeros(len(ids), bool)
        for i, (first, end) in zip(answers, spans, strict=True):
            inside = (begins < end) & (np.maximum(ends, begins + 1) > first)
            if marked is None:
                inside &= np.arange(len(ids)) < self._end(np.array(ids), inside)
            if messages[i].get("weight", 1) != 0:
                learnt |= inside
        if not learnt.any():
            raise Error("got no answer to learn, need a message of the assistant that has text")
        return ids, learnt

    def _end(self, ids: Array, inside: Array) -> int:
        """Returns the place after the last end token of an answer. A line end may follow the end token in the
        answer."""
        marks = np.flatnonzero(inside & np.isin(ids, self._ends))
        if not marks.size:
            self.unended += 1
        return int(marks[-1]) + 1 if marks.size else len(ids)

    def _span(self, messages: Messages, i: int, text: str) -> tuple[int, int]:
        """Returns the character range of an answer: from the end of its prompt to the end of the text rendered up to
        it."""
        prompt, whole = self._template.render(messages[:i]), self._template.render(messages[: i + 1], answer=False)
        for one in (prompt, whole):
            if not text.startswith(one):
                raise Error(
                    f"got an answer, message {i + 1}, that the chat template writes otherwise in a longer text, need a"
                    " template with {% generation %} around answers"
                )
        return len(prompt), len(whole)


def _messages(line: bytes) -> Messages:
    """Returns the messages of a line. Raises Error for a line of another form."""
    need = 'need {"messages": [..]} or {"prompt": .., "completion": ..}'
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Error(f"{error}, {need}") from None
    if not isinstance(record, dict):
        raise Error(f"got {type(record).__name__}, {need}")
    given = [name for name in ("messages", "prompt", "completion") if name in record]
    if given == ["prompt", "completion"]:
        messages: Any = [
            {"role": "user", "content": record["prompt"]},
            {"role": ASSISTANT, "content": record["completion"]},
        ]
    elif given == ["messages"]:
        messages = record["messages"]
    else:
        raise Error(f"got {', '.join(given) or ', '.join(map(str, record)) or 'nothing'}, {need}")
    if not isinstance(messages, list) or not messages:
        raise Error("messages: got none, need a list with one at least")
    for number, one in enumerate([record, *messages]):
        where = f"message {number}: " if number else ""
        if not isinstance(one, dict):
            raise Error(f"{where}got {type(one).__name__}, need an object with role and content")
        for name in REFUSED:
            if one.get(name):
                raise Error(f"{where}{name}: got some, need none: conversations of texts alone")
        if number and not (isinstance(one.get("role"), str) and isinstance(one.get("content"), str)):
            raise Error(f"{where}got {', '.join(one) or 'nothing'}, need role and content, both texts")
        if number and one.get("weight", 1) not in (0, 1):
            raise Error(f"{where}weight: got {one['weight']!r}, need 0 or 1")
    return messages
