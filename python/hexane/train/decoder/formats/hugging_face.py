"""Folders of Hugging Face: config.json with model_type "llama" or "mistral", and safetensors, in one file or in shards.

What changes a model's numbers and is not known here is refused by name.
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
from hexane.importers.files import open_inside, read_all
from hexane.importers.safetensors import load_weights
from hexane.train.decoder.config import EMBEDDING, HEAD, LlamaConfig
from hexane.train.decoder.formats.model_file import Format, check_parameters, config_of, little_endian
from hexane.train.decoder.rotary import with_rope

CONFIG = "config.json"
GENERATION = "generation_config.json"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000
FLOATS = ("float32", "float16", "bfloat16", "float64")

# Fields by the names of LlamaConfig, with what transformers takes where a file does not have them.
FIELDS: Mapping[str, tuple[str, Any]] = {
    "vocab": ("vocab_size", 32000),
    "dim": ("hidden_size", 4096),
    "hidden": ("intermediate_size", 11008),
    "layers": ("num_hidden_layers", 32),
    "heads": ("num_attention_heads", 32),
    "kv_heads": ("num_key_value_heads", None),
    "head_dim": ("head_dim", None),
    "seq": ("max_position_embeddings", 2048),
    "theta": ("rope_theta", 10000.0),
    "tied": ("tie_word_embeddings", False),
    "epsilon": ("rms_norm_eps", 1e-6),
}
# What transformers takes for models of this kind in place of the defaults above.
OTHER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mistral": {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072},
}
MISTRAL_WINDOW = 4096  # where a file of Mistral does not have the field
# Fields that have to have one of these values, or be missing.
FIXED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama", "mistral"),
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "rope_scaling": (None,),
    "rope_parameters": (None,),
    "quantization_config": (None,),
    "partial_rotary_factor": (1, 1.0),
    "is_decoder": (True, False),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
}
# Fields that say nothing about the logits.
HARMLESS = (
    *("_name_or_path", "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "pretraining_tp"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "tokenizer_class", "max_sequence_length"),
    *("attention_dropout", "initializer_range", "gradient_checkpointing", "output_attentions", "return_dict"),
    *("output_hidden_states", "id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params"),
    *("is_llama_config", "transformers.js_config", "unsloth_fixed", "unsloth_version", "auto_map", "model_max_length"),
    *("sep_token_id", "cls_token_id", "mask_token_id", "decoder_start_token_id", "tokenizer_file", "license"),
    *("torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "use_return_dict", "hidden_dropout"),
    # How text was made of the logits, by older versions of transformers.
    *("do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k"),
    *("top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
    "encoder_no_repeat_ngram_size",
    *("bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id"),
    *("forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"),
    *("begin_suppress_tokens", "max_length", "min_length", "max_new_tokens", "prefix"),
)
KNOWN = frozenset(("sliding_window", *FIXED, *HARMLESS, *(name for name, _ in FIELDS.values())))


def _read(folder: Path) -> tuple[LlamaConfig, dict[str, Array]]:
    where = f"[train.load_llama] {folder / CONFIG}"
    config = _config(where, _fields(folder, where))
    found = {name: array for name, array in load_weights(folder).items() if not name.endswith("rotary_emb.inv_freq")}
    # Before the names are listed: a file may claim more layers than can be.
    need = config.layers * 9 + (2 if config.tied else 3)
    head = found.pop(HEAD) if config.tied and HEAD in found else None
    if len(found) != need:
        raise Error(f"{where}: got {config.layers} layers and {len(found)} tensors, need {need} tensors")
    for name, shape in config.shapes().items():
        if name not in found:
            raise Error(f"[train.load_llama] {folder}: got no tensor {name!r}, need those of a model of this config")
        if found[name].shape != shape or found[name].dtype.name not in FLOATS:
            got = f"{found[name].dtype.name} of shape {found[name].shape}"
            need_text = f"shape {shape} in one of {', '.join(FLOATS)}"
            raise Error(f"[train.load_llama] {folder}: {name}: got {got}, need {need_text}")
    if head is not None and not _same(head, found[EMBEDDING]):
        raise Error(f"{where}: tie_word_embeddings: got true and a {HEAD} that is not the embedding, need one of them")
    return config, {name: _as_fp32(folder, name, found[name]) for name in config.shapes()}


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _as_fp32(folder: Path, name: str, array: Array) -> Array:
    with np.errstate(over="ignore"):
        found = array.astype(np.float32, copy=False)
    if array.dtype == np.float64 and not np.array_equal(found, array, equal_nan=True):
        raise Error(f"[train.load_llama] {folder}: {name}: got numbers that only fp64 has, need those of fp32")
    return found


def end_ids(folder: Path) -> frozenset[int]:
    """The tokens that end a text, by the files of a folder. Raises Error for a damaged file."""
    found: set[int] = set()
    for name in (CONFIG, GENERATION):
        if not (folder / name).exists():
            continue
        where = f"[train.load_llama] {folder / name}"
        given = _fields(folder, where, name).get("eos_token_id")
        ids = given if isinstance(given, list) else [] if given is None else [given]
        if any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
            raise Error(f"{where}: eos_token_id: got {_short(given)}, need an integer, or a list of them")
        found |= set(ids)
    return frozenset(found)


def _fields(folder: Path, where: str, name: str = CONFIG) -> dict[str, Any]:
    try:
        found = json.loads(read_all(open_inside(folder, name, f"[train.load_llama] {folder}"), where))
    except OSError as error:
        raise Error(f"[train.load_llama] {folder}: {error.strerror}, need a readable folder") from None
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: {error}, need JSON") from None
    if not isinstance(found, dict):
        raise Error(f"{where}: got {type(found).__name__}, need an object")
    return found


def _config(where: str, fields: dict[str, Any]) -> LlamaConfig:
    fields = _plain_rope(where, fields)
    if "model_type" not in fields:
        raise Error(f"{where}: model_type: got none, need 'llama'")
    for name, needed in FIXED.items():
        got = fields.get(name, needed[0])
        if not any(got == need and isinstance(got, bool) == isinstance(need, bool) for need in needed):
            raise Error(f"{where}: {name}: got {_short(got)}, need {needed[0]!r}")
    # transformers keeps what it does not store for a model under names that begin with an underscore.
    unknown = sorted(n for n in set(fields) - KNOWN if fields[n] not in (None, False) and not n.startswith("_"))
    if unknown:
        raise Error(
            f"{where}: {unknown[0]}: got {_short(fields[unknown[0]])} in a field that is not known here; need a config"
            " without it: it may change what the model computes"
        )
    sizes: dict[str, Any] = {}
    defaults = OTHER_DEFAULTS.get(fields["model_type"], {})
    for own, (name, default) in FIELDS.items():
        value = fields.get(name, defaults.get(name, default))
        if value is None and own in ("kv_heads", "head_dim"):
            continue
        sizes[own] = _value(f"{where}: {name}", own, value)
    for own in ("kv_heads", "head_dim"):
        if own in sizes and sizes[own] < 1:
            raise Error(f"{where}: {FIELDS[own][0]}: got {sizes[own]}, need at least 1")
    _check_window(where, fields, sizes["seq"])
    return config_of(where, **sizes, rope="half")


def _check_window(where: str, fields: dict[str, Any], seq: int) -> None:
    """Attention to the last tokens alone changes nothing where all of them are among those. A Llama has no window."""
    window = fields.get("sliding_window", MISTRAL_WINDOW)
    if fields["model_type"] != "mistral" or window is None:
        return
    if isinstance(window, bool) or not isinstance(window, int) or window < seq:
        raise Error(f"{where}: sliding_window: got {_short(window)}, need none, or at least the model's {seq} tokens")


def _value(where: str, own: str, value: Any) -> Any:
    if own == "tied":
        if not isinstance(value, bool):
            raise Error(f"{where}: got {_short(value)}, need true or false")
    elif own in ("theta", "epsilon"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            raise Error(f"{where}: got {_short(value)}, need a number above 0")
        return float(value)
    elif isinstance(value, bool) or not isinstance(value, int):
        raise Error(f"{where}: got {_short(value)}, need an integer")
    return value


def _plain_rope(where: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Both spellings of rotary positions without scaling become `rope_theta`."""
    found = dict(fields)
    for name in ("rope_scaling", "rope_parameters"):
        given = found.get(name)
        if isinstance(given, dict) and set(given) <= {"rope_type", "type", "rope_theta"}:
            kinds = {given.get("rope_type", "default"), given.get("type", "default")} if _texts(given) else {None}
            if kinds == {"default"}:
                del found[name]
                theta = given.get("rope_theta", found.get("rope_theta"))
                if theta is not None and found.setdefault("rope_theta", theta) != theta:
                    raise Error(f"{where}: rope_theta: got two values, need one")
    return found


