"""Checkpoints of the first trainers on the Neural Engine (magic 0x424C5A54, versions 2 and 4), with Adam's moments.

    header, 96 bytes: integers of 32 bits magic, version, step, total_steps, layers, vocab, dim, hidden, heads, seq;
    fp32 learning rate, loss; fp64 seconds of compiling, training, in all; integers steps and batches so far,
    Adam's count, and three more (version 4: kv_heads, head_dim, channels of all queries)
    fp32: of each layer wq wk wv wo w1 w2 w3 rms_att rms_ffn, then first and second moment of each in this order;
    the last norm and its moments; the embedding, which is the head, and its moments

The files omit parts of the config. Version 2 has no rotary embedding. Version 4 rotates neighbouring channels,
scales the outputs of attention and MLP by 1 / sqrt(2 * layers), and pairs query head h with key head h mod kv_heads.
Formats other than version 4 pair head h with h * kv_heads / heads: `read` reorders the query heads of version 4, and
`write` restores the file's order. Source: the trainers (maderix/ANE).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from struct import error, pack
from typing import Any

import numpy as np

from hexane._core import save_file
from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder.config import EMBEDDING, NORM, LlamaConfig, layer
from hexane.train.decoder.formats.binary import BinaryFile, opened
from hexane.train.decoder.formats.llama2c import PRODUCTS, parameter_count, sizes_text
from hexane.train.decoder.formats.model_file import LAYER, Format, check_parameters, config_of, little_endian
from hexane.train.decoder.rotary import with_rope

MAGIC = 0x424C5A54
HEADER = 96  # bytes
VERSIONS = (2, 4)
FORM = "10i2f3d6i"
FIELDS = (
    *("magic", "version", "step", "total_steps", "layers", "vocab", "dim", "hidden", "heads", "seq"),
    *("learning_rate", "loss", "compile_seconds", "train_seconds", "wall_seconds"),
    *("steps", "batches", "adam_steps", "last_0", "last_1", "last_2"),
)
OF_TRAINING = tuple(name for name in FIELDS if name not in ("magic", "version") and name not in LlamaConfig.__slots__)
OWN = (*PRODUCTS, "rms_att", "rms_ffn")  # weights of a layer, in the order of the file


@dataclass(frozen=True, slots=True)
class TrainerCheckpoint:
    """A whole checkpoint. version: 2 or 4; weights: by the names of `config.shapes()`; first, second: Adam's moments by
    the same names, empty if not read; training: the header's other numbers by the names of `OF_TRAINING`."""

    version: int
    config: LlamaConfig
    weights: Mapping[str, Array]
    first: Mapping[str, Array] = field(default_factory=dict)
    second: Mapping[str, Array] = field(default_factory=dict)
    training: Mapping[str, float] = field(default_factory=dict)


def read_checkpoint(path: Path, *, moments: bool = True) -> TrainerCheckpoint:
    """Returns the checkpoint in a file. moments: read Adam's moments too. Raises Error if the file is no checkpoint, or
    its length contradicts its header."""
    with opened(path, f"[train.load_llama] {path}", "checkpoint") as file:
        header = dict(zip(FIELDS, file.numbers(0, FORM, "header"), strict=True))
        if header["magic"] != MAGIC or header["version"] not in VERSIONS:
            raise Error(
                f"{file.where}: got magic {header['magic']:#x} and version {header['version']},"
                f" need {MAGIC:#x} and one of {', '.join(map(str, VERSIONS))}"
            )
        version = int(header["version"])
        config = _config(file, version, header)
        file.check_size(HEADER + 12 * parameter_count(config), sizes_text(config))
        weights, first, second = _arrays(file, config, moments)
    reorder = partial(_heads_turned, version, config, back=False)
    training = {name: header[name] for name in OF_TRAINING}
    return TrainerCheckpoint(version, config, reorder(weights), reorder(first), reorder(second), training)


def write_checkpoint(path: Path, checkpoint: TrainerCheckpoint) -> None:
    """Writes a file from which the trainer can resume. Missing moments and numbers become 0. Raises Error for a model
    that the trainer of this version cannot compute."""
    where, config, version = f"[train.save_llama] {path}", checkpoint.config, checkpoint.version
    if version not in VERSIONS:
        raise Error(f"{where}: version: got {version}, need one of {', '.join(map(str, VERSIONS))}")
    need: dict[str, object] = {**_computed(version, config.layers), "tied": True}
    if version == 2:
        need |= {"kv_heads": config.heads}
        if config.heads * config.head_dim != config.dim:
            raise Error(f"{where}: head_dim: got {config.head_dim}, need dim {config.dim} divided by heads")
    check_parameters(where, config, need)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in config.shapes().items()}
    reorder = partial(_heads_turned, version, config, back=True)
    weights, first, second = (
        little_endian(config, reorder(little_endian(config, given)))
        for given in (checkpoint.weights, checkpoint.first or zeros, checkpoint.second or zeros)
    )
    sizes = {name: getattr(config, name) for name in FIELDS if name in LlamaConfig.__slots__}
    values: dict[str, Any] = {**dict.fromkeys(FIELDS, 0), **sizes, **checkpoint.training}
    values |= {"magic": MAGIC, "version": version}
    if version == 4:
        queries = config.heads * config.head_dim
        values |= {"last_0": config.kv_heads, "last_1": config.head_dim, "last_2": queries}
    try:
        pieces: list[bytes | Array] = [pack(f"<{FORM}", *(values[name] for name in FIELDS))]
    except (error, TypeError) as reason:
        raise Error(f"{where}: training: {reason}, need numbers that fit the header's fields") from None
    for i in range(config.layers):
        names = [layer(i, LAYER[own]) for own in OWN]
        pieces += [weights[name] for name in names]
        pieces += [moment[name] for name in names for moment in (first, second)]
    for name in (NORM, EMBEDDING):
        pieces += [weights[name], first[name], second[name]]
    save_file(str(path), pieces)


