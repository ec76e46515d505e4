"""Training: the step as one graph, optimisers, schedules, the Trainer, decoders, and token data."""

from hexane.train import init
from hexane.train.batch_norm import batch_norm
from hexane.train.decoder import (
    Generator,
    Llama,
    LlamaConfig,
    Lora,
    generate,
    llama,
    load_llama,
    merge_adapters,
    read_adapter,
    read_llama,
    save_adapter,
    save_llama,
    with_rope,
)
from hexane.train.evaluating import evaluating
from hexane.train.kernels import Kernel, kernels, on_engine
from hexane.train.notes import read_notes
from hexane.train.optimizers import Optimizer, adam, adamw, lion, sgd
from hexane.train.schedules import constant, cosine, steps, warm_up
from hexane.train.state_dict import state_dict
from hexane.train.sweeps import SweepResult, sweep
from hexane.train.text import (
    Conversations,
    TokenFile,
    Tokenizer,
    TokenWindows,
    learn_tokenizer,
    load_tokenizer,
    save_conversations,
    save_tokens,
)
from hexane.train.trained import trained
from hexane.train.trainer import Trainer
from hexane.train.training_step import step
from hexane.train.with_params import Trainable, with_params

__all__ = [
    "Conversations",
    "Generator",
    "Kernel",
    "Llama",
    "LlamaConfig",
    "Lora",
    "Optimizer",
    "SweepResult",
    "TokenFile",
    "TokenWindows",
    "Tokenizer",
    "Trainable",
    "Trainer",
    "adam",
    "adamw",
    "batch_norm",
    "constant",
    "cosine",
    "evaluating",
    "generate",
    "init",
    "kernels",
    "learn_tokenizer",
    "lion",
    "llama",
    "load_llama",
    "load_tokenizer",
    "merge_adapters",
    "on_engine",
    "read_adapter",
    "read_llama",
    "read_notes",
    "save_adapter",
    "save_conversations",
    "save_llama",
    "save_tokens",
    "sgd",
    "state_dict",
    "step",
    "steps",
    "sweep",
    "trained",
    "warm_up",
    "with_params",
    "with_rope",
]
