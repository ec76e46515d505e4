"""One page of facts about a language model: its architecture, memory and speed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hexane.cost import estimate_program
from hexane.errors import Error
from hexane.graph import Array
from hexane.graph.decisions import counted
from hexane.llm.find import find_model
from hexane.llm.model import LanguageModel, cache_bytes, folder_of, tokenizer_of
from hexane.llm.quality import calibration_ids, table
from hexane.llm.sampling import fields_without_effect
from hexane.options import Options
from hexane.report.estimate import program_for
from hexane.targets import Chip, load_target
from hexane.train.decoder import LlamaConfig, read_llama
from hexane.train.decoder.formats import family_of, holds_gguf
from hexane.train.decoder.generate import Steps
from hexane.train.decoder.one_token import one_token
from hexane.train.text import load_chat_template, load_tokenizer

ENCODINGS = ("none", "int8", "blockwise8:b32", "blockwise4:b32", "palette4")
PROMPT, TOKENS = 64, 16  # Tokens of the measured prompt, and measured single tokens.
ESTIMATED_CONTEXT = 1024  # Context of the program that is estimated for a chip.
ROWS = 1024  # Rows of an embedding, encoded to measure the bytes per row.


@dataclass(frozen=True, slots=True)
class OnChip:
    """An estimate of one token on a chip, or why there is none. low, high: an interval of tokens a second."""

    target: str
    tokens_per_second: float | None
    low: float | None = None
    high: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """A language model's facts. family: by its name in config.json; shape: in words; context: the model's largest;
    weights: bytes by encoding; cache_per_1024_tokens: bytes of a conversation's cache; prompt_tokens_per_second,
    tokens_per_second: measured on this CPU with `threads`, `compress` and `dtype`; chips: estimated; unsupported:
    features of the model that Hexane lacks; perplexity: by encoding, if measured (`perplexities`)."""

    model: str
    family: str
    shape: str
    parameters: int
    context: int
    weights: dict[str, int]
    cache_per_1024_tokens: int
    compress: str
    threads: int
    dtype: str
    prompt_tokens_per_second: float
    tokens_per_second: float
    chips: tuple[OnChip, ...]
    unsupported: tuple[str, ...]
    perplexity: dict[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The facts as a JSON object."""
        return {**asdict(self), "chips": [asdict(one) for one in self.chips], "unsupported": list(self.unsupported)}


def facts(
    model: LanguageModel, targets: Sequence[str] = (), *, compress: str | None = None, dtype: str = "fp32"
) -> Facts:
    """Returns facts about a loaded model, which runs for a moment to be measured.

    targets: chips for which one token is estimated. compress, dtype: those with which the model was loaded. Raises
    Error for an unknown chip.
    """
    config = model.config
    prompt, single = _measured(model)
    return Facts(
        model=str(model.path),
        family=family_of(model.path),
        shape=_shape(config),
        parameters=config.parameters,
        context=model.longest,
        weights={encoding: encoded_bytes(config, encoding) for encoding in ENCODINGS},
        cache_per_1024_tokens=cache_bytes(config, 1024),
        compress=compress or "none",
        threads=model.threads,
        dtype=dtype,
        prompt_tokens_per_second=prompt,
        tokens_per_second=single,
        chips=tuple(_on_chip(model, target) for target in targets),
        unsupported=tuple(_unsupported(model)),
    )


def perplexities(
    model: str | os.PathLike[str],
    *,
    threads: int | None = None,
    calibration: str | os.PathLike[str] | None = None,
    encodings: Sequence[str] = ENCODINGS,
    dtype: str = "",
) -> dict[str, float]:
    """Returns the perplexity of a text by encoding; "none" is that of the file's own weights. model, calibration: see
    `load`. dtype: in which products multiply; "int8" affects the encoding "int8" alone.

    Raises Error as `load` does.
    """
    path = find_model(model)
    text = calibration_ids(
        load_tokenizer(tokenizer_of(path, can_be_given=False)), None if calibration is None else Path(calibration)
    )
    if calibration is None:
        text = text._replace(others=[])
    config, weights = read_llama(path)
    return dict(
        table(config, weights, Options(target="host", device="cpu", threads=threads, dtype=dtype), encodings, text)
    )


