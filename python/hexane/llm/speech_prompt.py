"""Whisper's prompt, languages, tasks and limits, from generation_config.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.encoders.config import short
from hexane.importers.encoders.files import CONFIG, json_object
from hexane.importers.speech import SpeechConfig
from hexane.llm.speech_languages import CODES

FILE = "generation_config.json"
TRANSCRIBE = "transcribe"
TASKS = (TRANSCRIBE, "translate")
START, END = 50257, 50256  # transformers' defaults
# Fields that change which tokens are chosen, with the values at which they have no effect.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "do_sample": (False,),
    "penalty_alpha": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "encoder_repetition_penalty": (1, 1.0),
    "guidance_scale": (1, 1.0),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "no_speech_threshold": (),
    "logprob_threshold": (),
    "compression_ratio_threshold": (),
}


@dataclass(frozen=True, slots=True)
class SpeechPrompt:
    """A speech model's prompt. start: the first token of a prompt. languages, tasks: ids by name, empty for models with
    one language. forced: ids after `start`; None for a language to detect. language, task: the folder's own choice, or
    "".

    no_times: the token that requests a text without timestamps. suppressed: ids that are never chosen;
    suppressed_first: ids that are never the first token of a text. most_new: the longest text without its prompt; None:
    no limit. english: the only language is English.
    """

    start: int
    ends: frozenset[int]
    languages: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    forced: tuple[int | None, ...] = ()
    language: str = ""
    task: str = ""
    no_times: int | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    most_new: int | None = None
    english: bool = False

    def asked_language(self, language: str | None) -> int | None:
        """Returns the id of a language, given as "en", "<|en|>" or "English"; None if it must be detected, or if the
        model has one language only. Raises Error for an unknown language."""
        language = language or self.language
        if not language:
            return None
        code = code_of(language.strip().lower())
        code = CODES.get(code, code)
        if not self.languages:
            if self.english and code == "en":
                return None
            why = "this model has English alone" if self.english else f"{FILE} has no lang_to_id"
            raise Error(f"[llm.transcribe] language: got {language!r}, need none: {why}")
        token = self.languages.get(f"<|{code}|>")
        if token is None:
            known = ", ".join(sorted(map(code_of, self.languages)))
            raise Error(f"[llm.transcribe] language: got {language!r}, need one of {known}")
        return token

    def asked_task(self, task: str | None) -> str:
        """Returns the task. Raises Error for one that the model does not have."""
        wanted = task or self.task or TRANSCRIBE
        if wanted not in TASKS:
            raise Error(f"[llm.transcribe] task: got {wanted!r}, need {' or '.join(TASKS)}")
        if not self.tasks and wanted != TRANSCRIBE:
            raise Error(f"[llm.transcribe] task: got {wanted!r}, need {TRANSCRIBE}: this model has no other task")
        return wanted

    def is_detected(self, language: str | None, task: str | None) -> bool:
        """True if neither the arguments nor the folder define the language."""
        if not self.languages or self.asked_language(language) is not None:
            return False
        forced = self._forced(language, task)
        return not forced or forced[0] is None

    def tokens(self, language: str | None, task: str | None, detected: int | None) -> list[int]:
        """Returns the tokens before a text, in transformers' order. detected: the id of a language."""
        prompt: list[int | None] = [self.start, *self._forced(language, task)]
        asked = self.asked_language(language)
        spoken = detected if asked is None else asked
        if spoken is not None:
            prompt[1:2] = [spoken]
        wanted = self.asked_task(task)
        if self.tasks:
            ids, own = set(self.tasks.values()), self.tasks[wanted]
            if not ids & set(prompt):
                prompt.append(own)
            elif task or self.task:
                prompt = [own if one in ids else one for one in prompt]
        if self.no_times is not None and prompt[-1] != self.no_times:
            prompt.append(self.no_times)
        return [one for one in prompt if one is not None]

    def _forced(self, language: str | None, task: str | None) -> tuple[int | None, ...]:
        """Returns the folder's forced ids, which older folders have. transformers ignores them if a call has a language
        or a task."""
        return () if language or task or self.language or self.task else self.forced


def code_of(token: str) -> str:
    """<|en|>  ->  en"""
    return token.removeprefix("<|").removesuffix("|>")


def load_speech_prompt(folder: Path, config: SpeechConfig) -> SpeechPrompt:
    """Returns the prompt defined in generation_config.json, or in config.json for folders without it.

    Raises Error for damaged fields, for ids beyond the vocabulary, and for fields that require anything but the
    likeliest token each time.
    """
    where = f"[llm.load] {folder}"
    own = json_object(folder, CONFIG, where)
    name = FILE if (folder / FILE).is_file() else CONFIG
    given = json_object(folder, FILE, where) if name == FILE else own
    return _Reader(f"{where}: {name}", given, own, config.vocab).prompt()


