"""Reads decoders from files, and writes them."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder import formats
from hexane.train.decoder.checkpoint import is_checkpoint, read_checkpoint
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.encoded_base import encoded_base
from hexane.train.decoder.formats import hugging_face
from hexane.train.decoder.formats.hugging_face_like import files_of
from hexane.train.decoder.lora import Lora
from hexane.train.decoder.model import Llama, checked_weights, llama


def read_llama(path: str | os.PathLike[str]) -> tuple[LlamaConfig, dict[str, Array]]:
    """Returns the config and the weights of a decoder. Arrays are fp32, with names and shapes of `config.shapes()`.

    path: a llama2.c file (versions 0, 1 and 2), a checkpoint of the maderix/ANE trainers (versions 2 and 4), a Hugging
    Face folder, a .safetensors file next to its config.json, a GGUF file, or a checkpoint of `hexane train`.

    Rotated channels keep the file's order, given by `config.rope`; `with_rope` changes it. Raises Error for an unknown
    format, a damaged file, and unknown fields that would change the numbers.
    """
    return read_checkpoint(path)[:2] if is_checkpoint(path) else formats.read(path)


def read_stored(
    path: str | os.PathLike[str], in_16_bits: bool = False
) -> tuple[LlamaConfig, Mapping[str, Array | Tensor]]:
    """Like `read_llama`, for inference only. Weights of a GGUF file that are integers with scales stay encoded, as
    tensors with the same numbers. in_16_bits: see `formats.read_stored`."""
    return read_checkpoint(path)[:2] if is_checkpoint(path) else formats.read_stored(path, in_16_bits)


def load_llama(
    path: str | os.PathLike[str],
    *,
    batch: int = 1,
    seq: int | None = None,
    checkpoints: bool = False,
    lora: Lora | None = None,
    compress: str | None = None,
) -> Llama:
    """Returns the decoder in a file, for training or inference, as `hx.train.llama` does.

    path: see `read_llama`. batch: rows in a call; seq: tokens in a row, at most the file's; None: the file's;
    checkpoints, lora, compress: see `hx.train.llama`. With lora, encoded weights of a GGUF file stay encoded. Raises
    Error as `read_llama` and `hx.train.llama` do, and for a `seq` out of range.
    """
    config, weights = read_llama(path) if lora is None else read_stored(path)
    if seq is not None:
        if isinstance(seq, bool) or not isinstance(seq, int) or not 1 <= seq <= config.seq:
            raise Error(f"[train.load_llama] seq: got {seq!r}, need an integer from 1 to the model's {config.seq}")
        config = replace(config, seq=seq)
    if lora is not None and compress is not None:
        given = {**weights}
        del weights
        weights = encoded_base(config, given, compress)
        compress = None
    return llama(config, weights=weights, batch=batch, checkpoints=checkpoints, lora=lora, compress=compress)


def save_llama(
    path: str | os.PathLike[str],
    config: LlamaConfig,
    weights: Mapping[str, Array],
    *,
    format: str,
    like: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a decoder for other programs, atomically: a file, or a new folder.

    weights: in fp32 by the names of `config.shapes()`, such as `{n: net.read_state(n) for n in model.params}`. format:
    "llama2.c-v0", "llama2.c-v1", "llama2.c-q8_0" (int8), "ane-trainer-v2", "ane-trainer-v4" or "hugging-face". Rotated
    channels are reordered for the format. like: for "hugging-face", the folder of the model that this one was trained
    from. The original's tokenizer, chat template and generation config are copied, with all fields of its config.json.
    The original model's context length is kept if `config.seq` is less.

    Raises Error for weights that do not fit the config, for a model that the format cannot describe, for `like`
    with another format, and for a path that cannot be written to.
    """
    if like is None:
        formats.write(path, config, weights, format)
        return
    if format != hugging_face.FORMAT.name:
        raise Error(f"[train.save_llama] like: got it with {format!r}, need {hugging_face.FORMAT.name!r}")
    hugging_face.write_like(Path(path), config, checked_weights(config, weights), files_of(Path(like)))
