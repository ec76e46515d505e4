"""Whisper from its files: transcribes sounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hexane.build import Tensor
from hexane.errors import Error
from hexane.feeds.sounds import read_wav
from hexane.graph import Array, Graph
from hexane.importers.speech import SpeechConfig, read_speech
from hexane.importers.speech.graph import one_token, sound_memory, speech_encoder
from hexane.llm.options import host_options
from hexane.llm.speech_features import RATE, SpeechFeatures, load_speech_features
from hexane.llm.speech_prompt import SpeechPrompt, code_of, load_speech_prompt
from hexane.llm.speech_text import SpeechTokenizer, load_speech_tokenizer
from hexane.options import Options
from hexane.runtime import Model
from hexane.runtime.functions import Functions
from hexane.runtime.shared_weights import SharedWeights
from hexane.train.decoder.generate import NotFinite

LOUDEST = 100.0  # Largest accepted sample. Filters may overshoot 1; larger samples are unscaled 16-bit integers.
ENCODE, MEMORY, TOKEN = "encoder", "sound", "one token"
MAKE: Mapping[str, Callable[[SpeechConfig, Mapping[str, Array | Tensor]], Graph]] = {
    ENCODE: partial(speech_encoder, batch=1),
    MEMORY: sound_memory,
    TOKEN: one_token,
}


class SpeechModel:
    """A Whisper model that is ready to run, returned by `load`.

    path: the model's folder; config: its sizes; parameters: their number. Features, prompt and tokenizer are loaded on
    first use. Calls from several threads run one after the other.
    """

    def __init__(
        self, path: Path, config: SpeechConfig, weights: Mapping[str, Array], options: Options,
        tokenizer: Path | None = None,
    ) -> None:  # fmt: skip
        self.path, self.config, self._file = path, config, tokenizer
        self.parameters = sum(one.size for one in weights.values())
        self._programs, self._running = _Programs(config, weights, options), Lock()

    @cached_property
    def features_of(self) -> SpeechFeatures:
        """Converts samples to the network's input. Raises Error if the folder's files do not define the
        conversion (see `load_speech_features`)."""
        return load_speech_features(self.path, self.config)

    @cached_property
    def prompt(self) -> SpeechPrompt:
        """Languages, tasks and limits, from generation_config.json."""
        return load_speech_prompt(self.path, self.config)

    @cached_property
    def tokenizer(self) -> SpeechTokenizer:
        """Converts tokens to text. Raises Error without a tokenizer.json, and for one with more tokens
        than the model."""
        tokenizer = load_speech_tokenizer(self.path, self._file)
        if tokenizer.vocab > self.config.vocab:
            raise Error(
                f"[llm.load] {self.path}: got {self.config.vocab} tokens, need the tokenizer's {tokenizer.vocab}"
            )
        return tokenizer

    def transcribe(self, sound: Any, language: str | None = None, task: str | None = None) -> str:
        """Returns the text of a sound.

        sound: samples at 16 kHz, floats from -1 to 1, or the path of a wav file. Sounds longer than a window (30 s) are
        split into windows. language: a code or name, such as "en" or "English"; None: the folder's, or if it has none,
        detected in the first window. task: "transcribe", or "translate" into English; None: the folder's, or
        "transcribe". Each token is the likeliest one, as in transformers' `generate`.

        Raises Error for anything but a sound, and for a language or a task that the model does not have.
        """
        return "".join(self.pieces(sound, language, task)).strip()

    def pieces(self, sound: Any, language: str | None = None, task: str | None = None) -> Iterator[str]:
        """Yields the text of each window once computed. Arguments: see `transcribe`."""
        decode = self.tokenizer.decode
        return (decode(ids) for ids in self._texts(sound, language, task))

    def tokens(self, sound: Any, language: str | None = None, task: str | None = None) -> list[int]:
        """Returns the tokens of a text, without prompt and end token. Arguments: see `transcribe`."""
        return [one for ids in self._texts(sound, language, task) for one in ids]

    def language(self, sound: Any) -> str | None:
        """Returns the code of the first window's likeliest language; None for a model with one language."""
        if not self.prompt.languages:
            return None
        window = next(self._windows(sound))
        with self._running:
            token = self._detected(self._programs.memory(self._encoded(window)))
        return next(code_of(name) for name, one in self.prompt.languages.items() if one == token)

    def features(self, sound: Any) -> Array:
        """Returns the network's input for each window of a sound, (windows, mels, frames) in fp32."""
        return np.stack([*self._windows(sound)])

    def encode(self, features: Any) -> Array:
        """Returns the encoder's result (positions, dim) in fp32 for the features (mels, frames) of a window, or
        (windows, positions, dim) for several windows. Raises Error for features of another shape."""
        rows = self._checked(features)
        with self._running:
            states = np.stack([self._encoded(one) for one in rows]) if len(rows) else np.empty((0, *self._states))
        alone: Array = states[0] if np.ndim(features) == 2 else states.astype(np.float32, copy=False)
        return alone

    def logits(self, features: Any, ids: Sequence[int]) -> Array:
        """Returns logits (tokens, vocab) in fp32 after each token. ids: tokens, beginning with the prompt. features:
        (mels, frames) of one window. Raises Error for ids beyond the vocabulary, and for too many ids."""
        c, given = self.config, [*map(int, ids)]
        if not 1 <= len(given) <= c.tokens:
            raise Error(f"[llm.logits] ids: got {len(given)}, need 1 to {c.tokens}")
        if bad := [one for one in given if not 0 <= one < c.vocab]:
            raise Error(f"[llm.logits] ids: got {bad[0]}, need 0 to {c.vocab - 1}")
        rows = self._checked(features)
        if len(rows) != 1:
            raise Error(f"[llm.logits] features: got {len(rows)} windows, need one")
        with self._running:
            sound = self._programs.memory(self._encoded(rows[0]))
            return np.concatenate([self._programs.one(token, i, sound) for i, token in enumerate(given)])

    @property
    def window(self) -> float:
        """Seconds of a window of sound."""
        return self.features_of.length / RATE

    @property
    def threads(self) -> int:
        """Threads of the CPU, in one call."""
        return self._programs.program(TOKEN).threads

    def graph(self) -> Graph:
        """Returns the encoder's graph for one window."""
        return speech_encoder(self.config, self._programs.weights.arrays, 1)

    def milliseconds(self, calls: int = 5) -> tuple[float, float]:
        """Returns the median times on this machine of a window's encoding and of a token, in milliseconds."""
        c, programs = self.config, self._programs
        window = np.zeros((c.mels, c.frames), np.float32)
        with self._running:
            sound = programs.memory(self._encoded(window))
            programs.one(0, 0, sound)
            return (
                _median(lambda: programs.memory(self._encoded(window)), calls),
                _median(lambda: programs.one(0, 0, sound), calls),
            )

    @property
    def _states(self) -> tuple[int, int]:
        return self.config.positions, self.config.dim

    def _texts(self, sound: Any, language: str | None, task: str | None) -> Iterator[list[int]]:
        """Returns an iterator over the tokens of each window. Arguments are checked before the first window."""
        spoken = self.prompt.asked_language(language)
        self.prompt.asked_task(task)
        windows = self._windows(sound)
        return self._decoded(windows, language, task, spoken)

    def _decoded(
        self, windows: Iterator[Array], language: str | None, task: str | None, spoken: int | None
    ) -> Iterator[list[int]]:
        unknown = self.prompt.is_detected(language, task)
        for window in windows:
            with self._running:
                memory = self._programs.memory(self._encoded(window))
                if unknown and spoken is None:
                    spoken = self._detected(memory)
                tokens = self._text(self.prompt.tokens(language, task, spoken), memory)
            yield tokens

    def _text(self, prompt: Sequence[int], sound: Mapping[str, Array]) -> list[int]:
        said, room = self.prompt, self.config.tokens
        if len(prompt) >= room:
            raise Error(f"[llm.transcribe] {self.path}: got a prompt of {len(prompt)} tokens, need less than {room}")
        end = room if said.most_new is None else min(room, len(prompt) + said.most_new)
        never, first = (np.array(ids, np.intp) for ids in (said.suppressed, said.suppressed_first))
        for place, token in enumerate(prompt):
            row = self._programs.one(token, place, sound)
        tokens: list[int] = []
        while True:
            token = _likeliest(row[0], never, *(() if tokens else (first,)))
            if token in said.ends:
                return tokens
            tokens.append(token)
            place = len(prompt) + len(tokens)
            if place >= end:
                return tokens
            row = self._programs.one(token, place - 1, sound)

    def _detected(self, sound: Mapping[str, Array]) -> int:
        """Returns the id of the likeliest language after the first token."""
        ids = [*self.prompt.languages.values()]
        row = self._programs.one(self.prompt.start, 0, sound)[0]
        _check_finite(row)
        return ids[int(np.argmax(row[ids]))]

    def _encoded(self, window: Array) -> Array:
        states: Array = self._programs.program(ENCODE)(window[None])[0]
        return states

    def _windows(self, sound: Any) -> Iterator[Array]:
        """Returns an iterator over features of windows. Raises Error immediately for anything but a sound."""
        samples, features = read_samples(sound), self.features_of
        return (features(samples[at : at + features.length]) for at in range(0, len(samples), features.length))

    def _checked(self, features: Any) -> Array:
        """Returns (windows, mels, frames) in fp32."""
        c, given = self.config, np.asarray(features)
        if given.dtype.kind != "f" or given.ndim not in (2, 3) or given.shape[-2:] != (c.mels, c.frames):
            got = f"{given.dtype} of shape {given.shape}"
            raise Error(f"[llm.encode] features: got {got}, need floats of shape ({c.mels}, {c.frames})")
        return np.ascontiguousarray(given.reshape(-1, c.mels, c.frames), np.float32)

    def __repr__(self) -> str:
        return f"<hexane.llm.SpeechModel {self.path.name}, {self.parameters:,} parameters>"


