"""`load`: a model by its path, whatever its kind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from hexane.compression import Compression
from hexane.errors import Error
from hexane.importers.encoders import holds_encoder
from hexane.importers.image_encoders import holds_image_encoder, holds_pair, holds_text_half
from hexane.importers.speech import holds_speech
from hexane.llm import model as decoders
from hexane.llm.encoder import load_encoder
from hexane.llm.find import find_model
from hexane.llm.image_encoder import load_image_encoder
from hexane.llm.model import LanguageModel
from hexane.llm.speech import load_speech
from hexane.llm.text_image_encoder import load_text_image_encoder

OF_DECODERS = ("context", "lora", "calibration")


# Any stands for encoders and Whisper: callers with a checker of types know their model's kind.
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
    """Opens a model to run on this CPU: a `LanguageModel`, or an encoder. Folders of BERT's kind give a `TextEncoder`,
    of ViT's kind an `ImageEncoder`, of CLIP's and SigLIP's a `TextImageEncoder`, of Whisper a `SpeechModel`.

    model: a folder of Hugging Face, a .safetensors file with config.json next to it, a repository (`org/name`) in the
    local cache of Hugging Face, a GGUF file, a file of llama2.c, or a checkpoint of `hexane train`. context: tokens
    that a conversation may have. Each token attends to all of them, so a large context is slow. None: the model's
    largest, or `at_most`. compress: the encoding of weights, such as "int8" or "blockwise4:b32" (docs/compression.md),
    or "auto": the fewest bits with a perplexity of at most 1.02 times the unchanged weights'. For other modes the
    limit is 1.1 times; `model.quality` has both numbers. None: the file's encoding. threads: see `hx.Options`.
    tokenizer: a file; None: the model's. lora: adapters, see `hx.train.read_adapter`. calibration: a file of text for
    the perplexity; None: two pages of Hexane's own. With a file and with "auto", scales of blocks are fitted to the
    activations of its next 512 tokens. force: do not measure encodings, except for "auto".

    Text encoders take `compress`, `threads`, `tokenizer` and `force`. Their encodings are judged by embeddings of a few
    sentences: the cosine with the file's own weights must be at least 0.98. Image encoders take `threads`,
    CLIP, SigLIP and Whisper `tokenizer` too.

    Raises Error for a model that cannot be read, for an encoding that changes the text too much, and for values out of
    range. Nothing is downloaded.
    """
    path = find_model(model)
    if holds_image_encoder(path):
        of_texts = (*OF_DECODERS, "compress", "tokenizer")
        _refuse("an image encoder", zip(of_texts, (context, lora, calibration, compress, tokenizer), strict=True))
        return load_image_encoder(path, threads=threads)
    if holds_pair(path) or holds_text_half(path):
        of_decoders = zip((*OF_DECODERS, "compress"), (context, lora, calibration, compress), strict=True)
        _refuse("CLIP or SigLIP", of_decoders)
        return load_text_image_encoder(path, threads=threads, tokenizer=tokenizer)
    if holds_speech(path):
        _refuse("Whisper", zip((*OF_DECODERS, "compress"), (context, lora, calibration, compress), strict=True))
        return load_speech(path, threads=threads, tokenizer=tokenizer)
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
    _refuse("a text encoder", zip(OF_DECODERS, (context, lora, calibration), strict=True))
    return load_encoder(path, compress=compress, threads=threads, tokenizer=tokenizer, force=force)


def _refuse(kind: str, given: Iterable[tuple[str, Any]]) -> None:
    for name, value in given:
        if value is not None:
            raise Error(f"[llm.load] {name}: got {value!r} for {kind}, need none")
