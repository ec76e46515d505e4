"""Seeded language models with a tokenizer and a chat template, as folders of Hugging Face."""

import json
from pathlib import Path
from typing import Any

import pytest

import hexane as hx
from decoders import decoder_weights

LETTERS = [chr(c) for c in range(32, 127)]
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "\n"]
VOCAB = len(LETTERS) + len(MARKS)
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def config(**changes: Any) -> hx.train.LlamaConfig:
    sizes = {"vocab": VOCAB, "dim": 64, "hidden": 96, "layers": 2, "heads": 4, "kv_heads": 2, "seq": 320}
    return hx.train.LlamaConfig(**{**sizes, "rope": "half", **changes})


def write(folder: Path, template: str | None = TEMPLATE, **changes: Any) -> Path:
    """A token is a printable character of ASCII, a newline, or a mark."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
    c = config(**changes)
    hx.train.save_llama(folder, c, decoder_weights(c), format="hugging-face")
    names = {name: i for i, name in enumerate([*LETTERS, *MARKS])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=names, merges=[], fuse_unk=False))
    inner.decoder = tokenizers.decoders.Fuse()
    inner.add_special_tokens(MARKS[:3])
    inner.save(str(folder / "tokenizer.json"))
    if template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder
