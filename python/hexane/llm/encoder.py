"""A text encoder from its files: embeddings of texts, and logits of models with a head."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hexane.build import Tensor
from hexane.compression import Compression
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.encoders import EncoderConfig, EncoderFiles, Pooling, encoder, outputs_of, read_encoder
from hexane.importers.encoders.config import short
from hexane.importers.encoders.graph import ANSWERS, EMBEDDING, IDS, LOGITS, MASK, TYPES
from hexane.llm.calibration import TEXT
from hexane.llm.encoder_tokenizer import EncoderTokenizer, load_encoder_tokenizer, several_texts
from hexane.llm.options import host_options
from hexane.options import Options
from hexane.runtime import Model
from hexane.runtime.compiler import target_of
from hexane.runtime.functions import Functions
from hexane.runtime.shared_weights import SharedWeights
from hexane.train.decoder.encoded import encoded_count, encoded_weights

BATCH = 8  # texts of about the same length in one call
# Lengths, in tokens, for which programs are compiled; the model's largest length has one, too.
LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
LEAST_COSINE = 0.98  # Least cosine of embeddings by encoded and by original weights.
AUTO = ("blockwise4:b32", "blockwise8:b32")  # Candidates of "auto", the fewest bits first.
AUTO_COSINE = 0.99  # Least cosine for "auto".
SENTENCES = 8  # Sentences of the calibration text that test encoded weights.
ROWS_OF_TOKENS = ("ForMaskedLM", "ForPreTraining", "ForTokenClassification", "ForQuestionAnswering")
TEXT_OR_IDS = "a text, a pair of texts as a tuple or a list of ids"

Row = tuple[list[int], list[int]]  # ids and types


class TextEncoder:
    """A text encoder that is ready to run, returned by `load`.

    path: the model's folder; config: its sizes; pooling: how the tokens' vectors become one vector; tokenizer;
    parameters: their number; encoding: the mode of `compress`, or "none"; quality: the
    least cosine of embeddings with encoded and with original weights, or None if it was not measured.
    """

    def __init__(self, path: Path, files: EncoderFiles, programs: Programs, tokenizer: EncoderTokenizer) -> None:
        self.path, self.config, self.pooling = path, files.config, files.pooling
        self.parameters, self.tokenizer = files.parameters, tokenizer
        self.encoding = "none"
        self.quality: float | None = None
        self._programs = programs

    def embed(self, texts: str | Sequence[str], *, prompt: str | None = None, normalize: bool | None = None) -> Array:
        """Returns embeddings (count, dim) in fp32, or (dim,) of a single text, pooled as the model's folder defines.
        Folders without a definition use the mean of the tokens.

        prompt: put before each text; None: the folder's default, usually "". normalize: True scales embeddings to
        length 1; None: as the folder defines. A text is cut off after `tokenizer.most` tokens.

        Raises Error for anything but texts, and for normalize=False with a model that normalizes.
        """
        several = several_texts(texts)
        before = self.pooling.prompt if prompt is None else prompt
        rows = self.tokenizer.encode([self._begun(before, one) for one in several])
        vectors = np.empty((len(rows), self.config.dim), np.float32)
        for places, results in self._programs.run(rows, EMBEDDING):
            vectors[places] = results[EMBEDDING]
        if normalize and not self.pooling.normalized:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        elif normalize is False and self.pooling.normalized:
            raise Error("[llm.embed] normalize: got False for a model that normalizes, need True or None")
        return vectors[0] if isinstance(texts, str) else vectors

    def _begun(self, prompt: str, text: Any) -> str:
        if not isinstance(text, str):
            raise Error(f"[llm.embed] texts: got {type(text).__name__}, need texts")
        if not self.pooling.given:
            return prompt + text
        whole = (prompt + text).strip()  # sentence-transformers strips texts too
        return whole.lower() if self.pooling.lower else whole

    def logits(self, inputs: Any) -> Any:
        """Returns the logits of the model's head. inputs: a text, a pair of texts as a tuple, or a list of ids; or a
        list of texts, pairs or lists of ids. The result is an array for one input, a list of arrays for a list:
        (labels,) for a classifier of texts, (tokens, 2) with scores of start and end for question answering, (tokens,
        vocab) or (tokens, labels) for other heads.

        Raises Error for a model without a head, and for a list of ids that is empty, too long or beyond the vocabulary.
        Long texts are cut.
        """
        if not self.config.head:
            raise Error(f"[llm.logits] {self.path}: got a model without a head, need one, such as a ForMaskedLM")
        if not isinstance(inputs, (str, Sequence, np.ndarray)) or isinstance(inputs, bytes):
            raise Error(f"[llm.logits] got {type(inputs).__name__}, need {TEXT_OR_IDS}, or a list of them")
        alone = isinstance(inputs, (str, tuple)) or (len(inputs) > 0 and isinstance(inputs[0], (int, np.integer)))
        rows = [self._row(one) for one in ([inputs] if alone else inputs)]
        names = ANSWERS if self.config.head == "ForQuestionAnswering" else (LOGITS,)
        results: list[Array] = [np.empty(0, np.float32)] * len(rows)
        for places, outputs in self._programs.run(rows, *names):
            arrays = np.stack([outputs[name] for name in names], -1) if len(names) > 1 else outputs[LOGITS]
            for place, array in zip(places, arrays, strict=True):
                count = len(rows[place][0])
                results[place] = array[:count].copy() if self.config.head in ROWS_OF_TOKENS else array.copy()
        return results[0] if alone else results

    def _row(self, one: Any) -> Row:
        if isinstance(one, (str, tuple)):
            return self.tokenizer.encode([one])[0]
        whole = isinstance(one, (Sequence, np.ndarray)) and not isinstance(one, bytes)
        if not whole or not all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in one):
            raise Error(f"[llm.logits] got {short(one)}, need {TEXT_OR_IDS}")
        ids = [int(i) for i in one]
        self._programs.check(ids)
        return ids, [0] * len(ids)

    @property
    def threads(self) -> int:
        """CPU threads of one call."""
        return self._programs.program(1, LENGTHS[0], EMBEDDING).threads

    @property
    def memory(self) -> dict[str, int]:
        """Bytes: "weights", which programs for all lengths share."""
        return {"weights": self._programs.program(1, LENGTHS[0], EMBEDDING).memory.get("weights", 0)}

    @property
    def encoded(self) -> int:
        """The number of weights that are stored in fewer bits."""
        return encoded_count(self._programs.weights.arrays)

    def graph(self, count: int) -> Graph:
        """Returns the graph for one text of this many tokens, with the outputs that the model's folder defines."""
        return self._programs.graph(1, count, outputs_of(self.config, self.pooling))

    def milliseconds(self, count: int, batch: int = 1, calls: int = 5) -> float:
        """Returns the median time on this machine of one call with `batch` texts of this many tokens."""
        return self._programs.milliseconds(count, batch, calls)

    def __repr__(self) -> str:
        return f"<hexane.llm.TextEncoder {self.path.name}, {self.parameters:,} parameters>"


