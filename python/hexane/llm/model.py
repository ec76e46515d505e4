"""A language model from its files: weights, tokenizer and chat template."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hexane.build import Tensor
from hexane.compression import Compression
from hexane.errors import Error, UnsupportedError
from hexane.graph import Array
from hexane.llm.answer import Answer
from hexane.llm.conversation import Conversation, Prompt
from hexane.llm.find import find_model
from hexane.llm.kinds import check_decoder
from hexane.llm.options import host_options
from hexane.llm.quality import AUTOMATIC, Quality, calibration_ids, judged
from hexane.llm.sampling import HEXANE, OPENAI, Sampling, sampling_of
from hexane.train.decoder import LlamaConfig, merge_adapters, read_adapter, read_llama
from hexane.train.decoder.encoded import encoded_count
from hexane.train.decoder.files import read_stored
from hexane.train.decoder.formats import end_ids, holds_gguf, holds_marked_decoder
from hexane.train.decoder.generate import Steps, check_request, encoded
from hexane.train.text import (
    NAMES,
    ChatTemplate,
    Tokenizer,
    find_tokenizer,
    load_chat_template,
    load_tokenizer,
    read_end_mark,
)

FP32 = 4  # bytes of an element of the cache


class LanguageModel:
    """A decoder that is ready to generate text, returned by `load`.

    path: of the model; config: its sizes, where `seq` is the context of a conversation; longest: the model's largest
    context; tokenizer, tokenizer_file: the tokenizer and its file; stops: ids that end a text; published: true for a
    Hugging Face folder or a GGUF file, whose tokenizer defines how a text begins; quality: the perplexities by which
    `compress` was judged, or None; dtype: in which products multiply, as in `load`.
    """

    def __init__(
        self,
        path: Path,
        config: LlamaConfig,
        steps: Steps,
        tokenizer: Tokenizer,
        ends: frozenset[int],
        longest: int = 0,
        quality: Quality | None = None,
        tokenizer_file: Path | None = None,
        dtype: str = "",
    ) -> None:
        self.quality, self.tokenizer_file, self.dtype = quality, tokenizer_file, dtype
        self.longest = longest or config.seq
        self.path, self.config, self.tokenizer = path, config, tokenizer
        self.stops = tokenizer.stops | ends
        self.published = (folder_of(path) / "config.json").is_file() or holds_gguf(path)
        self._steps, self._own = steps, Conversation(self, steps)
        self._template: ChatTemplate | None = None

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "[pickle] got a language model, whose caches and mapped weights belong to this process; need its file: load"
            " it in each process, or serve it (hexane serve)"
        )

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """Returns the text after a prompt, or the answer to messages, in the model's default conversation:

            for piece in model.generate([{"role": "user", "content": "What is a tide?"}], steps=100):
                print(piece, end="", flush=True)

        options: see `Conversation.generate`.
        """
        return self._own.generate(prompt, **options)

    def logits(self, ids: Sequence[int]) -> Array:
        """Returns logits (len(ids), vocab) in fp32 after each of these tokens.

        Raises Error for ids beyond the vocabulary, and for more tokens than the context.
        """
        ids = [int(one) for one in ids]
        check_request(self.config, ids, 0, 0.0, 1.0, 0, self.config.vocab)
        with self._own._cache.using:
            self._own._cache.turn += 1
            self._own._cache.tokens.clear()
            return np.stack(list(self._steps.rows(ids)))

    def context(self) -> Conversation:
        """Returns a further conversation with its own cache. Weights are shared."""
        return Conversation(self, self._steps.context())

    def encode(self, prompt: Prompt) -> list[int]:
        """Returns the ids of a text or of messages. A list of ids is returned unchanged.

        Raises Error for messages without a chat template, for no tokens, and for other types.
        """
        if not isinstance(prompt, (str, Sequence, np.ndarray)):
            raise Error(f"[llm.generate] prompt: got {type(prompt).__name__}, need a text, messages, or a list of ids")
        if isinstance(prompt, str):
            ids = [*self.begins, *self.tokenizer.encode(prompt, begin=False)]
        elif messages := [one for one in prompt if not isinstance(one, (int, np.integer))]:
            ids = self.tokenizer.encode(self.render(messages), begin=False)
        else:
            ids = [int(one) for one in prompt]  # type: ignore[arg-type]
        if not ids:
            raise Error("[llm.generate] prompt: got an empty prompt, need some text: this tokenizer has no BOS token")
        return ids

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Returns messages rendered with the model's chat template, up to where the answer begins."""
        if self._template is None:
            self._template = load_chat_template(self.path)
        for one in messages:
            if not isinstance(one, Mapping) or not isinstance(one.get("content"), str) or "role" not in one:
                raise Error(f"[llm.generate] messages: got {one!r}, need objects with role and content, both texts")
        return self._template(messages)

    @property
    def begins(self) -> list[int]:
        """The list of ids put before each text: one id, or empty."""
        return self.tokenizer.encode("", begin=self.tokenizer.adds_begin or not self.published)

    @property
    def weights(self) -> Mapping[str, Array | Tensor]:
        """The weights by the names of `config.shapes()`: in fp32, encoded, or (matrices) in the 16-bit dtype of the
        file."""
        return self._steps.weights

    @property
    def encoded(self) -> int:
        """The number of weights that are stored in fewer bits."""
        return encoded_count(self._steps.weights)

    @cached_property
    def sampling(self) -> Sampling:
        """The default options of sampling: those of the folder's generation_config.json, or else Hexane's."""
        return self._sampling(HEXANE)

    @cached_property
    def served_sampling(self) -> Sampling:
        """The default options of sampling for requests to a server: `sampling`, with the defaults of OpenAI's API for
        folders without `do_sample`."""
        return self._sampling(OPENAI)

    def _sampling(self, default: Sampling) -> Sampling:
        return default if holds_gguf(self.path) else sampling_of(folder_of(self.path), default)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the layers' keys and values."""
        return self._steps.net.state_names

    @property
    def threads(self) -> int:
        """CPU threads of one step."""
        return self._steps.net.threads

    @property
    def memory(self) -> dict[str, int]:
        """Bytes: "weights", which all conversations share; "cache", of each conversation; "cache_per_1024_tokens"."""
        has = self._steps.net.memory
        return {
            "weights": has.get("weights", 0) + has.get("param", 0),
            "cache": has.get("state", 0),
            "cache_per_1024_tokens": cache_bytes(self.config, 1024),
        }

    def __repr__(self) -> str:
        return f"<hexane.llm.LanguageModel {self.path.name}, {self.config.parameters:,} parameters>"


