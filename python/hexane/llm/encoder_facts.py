"""One page of facts about a text encoder: its architecture, memory and speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hexane.cost import estimate_program
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.graph.decisions import counted
from hexane.importers.encoders import EncoderConfig, Pooling, body
from hexane.llm.encoder import BATCH, Programs, TextEncoder
from hexane.llm.facts import ENCODINGS, ROWS
from hexane.options import Options
from hexane.report.estimate import program_for
from hexane.report.preflight import preflight
from hexane.targets import Chip, load_target

COUNT = 128  # tokens of the measured and estimated text


@dataclass(frozen=True, slots=True)
class EncoderOnChip:
    """An estimate of one input on a chip, such as a text of `tokens`, or the reason why there is none. low, high: an
    interval of milliseconds. parts: segments on the engine. left: names of ops that the engine does not run."""

    target: str
    milliseconds: float | None
    low: float | None = None
    high: float | None = None
    parts: int = 0
    left: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """A text encoder's facts. family: by its name in config.json; shape, pooling: in words; head: the suffix of
    `architectures`, or ""; longest: tokens of a text; dim: of an embedding; weights: bytes by encoding; milliseconds:
    of one text of `tokens` tokens, measured on this CPU with `threads`, `compress` and `dtype`; texts_per_second:
    several texts in one call; chips: estimated."""

    model: str
    family: str
    shape: str
    parameters: int
    longest: int
    dim: int
    pooling: str
    head: str
    weights: dict[str, int]
    compress: str
    threads: int
    dtype: str
    tokens: int
    milliseconds: float
    texts_per_second: float
    chips: tuple[EncoderOnChip, ...]

    def record(self) -> dict[str, Any]:
        """The facts as a JSON object."""
        return {**asdict(self), "chips": [{**asdict(one), "left": list(one.left)} for one in self.chips]}


def encoder_facts(
    model: TextEncoder, targets: Sequence[str] = (), *, compress: str | None = None, dtype: str = "fp32"
) -> EncoderFacts:
    """Returns facts about a loaded encoder, which runs for a moment to be measured.

    targets: chips for which one text is estimated. compress, dtype: those with which the model was loaded. Raises Error
    for an unknown chip.
    """
    config = model.config
    count = min(COUNT, config.longest)
    return EncoderFacts(
        model=str(model.path),
        family=config.family,
        shape=_shape(config),
        parameters=model.parameters,
        longest=model.tokenizer.most,
        dim=config.dim,
        pooling=_pooling(model.pooling),
        head=config.head,
        weights={encoding: encoded_bytes(config, encoding) for encoding in ENCODINGS},
        compress=compress or "none",
        threads=model.threads,
        dtype=dtype,
        tokens=count,
        milliseconds=model.milliseconds(count),
        texts_per_second=BATCH * 1e3 / model.milliseconds(count, BATCH),
        chips=tuple(on_chip(model.graph(count), target) for target in targets),
    )


def encoded_bytes(config: EncoderConfig, encoding: str) -> int:
    """Returns the bytes of an encoder's weights in memory on this CPU, extrapolated from encoders with
    one and two layers, few tokens and random weights."""

    def bytes_of(layers: int, vocab: int) -> int:
        small = replace(config, layers=layers, vocab=vocab, head="", pooled=False)
        rng = np.random.default_rng(0)
        weights: dict[str, Array] = {
            name: rng.standard_normal(shape, np.float32) for name, (_, shape) in body(small).items()
        }
        compress = None if encoding == "none" else encoding
        options = Options(target="host", device="cpu", compress=compress)
        program = Programs(small, Pooling(), weights, options).program(1, 1, "sentence_embedding")
        return program.memory["weights"]

    rows = min(config.vocab, ROWS)
    size = bytes_of(1, rows)
    if config.layers > 1:
        size += (bytes_of(2, rows) - size) * (config.layers - 1)
    if config.vocab > rows:
        size += (bytes_of(1, 2 * rows) - bytes_of(1, rows)) * (config.vocab - rows) // rows
    return size


def on_chip(graph: Graph, target: str) -> EncoderOnChip:
    """Returns the estimate of an encoder on a chip. Raises Error for a target that is no chip."""
    chip = load_target(target)
    if not isinstance(chip, Chip):
        raise Error(f"[llm.facts] targets: got {target!r}, need chips: this CPU is measured")
    try:
        report = preflight(graph, target=target)
        forecast = estimate_program(program_for(graph, chip), chip)
    except Error as error:
        return EncoderOnChip(chip.label, None, error=str(error))
    parts = sum(one.device == "ane" for one in report.segments)
    left = [one.op for segment in report.segments if segment.device != "ane" for one in segment.nodes]
    return EncoderOnChip(
        chip.label,
        forecast.latency_us / 1e3,
        forecast.p10_us / 1e3,
        forecast.p90_us / 1e3,
        parts,
        tuple(dict.fromkeys(left)),
    )


def _shape(c: EncoderConfig) -> str:
    types = f", {c.types} types of tokens" if c.types else ""
    near = ", terms of relative positions" if c.buckets else ""
    return (
        f"{counted(c.layers, 'layer')} of {c.dim} channels, {c.heads} heads of {c.head_dim}, MLP of {c.hidden}"
        f" ({c.activation}), LayerNorm after each, {c.positions} learned positions{near}{types}; {c.vocab:,} tokens"
    )


def _pooling(pooling: Pooling) -> str:
    said = {"cls": "the first token", "mean": "the mean of the tokens", "max": "the largest number of the tokens"}
    text = said.get(pooling.mode, "the sum of the tokens by the root of their number")
    text += ", of length 1" if pooling.normalized else ""
    return text if pooling.given else f"{text} (the folder does not say)"