class Programs:
    """The programs of an encoder by batch, length and outputs, compiled on first use with shared weights. An input is
    padded to the length of the shortest program that is long enough."""

    def __init__(
        self,
        config: EncoderConfig,
        pooling: Pooling,
        weights: Mapping[str, Array | Tensor],
        options: Options,
    ) -> None:
        self.config, self.pooling = config, pooling
        if options.compression not in (None, Compression("none")):
            assert options.compression is not None
            small = encoder(config, weights, 1, 1, self._all_outputs(), pooling=pooling, typed=config.types > 0)
            weights = encoded_weights(small, weights, options.compression, target_of(options), options.num_threads)
        options = replace(options, compress=None)
        self.weights = SharedWeights(weights)
        self._made = Functions(options, self.weights)
        self._making = Lock()

    def _all_outputs(self) -> tuple[str, ...]:
        heads = ANSWERS if self.config.head == "ForQuestionAnswering" else (LOGITS,) if self.config.head else ()
        return (EMBEDDING, *heads)

    def graph(self, batch: int, count: int, outputs: Sequence[str]) -> Graph:
        typed = self.config.types > 1
        return encoder(self.config, self.weights.constants, batch, count, outputs, pooling=self.pooling, typed=typed)

    def program(self, batch: int, count: int, *outputs: str) -> Model:
        count = self.room(count)
        name = f"{', '.join(outputs)} of {batch}x{count}"
        self.weights.check_unchanged()
        with self._making:
            if name not in self._made:
                self._made.add(name, self.graph(batch, count, outputs))
        return self._made[name]

    def room(self, count: int) -> int:
        """Returns the length of the program for inputs of `count` tokens."""
        longest = self.config.longest
        return next((one for one in LENGTHS if count <= one < longest), longest)

    def check(self, ids: Sequence[int]) -> None:
        """Raises Error for ids beyond the vocabulary, for no ids, and for more ids than the model takes."""
        if not 1 <= len(ids) <= self.config.longest:
            raise Error(f"[llm.logits] ids: got {len(ids)}, need 1 to the {self.config.longest} of the model")
        for one in ids:
            if not 0 <= one < self.config.vocab:
                raise Error(f"[llm.logits] ids: got {one}, need 0 to {self.config.vocab - 1}: the model's vocabulary")

    def run(self, rows: Sequence[Row], *outputs: str) -> Iterator[tuple[list[int], dict[str, Array]]]:
        """Yields outputs of a batch of rows, with the indices of these rows, until all rows have run."""
        places: dict[int, list[int]] = {}
        for i, (ids, _) in enumerate(rows):
            places.setdefault(self.room(len(ids)), []).append(i)
        for room, of_room in places.items():
            whole = len(of_room) - len(of_room) % BATCH
            parts = [of_room[i : i + BATCH] for i in range(0, whole, BATCH)] + [[i] for i in of_room[whole:]]
            for part in parts:
                yield part, self._call(room, [rows[i] for i in part], outputs)

    def _call(self, room: int, rows: Sequence[Row], outputs: Sequence[str]) -> dict[str, Array]:
        shape = (len(rows), room)
        given = {IDS: np.full(shape, self.config.padding, np.int32), MASK: np.zeros(shape, np.int32)}
        types = np.zeros(shape, np.int32)
        for i, (ids, kinds) in enumerate(rows):
            given[IDS][i, : len(ids)], given[MASK][i, : len(ids)] = ids, 1
            types[i, : len(ids)] = kinds
        if self.config.types > 1:
            given[TYPES] = types
        returned = self.program(len(rows), room, *outputs)(**given)
        return dict(returned) if isinstance(returned, Mapping) else {outputs[0]: returned}

    def milliseconds(self, count: int, batch: int, calls: int) -> float:
        import time

        rng = np.random.default_rng(0)
        row = (rng.integers(0, self.config.vocab, count).tolist(), [0] * count)
        times = []
        self._call(self.room(count), [row] * batch, (EMBEDDING,))
        for _ in range(calls):
            begin = time.perf_counter()
            self._call(self.room(count), [row] * batch, (EMBEDDING,))
            times.append((time.perf_counter() - begin) * 1e3)
        return float(np.median(times))


