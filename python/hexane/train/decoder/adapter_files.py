"""Low-rank adapters in PEFT folders (adapter_config.json and adapter_model.safetensors) and in checkpoints.

The layout is published: https://huggingface.co/docs/peft/developer_guides/checkpoint. A tensor is named
`base_model.model.` and then as in transformers' model of the base's family. Rows of q_proj and k_proj are in Hugging
Face's order ("half"). The safetensors metadata also holds a hash of the base model, "hexane.base", which other programs
ignore.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from hexane import _core
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_inside, read_all
from hexane.importers.safetensors import read_tensors
from hexane.train.decoder.adapter_names import Renamed, for_family, from_family
from hexane.train.decoder.checkpoint import read_adapted
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.formats.hugging_face import family
from hexane.train.decoder.lora import Base, Lora, checked_adapters, hash_of, in_rope

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
HASH = "hexane.base"
NAME = re.compile(r"model\.layers\.\d{1,9}\.(?:self_attn|mlp)\.(\w+)\.lora_[AB]\.weight")
PLAIN_FAMILY = "llama"
FLOATS = ("float32", "float16", "bfloat16")

# Fields of adapter_config.json that must be missing or have one of these values.
FIXED: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian"),  # other values change the base model
}
# Fields without influence on the logits, implied by the names of the tensors, or checked by other code here.
HARMLESS = (
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version"),
    *("lora_dropout", "target_modules", "exclude_modules", "parent_library", "megatron_core", "qalora_group_size"),
    *("runtime_config", "r", "lora_alpha", "fan_in_fan_out", "use_rslora"),
)


def save_adapter(
    folder: str | os.PathLike[str],
    config: LlamaConfig,
    lora: Lora,
    adapters: Mapping[str, Array],
    *,
    weights: Mapping[str, Array],
    base: str | os.PathLike[str] = "",
) -> None:
    """Writes adapters as PEFT does: a folder that peft and transformers load on top of the base model.

    adapters: in fp32 by the names of `lora.shapes(config)`; weights: the base model's. The base weights' hash is
    stored, and `read_adapter` refuses other base weights. base: path or name of the base model, for people and for
    PEFT. Each file of the folder is replaced atomically. Raises Error if an array's name, shape or dtype differs from
    `lora.shapes`, or if the folder cannot be written to.
    """
    known = Path(base)
    family_of_base = family(known) if os.fspath(base) and (known / "config.json").is_file() else PLAIN_FAMILY
    write_adapter(folder, config, lora, adapters, Base(os.fspath(base), hash_of(config, weights)), family_of_base)


def write_adapter(
    folder: str | os.PathLike[str],
    config: LlamaConfig,
    lora: Lora,
    adapters: Mapping[str, Array],
    base: Base,
    family_of_base: str = PLAIN_FAMILY,
) -> None:
    """Writes a folder like `save_adapter`. base has the hash of the base model; family_of_base is its model_type."""
    where = f"[train.save_adapter] {os.fspath(folder)}"
    checked = checked_adapters(where, config, lora, adapters)
    if config.rope != "none":
        checked = in_rope(config, checked, "half")
    renamed = for_family(family_of_base, config, lora, checked)
    tensors = {PREFIX + name: np.ascontiguousarray(array, "<f4") for name, array in renamed.tensors.items()}
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise Error(f"{where}: {error.strerror}, need a place that can be written to") from None
    pieces = _safetensors(tensors, {"format": "pt", HASH: f"sha256:{base.sha256}"})
    _core.save_file(os.path.join(folder, TENSORS), pieces)
    text = json.dumps(_fields_of(renamed, base.path), indent=2, sort_keys=True) + "\n"
    _core.save_file(os.path.join(folder, CONFIG), text.encode())


def _safetensors(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> list[bytes | Array]:
    """Returns a file of fp32 tensors, with the same bytes each time: the safetensors package orders metadata
    randomly."""
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(a.reshape(-1).view(np.uint8) for a in tensors.values())]


def read_adapter(
    path: str | os.PathLike[str], config: LlamaConfig, weights: Mapping[str, Array]
) -> tuple[Lora, dict[str, Array]]:
    """Returns the adapters in a PEFT folder, or in a checkpoint of `hexane train --lora`, in fp32. Rotated channels of
    the adapters are in the order of `config`.

    Raises Error for damaged files, for names, shapes or a rank that do not fit the model, for unknown PEFT fields that
    may change the numbers, and for adapters of another base model. A folder written by PEFT does not identify its base
    weights: only shapes are checked.
    """
    where = f"[train.read_adapter] {os.fspath(path)}"
    if os.path.isdir(path):
        return _of_folder(Path(path), where, config, weights)
    kept = read_adapted(path)
    check_base(where, kept.base, config, weights)
    adapters = kept.adapters if config.rope == kept.config.rope else in_rope(kept.config, kept.adapters, config.rope)
    return kept.lora, checked_adapters(where, config, kept.lora, adapters)


def check_base(where: str, base: Base, config: LlamaConfig, weights: Mapping[str, Array | Tensor]) -> None:
    """Raises Error unless the weights are the adapters' base."""
    if (got := hash_of(config, weights)) != base.sha256:
        raise Error(
            f"{where}: got a base model whose weights have the SHA-256 {got[:16]}.., need that of"
            f" {base.sha256[:16]}..{f', which was {base.path}' if base.path else ''}: adapters fit no other weights"
        )