def cache_bytes(config: LlamaConfig, tokens: int) -> int:
    """Returns the bytes of the fp32 keys and values of this many tokens."""
    return 2 * FP32 * config.layers * config.kv_heads * config.head_dim * tokens


def load(
    model: str | os.PathLike[str],
    *,
    context: int | None = None,
    compress: str | Compression | None = None,
    dtype: str = "",
    threads: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    lora: str | os.PathLike[str] | None = None,
    at_most: int | None = None,
    calibration: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> LanguageModel:
    """Loads a decoder for this CPU; for arguments and errors see `hexane.llm.load`, which also loads encoders. Raises
    Error for an encoder.
    """
    path = find_model(model)
    check_decoder(path)
    options = host_options(dtype, threads, compress)
    tokenizer_file = tokenizer_of(path) if tokenizer is None else Path(tokenizer)
    known = load_tokenizer(tokenizer_file)
    config, weights = _weights(path, stored=compress is None, lora=lora)
    longest = config.seq
    if context is None and at_most is not None:
        context = min(at_most, longest)
    if context is not None:
        if isinstance(context, bool) or not isinstance(context, int) or not 1 <= context <= config.seq:
            raise Error(f"[llm.load] context: got {context!r}, need 1 to the {config.seq} of the model")
        config = replace(config, seq=context)
    if not known.fits(config.vocab):
        raise Error(f"[llm.load] {path}: got {config.vocab} tokens, need the tokenizer's {known.vocab}")
    quality, asked = None, options.compression
    if asked == AUTOMATIC or (asked not in (None, Compression("none")) and not force):
        assert asked is not None
        text = calibration_ids(known, None if calibration is None else Path(calibration))
        if calibration is None and asked != AUTOMATIC:
            text = text._replace(others=[])  # fitting scales takes several times as long as encoding
        weights, quality = judged(config, weights, options, asked, text)
        options = replace(options, compress=None)
    if options.compression is not None:
        weights = encoded(config, weights, options)  # the file's weights are freed before programs are compiled
        options = replace(options, compress=None)
    steps = Steps(config, weights, options)
    ends = end_ids(path) | _named_end(path, known)
    return LanguageModel(path, config, steps, known, ends, longest, quality, tokenizer_file, dtype)


def _named_end(path: Path, known: Tokenizer) -> frozenset[int]:
    """Returns the `eos_token` of the tokenizer's files: a chat template may end messages with a token that config.json
    does not name."""
    mark = None if holds_gguf(path) else read_end_mark(folder_of(path))
    number = None if mark is None else known.id_of(mark)
    return frozenset() if number is None else frozenset((number,))


def _weights(
    path: Path, stored: bool, lora: str | os.PathLike[str] | None
) -> tuple[LlamaConfig, Mapping[str, Array | Tensor]]:
    """Returns config and weights. stored: keep the encoding of the file's weights."""
    if stored and lora is None:
        return read_stored(path, in_16_bits=True)
    config, weights = read_llama(path)
    if lora is not None:
        weights = merge_adapters(config, weights, *read_adapter(lora, config, weights))
    for array in weights.values():
        array.flags.writeable = False  # graphs do not copy read-only arrays
    return config, weights


def folder_of(path: Path) -> Path:
    """Returns the folder with the files next to the weights."""
    return path if path.is_dir() else path.parent


def _no_tokenizer(path: Path) -> str:
    folder = folder_of(path)
    beside = path.name
    if path.is_dir():
        beside = next((name for name in ("checkpoint.hxc", "config.json") if (path / name).exists()), "")
    place = f"into {folder}" + (f" (next to {beside})" if beside else "")
    return f"{path.name} has no tokenizer: copy its {' or '.join(NAMES)} {place}"


def tokenizer_of(path: Path, *, can_be_given: bool = True) -> Path:
    """Returns the file of a model's tokenizer. Raises Error for a model without one, and for a model that is no
    decoder. can_be_given: the caller has an argument `tokenizer`."""
    if holds_gguf(path):
        return path
    check_decoder(path)
    tokenizer = find_tokenizer(folder_of(path))
    if tokenizer is None:
        if not holds_marked_decoder(path):
            read_llama(path)  # raises Error for a file that is no model
        raise Error(f"[llm.load] {_no_tokenizer(path)}{', or give tokenizer=a file' if can_be_given else ''}")
    return tokenizer
