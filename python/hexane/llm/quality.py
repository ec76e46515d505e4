"""Measures the perplexity of a language model in an encoding, and chooses encodings that preserve it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hexane.build import Tensor
from hexane.compression import Compression
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_regular, read_all
from hexane.llm.calibration import TEXT
from hexane.options import Options
from hexane.train.decoder import LlamaConfig
from hexane.train.decoder.config import EMBEDDING, HEAD, POSITIONS
from hexane.train.decoder.generate import Steps
from hexane.train.text import Tokenizer

TOKENS = 256  # Tokens of a text on which perplexity is measured.
FITTED = 512  # Later tokens of the text, whose activations block scales are fitted to.
FEWEST = 2
MOST = 1.1  # Largest ratio to the original weights' perplexity, except with `force`.
CLOSE = 1.02  # Largest ratio to the original weights' perplexity for "auto".
AUTOMATIC = Compression("auto")
EIGHT = "blockwise8:b32"
TABLES = dict.fromkeys((EMBEDDING, POSITIONS, HEAD), EIGHT)
Weights = Mapping[str, Array | Tensor]


@dataclass(frozen=True, slots=True)
class Choice:
    """An encoding of all weights. mode: of all weights except those in `others`; others: modes by patterns of weights'
    names."""

    name: str
    mode: str | Compression | None
    others: Mapping[str, str]


# In the order of increasing bytes. Token embeddings and the head always have 8 bits: their errors affect every token.
# Of the other weights, the attention's values and the MLP's output product matter most, so they get 8 bits first.
AUTO = (
    Choice("auto: 4 bits, tables and head 8", "blockwise4:b32", TABLES),
    Choice(
        "auto: 4 bits, values, mlp.down_proj, tables and head 8",
        "blockwise4:b32",
        {**TABLES, "*.v_proj.weight": EIGHT, "*.down_proj.weight": EIGHT},
    ),
    Choice("auto: 8 bits", EIGHT, {}),
)


@dataclass(frozen=True, slots=True)
class Quality:
    """An encoding's quality. encoding: in words; perplexity: with it; plain: the original weights' on the same text."""

    encoding: str
    perplexity: float
    plain: float


class Calibration(NamedTuple):
    """Tokens of a text. measured: for the perplexity; others: later tokens, to fit scales."""

    measured: list[int]
    others: list[int]


def calibration_ids(tokenizer: Tokenizer, file: Path | None = None) -> Calibration:
    """Returns the first tokens of a text: a UTF-8 file, or Hexane's own text.

    Raises Error for a file that cannot be read, and for a text of too few tokens.
    """
    text, where = TEXT, "[llm.load] calibration"
    if file is not None:
        where = f"{where}: {file}"
        try:
            text = read_all(open_regular(file, where, "text"), where).decode()
        except UnicodeDecodeError as error:
            raise Error(f"{where}: {error}, need text in UTF-8") from None
    ids = tokenizer.encode(text, begin=tokenizer.adds_begin)[: TOKENS + FITTED]
    if len(ids) < FEWEST:
        raise Error(f"{where}: got {len(ids)} tokens, need a text of at least {FEWEST}, or force=True")
    return Calibration(ids[:TOKENS], ids[TOKENS:])


def perplexity(steps: Steps, config: LlamaConfig, ids: Sequence[int]) -> float:
    """Returns the exponential of the mean of -log(probability of the next token), over parts that fit into the context.
    Infinite if a logit is not finite."""
    losses: list[float] = []
    for begin in range(0, max(len(ids) - 1, 1), config.seq):
        part = list(ids[begin : begin + config.seq + 1])
        for row, token in zip(steps.rows(part[: config.seq]), part[1:], strict=False):
            if not np.isfinite(row).all():
                return float("inf")
            wide = row.astype(np.float64)
            top = wide.max()
            losses.append(float(top + np.log(np.exp(wide - top).sum()) - wide[token]))
    return exp(min(float(np.mean(losses)), 700.0))


def measured(
    config: LlamaConfig, weights: Weights, options: Options, choice: Choice, text: Calibration
) -> tuple[float, Weights]:
    """Returns the perplexity in an encoding, and the encoded weights. Block scales are fitted to `text.others`."""
    short = replace(config, seq=min(config.seq, TOKENS))
    options = replace(options, compress=choice.mode)
    steps = Steps(short, weights, options, encodings=choice.others, text=text.others)
    return perplexity(steps, short, text.measured), steps.weights


def judged(
    config: LlamaConfig, weights: Weights, options: Options, asked: Compression, text: Calibration
) -> tuple[Weights, Quality]:
    """Returns the encoded weights and their quality. "auto" chooses the first of `AUTO` with at most 1.02 times the
    perplexity of the original weights, or the original weights. Raises Error if any other mode has more than 1.1 times,
    and if the logits of the original weights are not finite."""
    plain, _ = measured(config, weights, options, Choice("none", None, {}), text)
    if not isfinite(plain):
        raise Error(
            "[llm.load] compress: got weights that give logits with inf or NaN before any compression, need a file"
            " whose logits are finite"
        )
    if asked != AUTOMATIC:
        reached, encoded = measured(config, weights, options, Choice(asked.mode, asked, {}), text)
        if not reached <= MOST * plain:
            raise Error(
                f"[llm.load] compress: got {asked.mode!r} with a perplexity of {reached:.4g}, need at most {MOST} times"
                f" the {plain:.4g} of the original weights; choose another encoding, 'auto', or force=True"
                " (--force)"
            )
        return encoded, Quality(asked.mode, reached, plain)
    for choice in AUTO:
        reached, encoded = measured(config, weights, options, choice, text)
        if reached <= CLOSE * plain:
            return encoded, Quality(choice.name, reached, plain)
    return weights, Quality("auto: none", plain, plain)


def table(
    config: LlamaConfig, weights: Weights, options: Options, modes: Sequence[str], text: Calibration
) -> Iterator[tuple[str, float]]:
    """Yields the perplexity in each encoding; "none" means the original weights."""
    for mode in modes:
        yield mode, measured(config, weights, options, Choice(mode, None if mode == "none" else mode, {}), text)[0]