def _of_folder(
    folder: Path, where: str, config: LlamaConfig, weights: Mapping[str, Array]
) -> tuple[Lora, dict[str, Array]]:
    fields = _fields(folder, where)
    rank, alpha = _numbers(f"{where}/{CONFIG}", fields)
    place = f"{where}/{TENSORS}"
    arrays, metadata = _tensors(folder, place)
    for name in arrays:
        if not name.startswith(PREFIX):
            raise Error(f"{place}: got the tensor {name!r}, need adapters of linear layers of a decoder")
    adapters = {name.removeprefix(PREFIX): _as_fp32(place, name, array) for name, array in arrays.items()}
    try:
        renamed = from_family(place, config, rank, alpha, adapters)
        if fields.get("fan_in_fan_out") and not renamed.transposed:
            raise Error(f"{where}/{CONFIG}: fan_in_fan_out: got True, need False: matrices are (out, in)")
        targets = set()
        for name in renamed.tensors:
            if (fits := NAME.fullmatch(name)) is None:
                raise Error(f"{place}: got the tensor {PREFIX + name!r}, need adapters of linear layers of a decoder")
            targets.add(fits[1])
        lora = Lora(renamed.lora.rank, renamed.lora.alpha, tuple(sorted(targets)))
        lora.shapes(config)
    except Error as error:
        raise Error(str(error).replace("[train.Lora]", f"{where}:", 1)) from None
    adapters = checked_adapters(place, config, lora, renamed.tensors)
    if HASH in metadata:
        check_base(where, Base("", metadata[HASH].removeprefix("sha256:")), config, weights)
    if config.rope != "none":
        adapters = in_rope(replace(config, rope="half"), adapters, config.rope)
    return lora, adapters


def _tensors(folder: Path, where: str) -> tuple[dict[str, Array], dict[str, str]]:
    descriptor = open_inside(folder, TENSORS, where)
    try:
        with safe_open(f"/dev/fd/{descriptor}", framework="np") as file:
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        os.close(descriptor)
        raise Error(f"{where}: {error}, need an undamaged safetensors file") from None
    return read_tensors(descriptor, where), metadata


def _as_fp32(where: str, name: str, array: Array) -> Array:
    if array.dtype.name not in FLOATS:
        raise Error(f"{where}: {name}: got {array.dtype.name}, need one of {', '.join(FLOATS)}")
    return array.astype(np.float32, copy=False)


def _fields(folder: Path, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(read_all(open_inside(folder, CONFIG, where), where))
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}/{CONFIG}: {error}, need JSON") from None
    if not isinstance(fields, dict):
        raise Error(f"{where}/{CONFIG}: got {type(fields).__name__}, need an object")
    return fields


def _numbers(where: str, fields: dict[str, Any]) -> tuple[int, float]:
    """Returns rank and alpha. Raises Error for a field whose value may change the numbers."""
    for name, needed in FIXED.items():
        got = fields.get(name, needed[0])
        if not any(got == need and isinstance(got, bool) == isinstance(need, bool) for need in needed):
            raise Error(f"{where}: {name}: got {_short(got)}, need {needed[0]!r}")
    for name in sorted(set(fields) - {*FIXED, *HARMLESS}):
        if fields[name] not in (None, False, [], {}):
            raise Error(f"{where}: {name}: got {_short(fields[name])}, need none: plain adapters of one rank")
    for name in ("r", "lora_alpha"):
        if fields.get(name) is None:
            raise Error(f"{where}: {name}: got none, need a number")
    rank, alpha = fields["r"], fields["lora_alpha"]
    rank_stabilised = fields.get("use_rslora")
    if rank_stabilised not in (None, False, True):
        raise Error(f"{where}: use_rslora: got {_short(rank_stabilised)}, need true or false")
    if rank_stabilised and type(rank) is int and rank > 0 and type(alpha) in (int, float):
        alpha *= math.sqrt(rank)  # PEFT multiplies by alpha / sqrt(rank), not by alpha / rank
    return rank, alpha


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fields_of(renamed: Renamed, base: str) -> dict[str, Any]:
    """Returns fields that every version of PEFT reads."""
    lora = renamed.lora
    assert lora.alpha is not None
    return {
        "auto_mapping": None,
        "base_model_name_or_path": base or None,
        "bias": "none",
        "fan_in_fan_out": renamed.transposed,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "revision": None,
        "target_modules": renamed.targets,
        "task_type": "CAUSAL_LM",
    }
