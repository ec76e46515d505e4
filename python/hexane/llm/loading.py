"""`load`: a model by its path, whatever its kind."""

from __future__ import annotations

import os
from typing import Any

from hexane.compression import Compression
from hexane.errors import Error
from hexane.importers.encoders import holds_encoder
from hexane.importers.image_encoders import holds_image_encoder
from hexane.llm import model as decoders
from hexane.llm.encoder import load_encoder
from hexane.llm.find import find_model
from hexane.llm.model import LanguageModel

OF_DECODERS = ("context", "lora", "calibration")


# Any stands for TextEncoder: callers with a checker of types know which of both their model is.
def load(
    model: str | os.PathLike[str],
    *,
    context: int | None = None,
    compress: str | Compression | None = None,
    threads: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    lora: str | os.PathLike[str] | None = None,
    at_most: int | None = None,
    calibration: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> LanguageModel | Any:
    """Opens a language model to run on this CPU: a `LanguageModel`, or a `TextEncoder` for a folder of BERT's kind.

    model: a folder of Hugging Face, a .safetensors file with config.json next to it, a repository (`org/name`) in the
    local cache of Hugging Face, a GGUF file, a file of llama2.c, or a checkpoint of `hexane train`. context: tokens
    that a conversation may have. Each token attends to all of them, so a large context is slow. None: the model's
    largest, or `at_most`. compress: the encoding of weights, such as "int8" or "blockwise4:b32" (docs/compression.md),
    or "auto": the fewest bits whose perplexity is at most 1.02 times that of the unchanged weights. For other modes the
    limit is 1.1 times; `model.quality` has both numbers. None: the file's encoding. threads: see `hx.Options`.
    tokenizer: a file; None: the model's. lora: adapters, see `hx.train.read_adapter`. calibration: a file of text for
    the perplexity; None: a page of Hexane's own. force: do not measure encodings, except for "auto".

    Encoders take `compress`, `threads`, `tokenizer` and `force`. Their encodings are judged by embeddings of a few
    sentences: the cosine with those of the file's weights must be at least 0.98.

    Raises Error for a model that cannot be read, for an encoding that changes the text too much, and for values out of
    range. Nothing is downloaded.
    """
    path = find_model(model)
    if holds_image_encoder(path):
        raise Error(f"[llm.load] {path}: got an image encoder, need a model of texts: hx.compile takes this folder")
    if not holds_encoder(path):
        return decoders.load(
            path,
            context=context,
            compress=compress,
            threads=threads,
            tokenizer=tokenizer,
            lora=lora,
            at_most=at_most,
            calibration=calibration,
            force=force,
        )
    for name, value in zip(OF_DECODERS, (context, lora, calibration), strict=True):
        if value is not None:
            raise Error(f"[llm.load] {name}: got {value!r} for a text encoder, need none")
    return load_encoder(path, compress=compress, threads=threads, tokenizer=tokenizer, force=force)