def load_encoder(
    path: Path,
    *,
    compress: str | Compression | None = None,
    dtype: str = "",
    threads: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> TextEncoder:
    """Loads a text encoder for this CPU; for arguments and errors see `load`."""
    options = host_options(dtype, threads, compress)
    asked = options.compression
    files = read_encoder(path, stored=asked in (None, Compression("none")))
    longest = min(files.config.longest, files.pooling.most or files.config.longest)
    known = load_encoder_tokenizer(path, files.config.family, longest, None if tokenizer is None else Path(tokenizer))
    if known.vocab > files.config.vocab:
        raise Error(f"[llm.load] {path}: got {files.config.vocab} tokens, need the tokenizer's {known.vocab}")

    def compressed(encoding: str | Compression | None) -> TextEncoder:
        chosen = replace(options, compress=encoding)
        return TextEncoder(path, files, Programs(files.config, files.pooling, files.weights, chosen), known)

    if asked is None or asked == Compression("none"):
        return compressed(None)
    if force and asked != Compression("auto"):
        result = compressed(asked)
        result.encoding = asked.mode
        return result
    plain = compressed(None)
    if asked == Compression("auto"):
        return _fewest_bits(plain, compressed)
    result = compressed(asked)
    result.encoding, result.quality = asked.mode, _cosine(result, plain)
    if result.quality < LEAST_COSINE:
        raise Error(
            f"[llm.load] compress: got embeddings whose cosine with those of the file's weights is"
            f" {result.quality:.4f}, need at least {LEAST_COSINE}: take more bits, or force=True"
        )
    return result


def _fewest_bits(plain: TextEncoder, compressed: Callable[[str], TextEncoder]) -> TextEncoder:
    """Returns the first of `AUTO` with embeddings close enough to those of `plain`, else `plain`."""
    for encoding in AUTO:
        result = compressed(encoding)
        if (cosine := _cosine(result, plain)) >= AUTO_COSINE:
            result.encoding, result.quality = encoding, cosine
            return result
    plain.quality = 1.0
    return plain


def _cosine(one: TextEncoder, other: TextEncoder) -> float:
    """Returns the least cosine between two models' embeddings of some sentences."""
    sentences = [text.strip() for text in TEXT.replace("\n", " ").split(".") if text.strip()][:SENTENCES]
    a, b = one.embed(sentences), other.embed(sentences)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.min(np.sum(a * b, axis=1) / np.maximum(lengths, 1e-30)))
