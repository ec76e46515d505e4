"""CLIP and SigLIP from their files: vectors of texts and images, and similarities of both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hexane import _core
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
from hexane.options import Options
from hexane.runtime import Model
from hexane.runtime.functions import Functions

BATCH = 8  # texts of one call, where there are so many of about one length
LENGTHS = (8, 16, 32, 48, 64)  # tokens of programs; and the most that the model takes


class TextImageEncoder:
    """CLIP or SigLIP, ready to run; without its half of images where the folder has texts alone. `load` makes it.

    path: of its folder; text: the sizes of its half of texts; parameters: numbers of the model; scale, bias: a
    similarity is scale * cosine + bias. The tokenizer and the processor of images are read when they are first needed.
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
        """Texts as ids. Raises Error for a folder without a tokenizer.json."""
        return load_clip_tokenizer(self.path, self.text, self._file)

    @cached_property
    def images(self) -> ImageEncoder:
        """The half of images. Raises Error for a folder without it, or without a preprocessor_config.json."""
        if self._pair is None:
            raise Error(f"[llm.embed] {self.path}: got an encoder of texts alone, need one of images for images")
        c = self._pair.image
        processor = load_image_processor(self.path, c.family, c.channels, c.size)
        return ImageEncoder(self.path, c, self._pair.image_weights, processor, self._options)

    def embed(self, texts: str | Sequence[str] | None = None, *, images: Any = None, normalize: bool = False) -> Array:
        """(count, dim) fp32: a vector of each text, or of each image; (dim,) of one. Like transformers'
        get_text_features and get_image_features.

        texts: cut off where they are too long. images: as `ImageEncoder.embed` takes them. normalize: vectors get the
        length 1. Raises Error for both or none, and for other things.
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
        """(images, texts) fp32: scale * cosine + bias, transformers' logits_per_image. CLIP's softmax over texts gives
        their probabilities, SigLIP's sigmoid that of each alone. One text or one image leaves out its axis."""
        text, image = self.embed(texts, normalize=True), self.images.embed(images, normalize=True)
        logits: Array = image @ text.T * np.float32(self.scale) + np.float32(self.bias)
        return logits

    def __repr__(self) -> str:
        return f"<hexane.llm.TextImageEncoder {self.path.name}, {self.parameters:,} parameters>"


def _unit(rows: Array) -> Array:
    vectors: Array = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    return vectors


class _Programs:
    """The programs of a half of texts by batch and length. Each is compiled when it is first needed; weights are in
    memory once."""

    def __init__(self, config: TextHalfConfig, weights: Mapping[str, Array], options: Options) -> None:
        self.config = config
        pool = _core.MemoryPool()
        self.weights = {name: pool.keep(np.asarray(one, order="C")) for name, one in weights.items()}
        self._made, self._making = Functions(options, pool), Lock()

    def program(self, batch: int, count: int) -> Model:
        name = f"{batch}x{count}"
        with self._making:
            if name not in self._made:
                outputs = (text_vector_of(self.config),)
                self._made.add(name, text_half(self.config, self.weights, batch, count, outputs))
        return self._made[name]

    def room(self, count: int) -> int:
        """Tokens of the program that runs texts of `count` tokens. SigLIP's last token counts: it has no padding."""
        if not self.config.causal:
            return count
        return next((one for one in LENGTHS if count <= one < self.config.positions), self.config.positions)

    def run(self, rows: Sequence[Sequence[int]]) -> Array:
        """(rows, dim)"""
        places: dict[int, list[int]] = {}
        for i, ids in enumerate(rows):
            places.setdefault(self.room(len(ids)), []).append(i)
        head = self.weights.get("head.weight")
        vectors = np.empty((len(rows), self.config.dim if head is None else len(head)), np.float32)
        for room, of_room in places.items():
            whole = len(of_room) - len(of_room) % BATCH
            parts = [of_room[i : i + BATCH] for i in range(0, whole, BATCH)] + [[i] for i in of_room[whole:]]
            for part in parts:
                # CLIP's tokens do not see the ones after them: zeros after the end change nothing.
                given = np.zeros((len(part), room), np.int32)
                for at, i in enumerate(part):
                    given[at, : len(rows[i])] = rows[i]
                vectors[part] = self.program(len(part), room)(given)
        return vectors


def load_text_image_encoder(
    path: Path, *, threads: int | None = None, tokenizer: str | os.PathLike[str] | None = None
) -> TextImageEncoder:
    """Opens CLIP, SigLIP or their half of texts to run on this CPU. Raises Error for files that cannot be read, and for
    fields that change the numbers and are not known."""
    options = Options(target="host", device="cpu", threads=threads)
    file = None if tokenizer is None else Path(tokenizer)
    if holds_pair(path):
        files = read_pair(path)
        return TextImageEncoder(path, files.text, files.text_weights, files, options, file)
    config, weights = read_text_half(path)
    return TextImageEncoder(path, config, weights, None, options, file)
