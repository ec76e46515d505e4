"""Reads and writes decoders in any of a list of formats. GGUF can only be read."""

import os
from collections.abc import Mapping
from pathlib import Path

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.gguf import is_gguf
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.formats import ane_trainer, gguf, hugging_face, llama2c, llama2c_q8_0
from hexane.train.decoder.formats.binary import opened

FORMATS = {
    one.name: one
    for one in (llama2c.V0, llama2c.V1, llama2c_q8_0.V2, ane_trainer.V2, ane_trainer.V4, hugging_face.FORMAT)
}

__all__ = ["FORMATS", "end_ids", "family_of", "holds_gguf", "read", "read_stored", "write"]


def read(path: str | os.PathLike[str]) -> tuple[LlamaConfig, dict[str, Array]]:
    """The config and fp32 weights of a decoder, from a file or folder of any of `FORMATS`, or a GGUF file. Weights have
    the names of `config.shapes()`. Channels keep the file's order, given by `config.rope`.

    Raises Error for an unknown format and for a damaged file.
    """
    path = Path(path)
    config, weights = _read(path, _head(path))
    return config, {name: weights[name] for name in config.shapes()}


def read_stored(
    path: str | os.PathLike[str], in_16_bits: bool = False
) -> tuple[LlamaConfig, Mapping[str, Array | Tensor]]:
    """Like `read`, for inference only: a GGUF file's quantized matrices stay integers with scales, if their blocks have
    no offsets. in_16_bits: matrices in bf16 or fp16, of a Hugging Face folder or a GGUF file, keep their dtype, and a
    GGUF file's quantized matrices are read at each access."""
    path = Path(path)
    head = _head(path)
    if is_gguf(head):
        return gguf.read_stored(path, in_16_bits)
    return (
        hugging_face.read_in_16_bits(path) if in_16_bits and hugging_face.FORMAT.recognises(path, head) else read(path)
    )


def holds_gguf(path: Path) -> bool:
    """True if the file begins with the magic number of GGUF."""
    return is_gguf(_head(path))


def holds_marked_decoder(path: Path) -> bool:
    """True for a file that a format recognises. Files of llama2.c's first format, which has no mark, are not
    recognised."""
    head = _head(path)
    return is_gguf(head) or any(one.recognises(path, head) for one in FORMATS.values())


def _head(path: Path) -> bytes:
    if path.is_dir():
        return b""
    with opened(path, f"[train.load_llama] {path}", "model") as file:
        return file.bytes(0, min(8, file.size), "head")


def end_ids(path: str | os.PathLike[str]) -> frozenset[int]:
    """Returns the tokens that end a text, from a Hugging Face folder, the folder of a safetensors file, or a GGUF
    file; empty for other files."""
    path = Path(path)
    if path.suffix == ".safetensors" and path.is_file():
        path = path.parent
    if path.is_dir():
        return hugging_face.end_ids(path)
    return gguf.end_ids(path) if holds_gguf(path) else frozenset()


def family_of(path: str | os.PathLike[str]) -> str:
    """Returns the model_type of a GGUF file, or in the config.json of a folder or next to a file; "llama" if there is
    none."""
    path = Path(path)
    if holds_gguf(path):
        return gguf.family(path)
    folder = path if path.is_dir() else path.parent
    return hugging_face.family(folder) if (folder / hugging_face.CONFIG).is_file() else "llama"


def write(path: str | os.PathLike[str], config: LlamaConfig, weights: Mapping[str, Array], format: str) -> None:
    """Writes a decoder in this format, atomically. Rotated channels are reordered for the format.

    Raises Error for an unknown format, for weights that do not fit the config, for a model that the format cannot
    describe, and for a path that cannot be written to.
    """
    if format not in FORMATS:
        raise Error(f"[train.save_llama] format: got {format!r}, need one of {', '.join(FORMATS)}")
    FORMATS[format].write(Path(path), config, weights)


def _read(path: Path, head: bytes) -> tuple[LlamaConfig, dict[str, Array]]:
    if is_gguf(head):
        return gguf.read(path)
    for one in FORMATS.values():
        if one.recognises(path, head):
            return one.read(path)
    try:
        return llama2c.V0.read(path)  # files of version 0 have no magic number
    except Error as error:
        reason = str(error).partition(f"{path}: ")[2] or str(error)
        raise Error(
            f"[train.load_llama] {path}: got a file of no known format, need one of {', '.join(FORMATS)};"
            f" read as {llama2c.V0.name}: {reason}"
        ) from None