class _Reader:
    """Reads the fields of a file. Errors are collected and raised together."""

    def __init__(self, where: str, given: Mapping[str, Any], own: Mapping[str, Any], vocab: int) -> None:
        self.where, self.given, self.own, self.vocab = where, given, own, vocab
        self.wrong: list[str] = []

    def bad(self, name: str, got: Any, need: str) -> None:
        self.wrong.append(f"{name}: got {short(got)}, need {need}")

    def prompt(self) -> SpeechPrompt:
        for name, plain in PLAIN.items():
            got = self.given.get(name)
            if got is not None and not any(got == one and type(got) is type(one) for one in plain):
                need = f"{plain[0]!r}" if plain else "no such field"
                self.bad(name, got, f"{need}: each token is the likeliest one")
        several = self.given.get("is_multilingual") is not False
        ends = self.given.get("eos_token_id", self.own.get("eos_token_id", END))
        prompt = SpeechPrompt(
            start=self.id("decoder_start_token_id", self.either("decoder_start_token_id", START)),
            ends=frozenset(self.ids("eos_token_id", ends if isinstance(ends, list) else [ends])),
            languages=self.named("lang_to_id") if several else {},
            tasks=self.named("task_to_id") if several else {},
            forced=self.forced(),
            language=self.text("language"),
            task=self.text("task"),
            no_times=self.optional_id("no_timestamps_token_id"),
            suppressed=self.ids("suppress_tokens", self.given.get("suppress_tokens") or []),
            suppressed_first=self.ids("begin_suppress_tokens", self.given.get("begin_suppress_tokens") or []),
            most_new=self.most(),
            english=not several,
        )
        if prompt.tasks and not {*TASKS} <= prompt.tasks.keys():
            self.bad("task_to_id", dict(prompt.tasks), f"ids of {' and '.join(TASKS)}")
        if self.wrong:
            raise Error(f"{self.where}: {'; '.join(self.wrong)}")
        return prompt

    def either(self, name: str, default: int) -> Any:
        """Returns a field of generation_config.json, or of config.json if generation_config.json lacks it."""
        value = self.given.get(name)
        value = self.own.get(name) if value is None else value
        return default if value is None else value

    def id(self, name: str, got: Any) -> int:
        if isinstance(got, bool) or not isinstance(got, int) or not 0 <= got < self.vocab:
            self.bad(name, got, f"ids from 0 to {self.vocab - 1}")
            return 0
        return got

    def optional_id(self, name: str) -> int | None:
        return None if self.given.get(name) is None else self.id(name, self.given[name])

    def ids(self, name: str, got: Any) -> tuple[int, ...]:
        """Returns a list of ids. -1 is left out: older folders write [-1] for an empty list."""
        if not isinstance(got, Iterable) or isinstance(got, (str, Mapping)):
            self.bad(name, got, "a list of ids")
            return ()
        return tuple(self.id(name, one) for one in got if one != -1)

    def named(self, name: str) -> dict[str, int]:
        got = self.given.get(name) or {}
        if not isinstance(got, dict):
            self.bad(name, got, "an object of ids")
            return {}
        return {key: self.id(name, one) for key, one in got.items()}

    def text(self, name: str) -> str:
        got = self.given.get(name) or ""
        if not isinstance(got, str):
            self.bad(name, got, "a text")
            return ""
        return got

    def forced(self) -> tuple[int | None, ...]:
        """Returns the ids of [[1, id or null], [2, id], ..]: positions are consecutive from 1 on."""
        name = "forced_decoder_ids"
        got = self.given.get(name)
        got = self.own.get(name) if got is None else got
        if got is None:
            return ()
        pairs = isinstance(got, list) and all(isinstance(one, list) and len(one) == 2 for one in got)
        if not pairs or [one[0] for one in got] != list(range(1, len(got) + 1)):
            self.bad(name, got, "pairs of a place and an id, from place 1 on")
            return ()
        return tuple(None if one is None else self.id(name, one) for _, one in got)

    def most(self) -> int | None:
        name = "max_new_tokens" if self.given.get("max_new_tokens") is not None else "max_length"
        got = self.given.get(name)
        if got is not None and (isinstance(got, bool) or not isinstance(got, int) or got < 1):
            self.bad(name, got, "an integer from 1 on")
            return None
        return got