def _computed(version: int, layers: int) -> dict[str, Any]:
    """Returns the config fields that are constants in this version of the trainer."""
    rest = {"theta": 10000.0, "epsilon": 1e-5}
    if version == 2:
        return {"rope": "none", "residual": 1.0, **rest}
    return {"rope": "interleaved", "residual": (2 * layers) ** -0.5, **rest}


def _config(file: BinaryFile, version: int, header: Mapping[str, Any]) -> LlamaConfig:
    sizes = {name: header[name] for name in FIELDS if name in LlamaConfig.__slots__}
    for name in ("kv_heads", "head_dim") if version == 4 else ():
        sizes[name] = header["last_0" if name == "kv_heads" else "last_1"]
    for name, value in sizes.items():
        if value < 1:
            raise Error(f"{file.where}: {name}: got {value}, need at least 1")
    config = config_of(file.where, **sizes, **_computed(version, sizes["layers"]))
    if version == 4 and header["last_2"] != config.heads * config.head_dim:
        need = config.heads * config.head_dim
        raise Error(f"{file.where}: channels of all queries: got {header['last_2']}, need heads * head_dim = {need}")
    return config


def _arrays(file: BinaryFile, config: LlamaConfig, moments: bool) -> tuple[dict[str, Array], ...]:
    """Returns weights, first moments and second moments."""
    shapes, offset = config.shapes(), HEADER
    arrays: tuple[dict[str, Array], ...] = ({}, {}, {})

    def take(kind: int, name: str) -> None:
        nonlocal offset
        if kind == 0 or moments:
            arrays[kind][name] = file.array(offset, shapes[name], "<f4", name)
        offset += 4 * prod(shapes[name])

    for i in range(config.layers):
        names = [layer(i, LAYER[own]) for own in OWN]
        for name in names:
            take(0, name)
        for name in names:
            take(1, name)
            take(2, name)
    for name in (NORM, EMBEDDING):
        for kind in range(3):
            take(kind, name)
    return arrays


def _heads_turned(version: int, config: LlamaConfig, arrays: Mapping[str, Array], *, back: bool) -> dict[str, Array]:
    """Returns the arrays with query heads in the usual order, grouped by key head; with `back`, in the file's order."""
    reordered = dict(arrays)
    if version == 2 or config.kv_heads in (1, config.heads):
        return reordered
    order = np.arange(config.heads).reshape(-1, config.kv_heads).T.reshape(-1)
    order = np.argsort(order) if back else order
    for i in range(config.layers):
        for name, axis in (("self_attn.q_proj", 0), ("self_attn.o_proj", 1)):
            array = reordered.get(layer(i, name))
            if array is not None:
                parts = (*array.shape[:axis], config.heads, config.head_dim, *array.shape[axis + 1 :])
                reordered[layer(i, name)] = array.reshape(parts).take(order, axis=axis).reshape(array.shape)
    return reordered


def _read(path: Path) -> tuple[LlamaConfig, dict[str, Array]]:
    checkpoint = read_checkpoint(path, moments=False)
    return checkpoint.config, dict(checkpoint.weights)


def _writes(version: int) -> Callable[[Path, LlamaConfig, Mapping[str, Array]], None]:
    def write(path: Path, config: LlamaConfig, weights: Mapping[str, Array]) -> None:
        if version == 4 and config.rope == "half":
            config, weights = with_rope(config, little_endian(config, weights), "interleaved")
        write_checkpoint(path, TrainerCheckpoint(version, config, weights))

    return write


def _starts_with(version: int) -> Callable[[Path, bytes], bool]:
    return lambda path, head: head[:8] == pack("<Ii", MAGIC, version)


def _format(version: int, what: str) -> Format:
    about = f"checkpoints of trainers on the engine: {what}"
    return Format(f"ane-trainer-v{version}", about, _starts_with(version), _read, _writes(version))


V2 = _format(2, "no rotation")
V4 = _format(4, "shared key heads, scaled residual branches")
