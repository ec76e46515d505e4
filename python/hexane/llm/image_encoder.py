"""An image encoder from its files: vectors of images, and logits of models with a head."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.image_encoders import ImageEncoderConfig, is_pooled, read_image_encoder
from hexane.importers.image_encoders.graph import LOGITS, embedding_of, image_encoder
from hexane.llm.image_processor import ImageProcessor, load_image_processor
from hexane.llm.options import host_options
from hexane.options import Options
from hexane.runtime import Model
from hexane.runtime.functions import Functions
from hexane.runtime.shared_weights import SharedWeights

BATCH = 8  # most images in one call


class ImageEncoder:
    """An image encoder that is ready to run, returned by `load`.

    path: the model's folder; config: its sizes; processor: converts images to the network's input; parameters: their
    number.
    """

    def __init__(
        self, path: Path, config: ImageEncoderConfig, weights: Mapping[str, Array], processor: ImageProcessor,
        options: Options,
    ) -> None:  # fmt: skip
        self.path, self.config, self.processor = path, config, processor
        self.parameters = sum(one.size for one in weights.values())
        self._embedding = embedding_of(config, is_pooled(config, weights))
        self._programs = _Programs(config, weights, options)

    def embed(self, images: Any, *, normalize: bool = False) -> Array:
        """Returns vectors (count, dim) in fp32, or (dim,) of a single image. The vectors are image_embeds for a model
        with a projection, or else pooler_output, or else the first token of last_hidden_state.

        images: the path of a png or jpeg, an array (height, width, 3), or a list of these. Arrays are uint8, or floats
        from 0 to 1. normalize: scale vectors to length 1.

        Raises Error for anything else, and for a model without vectors of images.
        """
        if self._embedding is None:
            raise Error(f"[llm.embed] {self.path}: got a model without a vector of an image, need vision_use_head")
        vectors = self._run(images, self._embedding, "[llm.embed]")
        if normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        return vectors

    def logits(self, images: Any) -> Array:
        """Returns logits (count, labels) in fp32, or (labels,) of a single image. images: see `embed`. Raises Error for
        a model without a head."""
        if not self.config.head.startswith("ForImage"):
            raise Error(f"[llm.logits] {self.path}: got a model without labels, need a ForImageClassification")
        return self._run(images, LOGITS, "[llm.logits]")

    def pixels(self, images: Any) -> Array:
        """Returns the network's input for images, (count, channels, size, size) in fp32, or (channels, size, size) for
        a single image. images: see `embed`."""
        one = _is_image(images)
        arrays = [*self._pixels([images] if one else _several(images, "[llm.pixels]"), "[llm.pixels]")]
        return arrays[0] if one else np.stack(arrays) if arrays else np.empty((0, *self._shape), np.float32)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.config.channels, self.config.size, self.config.size

    def _pixels(self, images: Iterable[Any], where: str) -> Iterator[Array]:
        for one in images:
            pixels = self.processor(one, self.config.channels, where)
            if pixels.shape != self._shape:
                raise Error(
                    f"{where}: got an image that becomes {pixels.shape[1:]}, need {self._shape[1:]}: no crop_size"
                )
            yield pixels

    def _run(self, images: Any, output: str, where: str) -> Array:
        if _is_image(images):
            alone: Array = self._run([images], output, where)[0]
            return alone
        given = _several(images, where)
        rows = []
        for first in range(0, len(given), BATCH):
            part = np.stack([*self._pixels(given[first : first + BATCH], where)])
            parts = [part] if len(part) == BATCH else [one[None] for one in part]
            rows += [self._programs.program(len(one), output)(one) for one in parts]
        if rows:
            return np.concatenate(rows)
        return np.empty(
            (0, self._programs.program(1, output)(np.zeros((1, *self._shape), np.float32)).shape[1]), np.float32
        )

    @property
    def threads(self) -> int:
        """CPU threads of one call."""
        return self._programs.program(1, self._embedding or LOGITS).threads

    @property
    def memory(self) -> dict[str, int]:
        """Bytes: "weights", which all programs share."""
        return {"weights": self._programs.program(1, self._embedding or LOGITS).memory.get("weights", 0)}

    def __repr__(self) -> str:
        return f"<hexane.llm.ImageEncoder {self.path.name}, {self.parameters:,} parameters>"


def _is_image(images: Any) -> bool:
    return isinstance(images, (str, os.PathLike)) or (isinstance(images, np.ndarray) and images.ndim <= 3)


def _several(images: Any, where: str) -> Sequence[Any]:
    if not isinstance(images, (Sequence, np.ndarray)):
        raise Error(f"{where}: got {type(images).__name__}, need paths of images, or arrays")
    return list(images)


class _Programs:
    """The programs of an image encoder by batch and output, compiled on first use with shared weights."""

    def __init__(self, config: ImageEncoderConfig, weights: Mapping[str, Array], options: Options) -> None:
        self.config = config
        self.weights = SharedWeights(weights)
        self._made, self._making = Functions(options, self.weights), Lock()

    def program(self, batch: int, output: str) -> Model:
        name = f"{output} of {batch}"
        self.weights.check_unchanged()
        with self._making:
            if name not in self._made:
                self._made.add(name, image_encoder(self.config, self.weights.constants, batch, (output,)))
        return self._made[name]


def load_image_encoder(path: Path, *, dtype: str = "", threads: int | None = None) -> ImageEncoder:
    """Loads an image encoder for this CPU. Raises Error for files that cannot be read, and for unknown fields that may
    change the numbers."""
    config, weights = read_image_encoder(path, stored=True)
    processor = load_image_processor(path, config.family, config.channels, config.size)
    options = host_options(dtype, threads, encodes=False)
    return ImageEncoder(path, config, weights, processor, options)
