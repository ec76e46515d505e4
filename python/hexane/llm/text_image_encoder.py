"""CLIP and SigLIP from their files: vectors of texts and images, and their similarities."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.image_encoders import (
    PairFiles,
    TextHalfConfig,
    holds_pair,
    read_pair,
    read_text_half,
)
from hexane.importers.image_encoders.text_graph import text_half, text_vector_of
from hexane.llm.clip_tokenizer import ClipTokenizer, load_clip_tokenizer
from hexane.llm.encoder_tokenizer import several_texts
from hexane.llm.image_encoder import ImageEncoder
from hexane.llm.image_processor import load_image_processor
from hexane.llm.options import host_options
from hexane.options import Options
from hexane.runtime import Model
from hexane.runtime.functions import Functions
from hexane.runtime.shared_weights import SharedWeights

BATCH = 8  # Texts of about the same length in one call.
LENGTHS = (8, 16, 32, 48, 64)  # CLIP's lengths in tokens with a program; its largest length has one, too.


class TextImageEncoder:
    """A CLIP or SigLIP model that is ready to run, returned by `load`. A folder may have only the text encoder.

    path: the model's folder; text: the text encoder's sizes; parameters: their number; scale, bias: a similarity is
    scale * cosine + bias. The tokenizer and the image processor are loaded on first use.
    """

    def __init__(
        self, path: Path, text: TextHalfConfig, weights: Mapping[str, Array], pair: PairFiles | None,
        options: Options, tokenizer: Path | None = None,
    ) -> None:  # fmt: skip
        self.path, self.text = path, text
        self.scale, self.bias = (pair.scale, pair.bias) if pair else (1.0, 0.0)
        halves = (weights, pair.image_weights) if pair else (weights,)
        self.parameters = sum(one.size for half in halves for one in half.values())
        self._pair, self._options, self._file = pair, options, tokenizer
        self._programs = _Programs(text, weights, options)

    @cached_property
    def tokenizer(self) -> ClipTokenizer:
        """Converts texts to ids. Raises Error for a folder without a tokenizer.json."""
        return load_clip_tokenizer(self.path, self.text, self._file)

    @cached_property
    def images(self) -> ImageEncoder:
        """The image encoder. Raises Error for a folder without it, or without a preprocessor_config.json."""
        if self._pair is None:
            raise Error(f"[llm.embed] {self.path}: got an encoder of texts alone, need one of images for images")
        c = self._pair.image
        processor = load_image_processor(self.path, c.family, c.channels, c.size)
        return ImageEncoder(self.path, c, self._pair.image_weights, processor, self._options)

    def embed(self, texts: str | Sequence[str] | None = None, *, images: Any = None, normalize: bool = False) -> Array:
        """Returns vectors (count, dim) in fp32 of texts or of images; (dim,) of a single one. Like transformers'
        get_text_features and get_image_features.

        texts: long ones are cut off. images: see `ImageEncoder.embed`. normalize: scale vectors to length 1. Raises
        Error for both arguments or none, and for other types.
        """
        if (texts is None) == (images is None):
            raise Error(
                "[llm.embed] got texts and images, or none, need one of them: similarity(texts, images) has both"
            )
        if texts is None:
            return self.images.embed(images, normalize=normalize)
        if isinstance(texts, os.PathLike):
            raise Error("[llm.embed] texts: got a path, need texts, or images=")
        vectors = self._programs.run(self.tokenizer.encode(several_texts(texts)))
        if normalize:
            vectors = _unit(vectors)
        alone: Array = vectors[0] if isinstance(texts, str) else vectors
        return alone

    def similarity(self, texts: str | Sequence[str], images: Any) -> Array:
        """Returns (images, texts) in fp32: scale * cosine + bias, transformers' logits_per_image. A softmax over texts
        turns CLIP's similarities into probabilities, a sigmoid SigLIP's. A single text or image drops its axis."""
        text, image = self.embed(texts, normalize=True), self.images.embed(images, normalize=True)
        logits: Array = image @ text.T * np.float32(self.scale) + np.float32(self.bias)
        return logits

    def __repr__(self) -> str:
        return f"<hexane.llm.TextImageEncoder {self.path.name}, {self.parameters:,} parameters>"


def _unit(rows: Array) -> Array:
    vectors: Array = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    return vectors


class _Programs:
    """The programs of a text encoder by batch and length, compiled on first use with shared weights."""

    def __init__(self, config: TextHalfConfig, weights: Mapping[str, Array], options: Options) -> None:
        self.config = config
        self.weights = SharedWeights(weights)
        self._made, self._making = Functions(options, self.weights), Lock()

    def program(self, batch: int, count: int) -> Model:
        name = f"{batch}x{count}"
        self.weights.check_unchanged()
        with self._making:
            if name not in self._made:
                outputs = (text_vector_of(self.config),)
                self._made.add(name, text_half(self.config, self.weights.constants, batch, count, outputs))
        return self._made[name]

    def room(self, count: int) -> int:
        """Returns the length of the program for texts of `count` tokens. For SigLIP the length is `count`, because
        SigLIP reads the last token."""
        if not self.config.causal:
            return count
        return next((one for one in LENGTHS if count <= one < self.config.positions), self.config.positions)

    def run(self, rows: Sequence[Sequence[int]]) -> Array:
        """Returns vectors (rows, dim)."""
        places: dict[int, list[int]] = {}
        for i, ids in enumerate(rows):
            places.setdefault(self.room(len(ids)), []).append(i)
        head = self.weights.arrays.get("head.weight")
        vectors = np.empty((len(rows), self.config.dim if head is None else head.shape[0]), np.float32)
        for room, of_room in places.items():
            whole = len(of_room) - len(of_room) % BATCH
            parts = [of_room[i : i + BATCH] for i in range(0, whole, BATCH)] + [[i] for i in of_room[whole:]]
            for part in parts:
                # CLIP's tokens do not attend to later ones, so zeros after the end change nothing.
                given = np.zeros((len(part), room), np.int32)
                for at, i in enumerate(part):
                    given[at, : len(rows[i])] = rows[i]
                vectors[part] = self.program(len(part), room)(given)
        return vectors


def load_text_image_encoder(
    path: Path, *, dtype: str = "", threads: int | None = None, tokenizer: str | os.PathLike[str] | None = None
) -> TextImageEncoder:
    """Loads CLIP, SigLIP or their text encoder for this CPU. Raises Error for files that cannot be read, and for
    unknown fields that may change the numbers."""
    options = host_options(dtype, threads, encodes=False)
    file = None if tokenizer is None else Path(tokenizer)
    if holds_pair(path):
        files = read_pair(path, stored=True)
        return TextImageEncoder(path, files.text, files.text_weights, files, options, file)
    config, weights = read_text_half(path, stored=True)
    return TextImageEncoder(path, config, weights, None, options, file)