def read_samples(sound: Any, where: str = "[llm.transcribe]") -> Array:
    """Returns the samples of a sound as given to `SpeechModel.transcribe`. Raises Error, beginning with `where`, for
    anything else."""
    if isinstance(sound, (str, os.PathLike)):
        where = f"{where} {os.fspath(sound)}"
        given, rate = read_wav(Path(sound), where)
        if rate != RATE:
            need = f"{RATE}: `ffmpeg -i IN.wav -ar {RATE} OUT.wav` makes them"
            raise Error(f"{where}: got {rate} samples a second, need {need}")
        samples: Array = given.mean(1)
    else:
        samples = np.asarray(sound)
        if samples.dtype.kind != "f" or samples.ndim != 1:
            got = f"{samples.dtype} of shape {samples.shape}"
            raise Error(f"{where} sound: got {got}, need floats from -1 to 1, one channel at {RATE} Hz, or a wav file")
        where = f"{where} sound"
    if not len(samples):
        raise Error(f"{where}: got no samples, need a sound")
    loudest = float(np.abs(samples).max())
    if not np.isfinite(loudest):
        raise Error(f"{where}: got samples that are not finite, need numbers from -1 to 1")
    if loudest > LOUDEST:
        raise Error(f"{where}: got samples up to {loudest:g}, need numbers from -1 to 1: int16 ones divided by 32768")
    return samples


