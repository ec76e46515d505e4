"""Maps the weights of a decoder to tensors of a Hugging Face folder, by model_type.

Phi-3 fuses linear layers with the same input into one tensor. GPT-2, whose matrices are (in, out), fuses them too.
GPT-NeoX fuses query, key and value, interleaved by head.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hexane.graph import Array
from hexane.train.decoder.config import EMBEDDING, HEAD, NORM, POSITIONS, LlamaConfig
from hexane.train.decoder.formats.hugging_face_families import WITH_IMAGES

LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


@dataclass(frozen=True, slots=True)
class Source:
    """The tensor that holds a weight, its shape, and the function that extracts the weight."""

    name: str
    shape: tuple[int, ...]
    part: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Names:
    """Names in a family. outer: of weights outside of layers, by our names; layer: prefix of a layer's tensors; parts:
    of a layer's weights, by our names; fused: tensors that hold several weights, one after the other or (by_heads)
    interleaved by head; transposed: matrices are (in, out); buffers: a pattern of tensors that are no weights."""

    outer: Mapping[str, str]
    layer: str
    parts: Mapping[str, str]
    fused: Mapping[str, tuple[str, ...]]
    by_heads: bool = False
    transposed: bool = False
    buffers: str = r".*rotary_emb\.inv_freq"


PHI3 = Names({}, "model.layers.", {}, {"self_attn.qkv_proj": QKV, "mlp.gate_up_proj": GATE_UP})
GPT2 = Names(
    {EMBEDDING: "transformer.wte", POSITIONS: "transformer.wpe", NORM: "transformer.ln_f", HEAD: "lm_head"},
    "transformer.h.",
    {
        "input_layernorm": "ln_1",
        "self_attn.o_proj": "attn.c_proj",
        "post_attention_layernorm": "ln_2",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
    },
    {"attn.c_attn": QKV},
    transposed=True,
    buffers=r".*\.attn\.(masked_)?bias",
)
GPT_NEOX = Names(
    {EMBEDDING: "gpt_neox.embed_in", NORM: "gpt_neox.final_layer_norm", HEAD: "embed_out"},
    "gpt_neox.layers.",
    {"self_attn.o_proj": "attention.dense", "mlp.up_proj": "mlp.dense_h_to_4h", "mlp.down_proj": "mlp.dense_4h_to_h"},
    {"attention.query_key_value": QKV},
    by_heads=True,
    buffers=r".*attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
)
GPT_NEOX_HEAD = "embed_out.weight"
PLAIN = Names({}, "model.layers.", {}, {})
NAMES: Mapping[str, Names] = {"phi3": PHI3, "gpt2": GPT2, "gpt_neox": GPT_NEOX}


# Names of old and new versions of transformers.
OF_IMAGES = tuple(f"{prefix}{part}." for prefix in ("", "model.") for part in ("vision_tower", "multi_modal_projector"))
TEXT_PREFIXES = {"language_model.model.": "model.", "model.language_model.": "model.", "language_model.": ""}


def text_name(name: str) -> str:
    """Returns the name that a tensor of a model with images has in a model of its part for texts."""
    for old, new in TEXT_PREFIXES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def is_buffer(family: str, name: str) -> bool:
    """True if a tensor is no weight but a constant that the model computes itself."""
    return re.fullmatch(NAMES.get(family, PLAIN).buffers, name) is not None


def source(config: LlamaConfig, family: str, name: str, shape: tuple[int, ...]) -> Source:
    """Returns the source of the weight with this name and shape."""
    names = NAMES.get(family, PLAIN)
    match = LAYER.fullmatch(name)
    if match is None:
        stem, _, kind = name.rpartition(".")
        return Source(f"{names.outer.get(f'{stem}.weight', stem)}.{kind}", shape, _whole)
    i, part, kind = match.groups()
    transposed = names.transposed and len(shape) == 2
    for fused, parts in names.fused.items():
        if part in parts:
            return _fused(config, names, f"{names.layer}{i}.{fused}.{kind}", parts, part, shape)
    own = f"{names.layer}{i}.{names.parts.get(part, part)}.{kind}"
    return Source(own, shape[::-1] if transposed else shape, np.transpose if transposed else _whole)


def _whole(array: Array) -> Array:
    return array


def _fused(
    config: LlamaConfig, names: Names, own: str, parts: tuple[str, ...], part: str, shape: tuple[int, ...]
) -> Source:
    place = parts.index(part)
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    rows = [queries, keys, keys] if parts is QKV else [config.hidden] * 2
    begin, whole = sum(rows[:place]), (sum(rows), *shape[1:])
    if names.by_heads:

        def of_heads(array: Array) -> Array:
            heads = array.reshape(config.heads, len(parts), config.head_dim, *shape[1:])
            return heads[:, place].reshape(shape)

        return Source(own, whole, of_heads)
    if names.transposed and len(shape) == 2:
        return Source(own, whole[::-1], lambda array: array[:, begin : begin + rows[place]].T)
    return Source(own, whole, lambda array: array[begin : begin + rows[place]])


def count_of_tensors(config: LlamaConfig, family: str) -> int:
    """Returns the number of tensors in a folder, without listing all layers."""
    one = replace(config, layers=1, local=(), unrotated=())
    all_names = {source(one, family, name, shape).name for name, shape in one.shapes().items()}
    of_layer = {source(one, family, name, shape).name for name, shape in one.of_layer(0)}
    return len(all_names) + (config.layers - 1) * len(of_layer)


def as_named(family: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the tensors by the names that `source` gives. GPT-2 was published without its head and so without a
    prefix, and the head of GPT-NeoX has two names. Of a model that also reads images, only tensors of texts are
    returned."""
    if family in WITH_IMAGES:
        return {text_name(name): array for name, array in tensors.items() if not name.startswith(OF_IMAGES)}
    if family == "gpt_neox":
        return {GPT_NEOX_HEAD if name == HEAD else name: array for name, array in tensors.items()}
    if family != "gpt2" or any(name.startswith("transformer.") for name in tensors):
        return dict(tensors)
    return {name if name == HEAD else f"transformer.{name}": array for name, array in tensors.items()}