def encoded_bytes(config: LlamaConfig, encoding: str) -> int:
    """Returns the bytes of all weights and tables in memory on this CPU, extrapolated from decoders with
    one and two layers, few tokens and random weights."""

    def bytes_of(layers: int, vocab: int) -> int:
        small = replace(config, layers=layers, vocab=vocab, local=(), unrotated=())
        rng = np.random.default_rng(0)
        weights: dict[str, Array] = {
            name: rng.standard_normal(shape, np.float32) for name, shape in small.shapes().items()
        }
        options = Options(target="host", device="cpu", compress=None if encoding == "none" else encoding)
        return Steps(small, weights, options).net.memory["weights"]

    rows = min(config.vocab, ROWS)
    size = bytes_of(1, rows)
    if config.layers > 1:
        size += (bytes_of(2, rows) - size) * (config.layers - 1)
    if config.vocab > rows:
        size += (bytes_of(1, 2 * rows) - bytes_of(1, rows)) * (config.vocab - rows) // rows
    return size


def _measured(model: LanguageModel) -> tuple[float, float]:
    """Returns tokens a second of a prompt and of single tokens, without the time to compile their programs."""
    config = model.config
    count = min(PROMPT, config.seq)
    ids = np.random.default_rng(0).integers(0, min(config.vocab, model.tokenizer.vocab), count).tolist()
    steps = model._steps.context()
    steps.prompt(ids)
    start = time.perf_counter()
    steps.prompt(ids)
    prompt = count / (time.perf_counter() - start)
    places = [min(count + i, config.seq - 1) for i in range(TOKENS)]
    steps.one(ids[0], places[0])
    start = time.perf_counter()
    for place in places:
        steps.one(ids[0], place)
    single = TOKENS / (time.perf_counter() - start)
    steps.close()
    return prompt, single


def _on_chip(model: LanguageModel, target: str) -> OnChip:
    chip = load_target(target)
    if not isinstance(chip, Chip):
        raise Error(f"[llm.facts] targets: got {target!r}, need chips: this CPU is measured")
    short = replace(model.config, seq=min(model.config.seq, ESTIMATED_CONTEXT))
    try:
        forecast = estimate_program(program_for(one_token(short, model._steps.weights), chip), chip)
    except Error as error:
        return OnChip(chip.label, None, error=str(error))
    return OnChip(chip.label, 1e6 / forecast.latency_us, 1e6 / forecast.p90_us, 1e6 / forecast.p10_us)


def _shape(c: LlamaConfig) -> str:
    norm = "LayerNorm" if c.norm == "layer" else "RMS norm"
    positions = "learned positions" if c.positions else "no positions" if c.rope == "none" else "rotary positions"
    window = f", {len(c.local)} layers with a window of {c.window} tokens" if c.local else ""
    mlp = f"{'gated ' if c.gated else ''}MLP of {c.hidden} ({c.activation})"
    return (
        f"{counted(c.layers, 'layer')} of {c.dim} channels, {c.heads} heads of {c.head_dim} ({c.kv_heads} of keys),"
        f" {mlp}, {norm}, {positions}{window}; {c.vocab:,} tokens,"
        f" the head {'is' if c.tied else 'is not'} the embedding"
    )


def _unsupported(model: LanguageModel) -> list[str]:
    reasons = []
    try:
        load_chat_template(model.path)
    except Error as error:
        reasons.append(f"chats: {str(error).partition(': ')[2] or error}")
    if not holds_gguf(model.path) and (unread := fields_without_effect(folder_of(model.path))):
        reasons.append(f"fields of generation_config.json: {', '.join(unread)}")
    return [
        *reasons,
        "images, sounds, and calls of tools: text alone",
        "several texts in one step: each conversation computes its own",
        "a cache in fewer bits: keys and values are fp32",
    ]
