"""`load` opens a model of any kind by its path."""

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


# The result is Any for encoders and Whisper: users of a type checker know the kind of their model.
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
) -> LanguageModel | Any:
    """Loads a model for this CPU: a `LanguageModel`, or an encoder. Folders of the BERT family give a `TextEncoder`, of
    the ViT family an `ImageEncoder`, of CLIP and SigLIP a `TextImageEncoder`, and of Whisper a `SpeechModel`.

    model: a Hugging Face folder, a .safetensors file next to its config.json, a repository (`org/name`) in the local
    Hugging Face cache, a GGUF file, a llama2.c file, or a checkpoint of `hexane train`. context: tokens that a
    conversation may have; None: the model's largest, or `at_most`. Memory for the cache grows with it. compress: the
    encoding of weights, such as "int8" or "blockwise4:b32" (docs/compression.md), or "auto": the fewest bits with a
    perplexity of at most 1.02 times the original weights'. For other encodings the limit is 1.1 times; `model.quality`
    has both perplexities. None: the file's encoding. dtype: "bf16": matrix products and convolutions multiply in bf16
    and add up in fp32; "int8", with compress="int8": matrix products round each row of activations to int8, with a
    scale of its own, and add up integers; "fp32" or "": they multiply in fp32. threads: see `hx.Options`. tokenizer: a
    file; None: the model's. lora: adapters, see `hx.train.read_adapter`. calibration: a text file, on whose first 256
    tokens the perplexity is measured; None: Hexane's own text. With a file or with "auto", block scales are fitted to
    the activations of the 512 tokens after them. force: do not measure the perplexity, except for "auto".

    Text encoders support `compress`, `dtype`, `threads`, `tokenizer` and `force`. Their encodings are judged by the
    embeddings of a few sentences: the cosine with the embeddings by the original weights must be at least 0.98. For
    them "auto" is the fewest bits with a cosine of at least 0.99; `model.encoding` names the choice. Image encoders
    support `dtype` and `threads`; CLIP, SigLIP and Whisper also `tokenizer`.

    Raises Error for a model that cannot be read, for an encoding that loses too much, and for values out of range.
    Nothing is downloaded.
    """
    path = find_model(model)
    if holds_image_encoder(path):
        of_texts = (*OF_DECODERS, "compress", "tokenizer")
        _refuse("an image encoder", zip(of_texts, (context, lora, calibration, compress, tokenizer), strict=True))
        return load_image_encoder(path, dtype=dtype, threads=threads)
    if holds_pair(path) or holds_text_half(path):
        of_decoders = zip((*OF_DECODERS, "compress"), (context, lora, calibration, compress), strict=True)
        _refuse("CLIP or SigLIP", of_decoders)
        return load_text_image_encoder(path, dtype=dtype, threads=threads, tokenizer=tokenizer)
    if holds_speech(path):
        _refuse("Whisper", zip((*OF_DECODERS, "compress"), (context, lora, calibration, compress), strict=True))
        return load_speech(path, dtype=dtype, threads=threads, tokenizer=tokenizer)
    if not holds_encoder(path):
        return decoders.load(
            path,
            context=context,
            compress=compress,
            dtype=dtype,
            threads=threads,
            tokenizer=tokenizer,
            lora=lora,
            at_most=at_most,
            calibration=calibration,
            force=force,
        )
    _refuse("a text encoder", zip(OF_DECODERS, (context, lora, calibration), strict=True))
    return load_encoder(path, compress=compress, dtype=dtype, threads=threads, tokenizer=tokenizer, force=force)


def _refuse(kind: str, given: Iterable[tuple[str, Any]]) -> None:
    for name, value in given:
        if value is not None:
            raise Error(f"[llm.load] {name}: got {value!r} for {kind}, need none")
