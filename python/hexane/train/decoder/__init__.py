"""Decoders of the Llama family and of similar ones: configs, files, adapters, training graphs, text generation."""

from hexane.train.decoder.adapter_files import read_adapter, save_adapter
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.files import load_llama, read_llama, save_llama
from hexane.train.decoder.generate import Generator, generate
from hexane.train.decoder.lora import Lora, merge_adapters
from hexane.train.decoder.model import Llama, llama
from hexane.train.decoder.rotary import with_rope

__all__ = [
    "Generator",
    "Llama",
    "LlamaConfig",
    "Lora",
    "generate",
    "llama",
    "load_llama",
    "merge_adapters",
    "read_adapter",
    "read_llama",
    "save_adapter",
    "save_llama",
    "with_rope",
]