def _texts(given: dict[str, Any]) -> bool:
    return all(isinstance(given.get(name, ""), str) for name in ("rope_type", "type"))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _write(folder: Path, config: LlamaConfig, weights: Mapping[str, Array], shard_bytes: int = SHARD_BYTES) -> None:
    """Into a new folder, which is there as a whole or not at all."""
    where = f"[train.save_llama] {folder}"
    check_config(where, config)
    config, weights = with_rope(config, little_endian(config, weights), "half")
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise Error(f"{where}: got something that is there already, need the name of a new folder")
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        _write_weights(part, {name: weights[name] for name in config.shapes()}, shard_bytes)
        (part / CONFIG).write_text(json.dumps(_fields_of(config), indent=2) + "\n", encoding="utf-8")
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
    """Raises Error, which begins with `where`, for what config.json cannot say."""
    check_parameters(where, config, {"residual": 1.0})
    if config.rope == "none":
        raise Error(f"{where}: rope: got 'none', need a model with rotary positions")


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
        save_safetensors(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    shard_of: dict[str, str] = {}
    for number, names in zip(count(1), shards, strict=False):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_safetensors({name: weights[name] for name in names}, folder / file, metadata={"format": "pt"})
        shard_of |= dict.fromkeys(names, file)
    total = sum(array.nbytes for array in weights.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": shard_of}, indent=2)
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")


def _fields_of(config: LlamaConfig) -> dict[str, Any]:
    own = {name: getattr(config, field) for field, (name, _) in FIELDS.items()}
    about = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    return {**about, "attention_bias": False, "mlp_bias": False, "torch_dtype": "float32", **own}


FORMAT = Format(
    "hugging-face", "folders with config.json and safetensors", lambda path, head: path.is_dir(), _read, _write
)