def _median(call: Callable[[], object], calls: int) -> float:
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return float(np.median(times))


def _likeliest(row: Array, *suppressed: Array) -> int:
    _check_finite(row)
    row = row.copy()
    for ids in suppressed:
        row[ids] = -np.inf
    return int(np.argmax(row))


def _check_finite(row: Array) -> None:
    if not np.isfinite(row).all():
        raise NotFinite("[llm.transcribe] got logits that are not finite, need undamaged weights")


class _Programs:
    """The programs of the encoder, of keys and values from its result, and of the step of one token, compiled on first
    use with shared weights."""

    def __init__(self, config: SpeechConfig, weights: Mapping[str, Array], options: Options) -> None:
        self.config = config
        self.weights = SharedWeights(weights)
        self._made, self._making = Functions(options, self.weights), Lock()

    def program(self, name: str) -> Model:
        self.weights.check_unchanged()
        with self._making:
            if name not in self._made:
                self._made.add(name, MAKE[name](self.config, self.weights.constants))
        return self._made[name]

    def memory(self, states: Array) -> dict[str, Array]:
        """Returns the keys and values of a sound, by the names of `one_token`'s inputs."""
        return dict(self.program(MEMORY)(states[None]))

    def one(self, token: int, position: int, sound: Mapping[str, Array]) -> Array:
        """Returns the logits (1, vocab) after one token."""
        given = {"token": np.array([token], np.int32), "position": np.array([position], np.int32)}
        logits: Array = self.program(TOKEN)(**given, **sound)
        return logits


def load_speech(
    path: Path, *, dtype: str = "", threads: int | None = None, tokenizer: str | os.PathLike[str] | None = None
) -> SpeechModel:
    """Loads a Whisper model for this CPU. Raises Error for files that cannot be read, and for unknown fields that may
    change the numbers."""
    config, weights = read_speech(path, stored=True)
    options = host_options(dtype, threads, encodes=False)
    return SpeechModel(path, config, weights, options, None if tokenizer is None else Path(tokenizer))
