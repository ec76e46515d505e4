"""Hugging Face folders, of config.json and one or several safetensors files, and single safetensors files next to a
config.json.

Raises Error for unknown fields of config.json with a value other than null or false, as they may change a model's
numbers.
"""

import json
import os
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file as save_safetensors

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_next_to, read_all
from hexane.importers.safetensors import read_tensors, read_weights
from hexane.train.decoder.config import EMBEDDING, HEAD, LlamaConfig
from hexane.train.decoder.formats.hugging_face_config import config_in, fields_of, of_texts, short
from hexane.train.decoder.formats.hugging_face_like import fields_like
from hexane.train.decoder.formats.hugging_face_names import as_named, count_of_tensors, is_buffer, source
from hexane.train.decoder.formats.model_file import Format, little_endian
from hexane.train.decoder.rotary import with_rope

CONFIG = "config.json"
GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000
FLOATS = ("float32", "float16", "bfloat16", "float64")


def read_in_16_bits(path: Path) -> tuple[LlamaConfig, dict[str, Array]]:
    """Like `formats.read`, but matrices in bf16 or fp16 keep their dtype. Arrays with the file's numbers stay in the
    mapped file (see `read_tensors`)."""
    return _read(path, in_16_bits=True)


def _read(path: Path, in_16_bits: bool = False) -> tuple[LlamaConfig, dict[str, Array]]:
    folder = path if path.is_dir() else path.parent
    where = f"[train.load_llama] {folder / CONFIG}"
    fields = _fields(folder, where)
    config, family = config_in(where, fields), str(fields["model_type"])
    tensors = as_named(family, _tensors(path, mapped=in_16_bits))
    arrays = {name: a for name, a in tensors.items() if not is_buffer(family, name)}
    del tensors
    head_name = source(config, family, HEAD, ()).name
    head = arrays.pop(head_name) if config.tied and head_name in arrays else None
    # Compare the counts before listing all names: a damaged file may claim billions of layers.
    need = count_of_tensors(config, family)
    if len(arrays) != need:
        raise Error(f"{where}: got {config.layers} layers and {len(arrays)} tensors, need {need} tensors")
    sources = {name: source(config, family, name, shape) for name, shape in config.shapes().items()}
    for one in sources.values():
        if one.name not in arrays:
            raise Error(
                f"[train.load_llama] {folder}: got no tensor {one.name!r}, need those of a model of this config"
            )
        array = arrays[one.name]
        if array.shape != one.shape or array.dtype.name not in FLOATS:
            got = f"{array.dtype.name} of shape {array.shape}"
            need_text = f"shape {one.shape} in one of {', '.join(FLOATS)}"
            raise Error(f"[train.load_llama] {folder}: {one.name}: got {got}, need {need_text}")
    if head is not None and not _same(head, arrays[sources[EMBEDDING].name]):
        raise Error(
            f"{where}: tie_word_embeddings: got true and a {head_name} that is not the embedding, need one of them"
        )
    del head
    last = {one.name: name for name, one in sources.items()}
    weights: dict[str, Array] = {}
    for name, one in sources.items():
        # Each array is freed after its last use, so that memory never has two copies of all weights.
        array = arrays.pop(one.name) if last[one.name] == name else arrays[one.name]
        part = np.asarray(one.part(array), order="C")
        stays = in_16_bits and part.ndim == 2 and part.itemsize == 2
        weights[name] = part if stays else _as_fp32(folder, one.name, part)
    return config, weights


def _tensors(folder: Path, mapped: bool) -> dict[str, Array]:
    """Returns the tensors of the model. Of a folder with model.safetensors and no index, other weight files are
    ignored."""
    if not (folder / WEIGHTS).is_file() or (folder / INDEX).exists():
        return read_weights(folder, mapped)
    where = f"[load_weights] {folder}"
    return read_tensors(open_next_to(folder, WEIGHTS, where), f"{where}/{WEIGHTS}", mapped)


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _as_fp32(folder: Path, name: str, array: Array) -> Array:
    with np.errstate(over="ignore"):
        wide = array.astype(np.float32, copy=False)
    if array.dtype == np.float64 and not np.array_equal(wide, array, equal_nan=True):
        raise Error(f"[train.load_llama] {folder}: {name}: got fp64 numbers that fp32 cannot store, need fp32")
    return wide


