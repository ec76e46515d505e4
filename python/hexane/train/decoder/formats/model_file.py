"""Shared by all decoder formats: the record of a format, and checks before writing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder.config import PARTS, LlamaConfig
from hexane.train.decoder.model import checked_weights

Read = Callable[[Path], tuple[LlamaConfig, dict[str, Array]]]
Write = Callable[[Path, LlamaConfig, Mapping[str, Array]], None]

# The weights of a layer in file order: our short names by llama2.c's.
LAYER = {
    "rms_att": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "rms_ffn": "post_attention_layernorm",
    "w1": "mlp.gate_proj",
    "w2": "mlp.down_proj",
    "w3": "mlp.up_proj",
}


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files or folders. about: its description in one line; recognises(path, head): true for a file or
    folder of this format, by its path and first bytes (empty for a folder); read and write: see `formats.read` and
    `formats.write`."""

    name: str
    about: str
    recognises: Callable[[Path, bytes], bool]
    read: Read
    write: Write


def config_of(where: str, **sizes: object) -> LlamaConfig:
    """The config with a file's sizes. Raises Error, beginning with `where`, for sizes that contradict each
    other."""
    try:
        return LlamaConfig(**sizes)  # type: ignore[arg-type]
    except Error as error:
        raise Error(f"{where}: {str(error).removeprefix('[train.llama] ')}") from None


def check_parameters(where: str, config: LlamaConfig, names: Mapping[str, object]) -> None:
    """Raises Error if a config needs a field that the format lacks. names: values that readers of the format assume;
    the other fields of `PARTS` must have their defaults."""
    for name, need in {**{one.name: one.default for one in PARTS}, **names}.items():
        got = getattr(config, name)
        if got != need:
            raise Error(f"{where}: {name}: got {got!r}, need {need!r}: the format cannot store another")


def little_endian(config: LlamaConfig, weights: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the weights for a file: checked, contiguous, little-endian. Raises Error as `hx.train.llama` does."""
    checked = checked_weights(config, weights)
    return {name: np.ascontiguousarray(array, "<f4") for name, array in checked.items()}
