"""Seeded language models in GGUF files, with a tokenizer in their metadata."""

from pathlib import Path
from typing import Any

import gguf_writer
import hexane as hx
import tiny_llm
from decoders import decoder_weights


def write_model(path: Path, metadata: dict[str, Any], kind: str = "F32") -> tuple[Path, hx.train.LlamaConfig]:
    c = tiny_llm.config(vocab=len(metadata["tokenizer.ggml.tokens"]))
    tensors = gguf_writer.tensors_of("llama", c, decoder_weights(c), kind)
    return gguf_writer.write(path, {**gguf_writer.metadata_of("llama", c), **metadata}, tensors), c


def sentence_pieces() -> dict[str, Any]:
    """A piece with a higher score is joined before others."""
    plain = ["▁", "a", "b", "c", "h", "e", "l", "o", "▁a", "▁h", "he", "ll", "llo", "hello", "▁hello", "ab", "\n"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *plain, "<start>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(plain), 3]
    scores = [*[0.0] * 259, *(float(-i) for i in range(len(plain))), 0.0]
    named = {"model": "llama", "tokens": pieces, "token_type": types, "scores": scores}
    named |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {f"tokenizer.ggml.{key}": value for key, value in named.items()}