def end_ids(folder: Path) -> frozenset[int]:
    """Returns the tokens that end a text, from the folder's two config files. Raises Error if a config file is
    damaged."""
    ends: set[int] = set()
    for name in (CONFIG, GENERATION):
        if not (folder / name).exists():
            continue
        where = f"[train.load_llama] {folder / name}"
        fields = _fields(folder, where, name)
        given = (of_texts(where, fields) if name == CONFIG else fields).get("eos_token_id")
        ids = given if isinstance(given, list) else [] if given is None else [given]
        if any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
            raise Error(f"{where}: eos_token_id: got {short(given)}, need an integer, or a list of them")
        ends |= set(ids)
    return frozenset(ends)


def family(folder: Path) -> str:
    """Returns the folder's `model_type`, or "llama" if it has none. Raises Error for a damaged config.json."""
    return str(_fields(folder, f"[train.load_llama] {folder / CONFIG}").get("model_type", "llama"))


def _fields(folder: Path, where: str, name: str = CONFIG) -> dict[str, Any]:
    try:
        fields = json.loads(read_all(open_next_to(folder, name, f"[train.load_llama] {folder}"), where))
    except OSError as error:
        raise Error(f"[train.load_llama] {folder}: {error.strerror}, need a readable folder") from None
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: {error}, need JSON") from None
    if not isinstance(fields, dict):
        raise Error(f"{where}: got {type(fields).__name__}, need an object")
    return fields


def _write(folder: Path, config: LlamaConfig, weights: Mapping[str, Array], shard_bytes: int = SHARD_BYTES) -> None:
    write_like(folder, config, weights, {}, shard_bytes)


def write_like(
    folder: Path,
    config: LlamaConfig,
    weights: Mapping[str, Array],
    files: Mapping[str, bytes],
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a decoder into a new or empty folder, atomically. files: other files by name, of the model that this one
    was trained from; see `hugging_face_like`."""
    where = f"[train.save_llama] {folder}"
    config, fields = fields_like(where, config, files.get(CONFIG))
    if config.rope == "interleaved":
        config, weights = with_rope(config, weights, "half")
    weights = little_endian(config, weights)
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise Error(f"{where}: got a path that exists, need the name of a new folder")
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        _write_weights(part, {name: weights[name] for name in config.shapes()}, shard_bytes)
        for name, data in files.items():
            (part / name).write_bytes(data)
        (part / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        for file in part.iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        os.rename(part, folder)
    except OSError as error:
        raise Error(f"{where}: {error.strerror or error}, need a place that can be written to") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_config(where: str, config: LlamaConfig) -> None:
    """Raises Error, beginning with `where`, if config.json cannot describe the config."""
    fields_of(where, config)


def _write_weights(folder: Path, weights: dict[str, Array], shard_bytes: int) -> None:
    shards: list[list[str]] = [[]]
    size = 0
    for name, array in weights.items():
        if shards[-1] and size + array.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += array.nbytes
    if len(shards) == 1:
        save_safetensors(weights, folder / WEIGHTS, metadata={"format": "pt"})
        return
    shard_of: dict[str, str] = {}
    for number, names in zip(count(1), shards, strict=False):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_safetensors({name: weights[name] for name in names}, folder / file, metadata={"format": "pt"})
        shard_of |= dict.fromkeys(names, file)
    total = sum(array.nbytes for array in weights.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": shard_of}, indent=2)
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")


def _recognises(path: Path, head: bytes) -> bool:
    return path.is_dir() or path.suffix == ".safetensors"


FORMAT = Format("hugging-face", "folders with config.json and safetensors", _recognises, _read, _write)
