"""Renders chats as text for a model, with the model's Jinja template."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.files import open_next_to, read_all

TEMPLATE = "chat_template.jinja"
CONFIG, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
ADDED = "added_tokens.json"
LARGEST = 1 << 24  # bytes
MARKS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
BEGIN, END = "\ufdd0", "\ufdd1"  # Marks around answers: noncharacters of Unicode, which texts lack.
MARKED = "hexane_marks_answers"
# Names that transformers passes to each template: a test `tools is not none` would be true for an undefined name.
NOT_GIVEN = {"tools": None, "documents": None}


class ChatTemplate:
    """A chat template and the special tokens that it may name. The template runs in Jinja's sandbox: model files are
    not trusted.

    Raises Error without the package jinja2, and if the text is no Jinja template.
    """

    def __init__(self, text: str, marks: Mapping[str, str], where: str = "[train.ChatTemplate]") -> None:
        try:
            import jinja2
            from jinja2 import nodes
            from jinja2.ext import Extension, loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise Error(f"{where}: got no package jinja2, need: pip install 'hexane[chat]'") from None

        class Generation(Extension):
            """{% generation %} encloses the model's text. For training, marks are rendered around this text."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                call = nodes.CallBlock(self.call_method("_around", [nodes.ContextReference()]), [], [], body)
                return call.set_lineno(line)

            def _around(self, context: Any, caller: Any) -> str:
                return f"{BEGIN}{caller()}{END}" if context.get(MARKED) else caller()

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        environment.filters["tojson"] = _as_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._where, self._marks = where, dict(marks)
        self._generation = re.search(r"{%-?\+?\s*generation\b", text) is not None
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateError as error:
            raise Error(f"{where}: {error}, need a Jinja template") from None

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Returns the text up to the beginning of the next answer. messages: such as {"role": "user", "content": ".."}.

        Raises Error for messages that the template refuses.
        """
        return self.render(messages)

    def render(self, messages: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """Returns the text of messages. answer: append the prompt of the next answer. Raises Error as a call does."""
        return self._rendered(messages, add_generation_prompt=answer)

    def answers(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[tuple[int, int]] | None]:
        """Returns the text of messages, and the character ranges inside {% generation %}; None for a template without
        it.
        Raises Error as a call does.
        """
        if not self._generation:
            return self.render(messages, answer=False), None
        text, spans, first = "", [], 0
        marked = self._rendered(messages, add_generation_prompt=False, **{MARKED: True})
        for part in re.split(f"([{BEGIN}{END}])", marked):
            if part == BEGIN:
                first = len(text)
            elif part == END:
                spans.append((first, len(text)))
            else:
                text += part
        if text != self.render(messages, answer=False):
            raise Error(f"{self._where}: got other text with marks of answers, need messages without U+FDD0 and U+FDD1")
        return text, spans

    def _rendered(self, messages: Sequence[Mapping[str, Any]], **given: Any) -> str:
        try:
            text: str = self._template.render(
                **NOT_GIVEN, **self._marks, messages=[dict(one) for one in messages], **given
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:  # a template is a program: it may raise any exception
            raise Error(
                f"{self._where}: {error or type(error).__name__}, need messages that the template takes"
            ) from None
        return text


def read_chat_template(folder: Path) -> ChatTemplate:
    """Returns the template in a model's folder: chat_template.jinja, or the one in tokenizer_config.json. Special
    tokens are from tokenizer_config.json; special_tokens_map.json fills in missing ones.

    Raises Error for a folder without one, and as `ChatTemplate` does.
    """
    where = f"[train.load_chat_template] {folder}"
    config = _object(folder, CONFIG, where)
    if (folder / TEMPLATE).exists():
        text: object = _read(folder, TEMPLATE, where)
    else:
        text = config.get("chat_template")
        if isinstance(text, list):  # several, by name
            named = [one for one in text if isinstance(one, dict) and one.get("name") == "default"]
            text = named[0].get("template") if named else None
    if not isinstance(text, str):
        raise Error(f"{where}: got no chat template, need {TEMPLATE}, or chat_template in {CONFIG}")
    return ChatTemplate(text, {**_marks(_object(folder, SPECIAL, where)), **_marks(config)}, where)


def read_end_mark(folder: Path) -> str | None:
    """Returns the text of the token that ends a text, from the files next to a tokenizer.json; None if no file names
    it."""
    where = f"[train.load_tokenizer] {folder}"
    marks = {**_marks(_object(folder, SPECIAL, where)), **_marks(_object(folder, CONFIG, where))}
    return marks.get("eos_token")


def read_added_tokens(folder: Path) -> list[str]:
    """Returns the texts of the tokens that the files next to a tokenizer.json add to its vocabulary."""
    where = f"[train.load_tokenizer] {folder}"
    listed = _object(folder, CONFIG, where).get("added_tokens_decoder")
    texts = [one.get("content") for one in listed.values() if isinstance(one, dict)] if isinstance(listed, dict) else []
    return [one for one in (*texts, *_object(folder, ADDED, where)) if isinstance(one, str)]


def _marks(config: Mapping[str, Any]) -> dict[str, str]:
    marks = {}
    for name in MARKS:
        given = config.get(name)
        text = given.get("content") if isinstance(given, dict) else given
        if isinstance(text, str):
            marks[name] = text
    return marks


def _object(folder: Path, name: str, where: str) -> dict[str, Any]:
    """Returns the fields of a JSON file; empty if the file is missing."""
    if not (folder / name).exists():
        return {}
    try:
        fields = json.loads(_read(folder, name, where))
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: {name}: {error}, need JSON") from None
    if not isinstance(fields, dict):
        raise Error(f"{where}: {name}: got {type(fields).__name__}, need an object")
    return fields


def _read(folder: Path, name: str, where: str) -> str:
    data = read_all(open_next_to(folder, name, where), where)
    if len(data) > LARGEST:
        raise Error(f"{where}: {name}: got {len(data)} bytes, need at most {LARGEST}")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise Error(f"{where}: {name}: {error}, need text") from None


def _as_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


class _Refused(Exception):
    pass


def _refuse(message: str) -> None:
    raise _Refused(message)
