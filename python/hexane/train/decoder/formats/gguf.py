"""GGUF files of decoders: llama.cpp's format, with config, weights and tokenizer in one file.

Matrices of Q8_0, Q5_0, Q4_0 and Q6_K may stay integers with a scale per block (`read_stored`). Kinds that also have an
offset per block become fp32.
"""

from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np

from hexane._core import FileMapping
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array, constant
from hexane.importers.files import check_memory
from hexane.importers.gguf import Blocks, GgufFile, GgufTensor, open_gguf
from hexane.importers.weights import FileTensor, Weights
from hexane.ops import OPS, apply
from hexane.train.decoder.config import EMBEDDING, HEAD, NORM, POSITIONS, LlamaConfig
from hexane.train.decoder.formats.gguf_config import (
    ARCHITECTURES,
    FREQUENCIES,
    LONG,
    SHORT,
    architecture_of,
    config_of_file,
)
from hexane.train.decoder.formats.hugging_face_names import GATE_UP, LAYER, QKV

WHERE = "[gguf]"
INT8, FP32 = 1, 4  # bytes
OUTER = {EMBEDDING: "token_embd", POSITIONS: "position_embd", NORM: "output_norm", HEAD: "output"}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
FUSED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "phi3": {"attn_qkv": QKV, "ffn_up": GATE_UP},
    "gpt2": {"attn_qkv": QKV},
}
FACTORS = (FREQUENCIES, SHORT, LONG)
END_IDS = ("eos", "eot", "eom")


def read_stored(path: Path, in_16_bits: bool = False) -> tuple[LlamaConfig, Mapping[str, Array | Tensor]]:
    """Like `formats.read`, but matrices with a scale and no offset per block stay encoded, as tensors with the same
    numbers. in_16_bits: the weights stay in the mapped file. Encoded matrices are read at each access, matrices in F16
    and BF16 keep their dtype, and tensors of single numbers are arrays in the file (see `GgufFile.part`)."""
    with open_gguf(path, WHERE, mapped=in_16_bits) as file:
        config, weights = _read_all(file, stored=True, in_16_bits=in_16_bits)
    return config, Weights(weights)


def end_ids(path: Path) -> frozenset[int]:
    """Returns the tokens that end a text or an answer."""
    with open_gguf(path, WHERE) as file:
        ids = (file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in END_IDS)
        return frozenset(one for one in ids if type(one) is int)


def family(path: Path) -> str:
    """Returns the family by its name in config.json."""
    with open_gguf(path, WHERE) as file:
        return ARCHITECTURES[architecture_of(file)].family


def read(path: Path) -> tuple[LlamaConfig, dict[str, Array]]:
    """See `formats.read`."""
    with open_gguf(path, WHERE) as file:
        config, weights = _read_all(file, stored=False)
    return config, {name: one for name, one in weights.items() if isinstance(one, np.ndarray)}


def _read_all(
    file: GgufFile, stored: bool, in_16_bits: bool = False
) -> tuple[LlamaConfig, dict[str, Array | Tensor | FileTensor]]:
    config, name = config_of_file(file, head="output.weight" in file.tensors), architecture_of(file)
    # Compare the counts before listing all names: a damaged file may claim billions of layers.
    if config.layers > len(file.tensors):
        raise Error(
            f"{file.where}: got {config.layers} layers and {len(file.tensors)} tensors, need those of each layer"
        )
    places = {own: _place(config, name, own) for own in config.shapes()}
    used = {place.tensor for place in places.values()}
    if unknown := sorted(set(file.tensors) - used - set(FACTORS)):
        raise Error(f"{file.where}: got the tensors {', '.join(unknown[:4])}, need those of {name} alone")
    weights: dict[str, Array | Tensor | FileTensor] = {}
    needed = 0
    for own, shape in config.shapes().items():
        place = places[own]
        tensor = file.tensors.get(place.tensor)
        if tensor is None:
            raise Error(f"{file.where}: got no tensor {place.tensor}, need those of {name}")
        need = shape if place.rows is None else (place.rows, *shape[1:])
        if tensor.shape != need:
            raise Error(f"{file.where}: {place.tensor}: got the shape {tensor.shape}, need {need}")
        if not _stays_mapped(file, tensor, in_16_bits):
            needed += prod(shape) * (INT8 if _stays(tensor, stored) else FP32)
    check_memory(file.where, needed)
    left = Counter(place.tensor for place in places.values())
    held: dict[str, Array | Blocks] = {}  # tensors that hold several weights, until the last weight is read
    for own, place in places.items():
        if file.mapping is not None and _stays(file.tensors[place.tensor], stored):
            weights[own] = _later(file, file.tensors[place.tensor], place)
            continue
        whole = held.pop(place.tensor, None)
        if whole is None:
            whole = _whole(file, file.tensors[place.tensor], stored, in_16_bits)
        weights[own] = _part(whole, place)
        left[place.tensor] -= 1
        if left[place.tensor]:
            held[place.tensor] = whole
    return config, weights


def _whole(file: GgufFile, tensor: GgufTensor, stored: bool, in_16_bits: bool) -> Array | Blocks:
    """Returns a tensor as blocks, as numbers in 16 bits, or in fp32."""
    if _stays(tensor, stored):
        return file.read_blocks(tensor)
    if _stays_mapped(file, tensor, in_16_bits):
        mapped = file.part(tensor)
        assert mapped is not None
        return mapped
    return file.read_stored(tensor) if in_16_bits and _is_in_16_bits(tensor) else file.read(tensor)


def _stays(tensor: GgufTensor, stored: bool) -> bool:
    return stored and len(tensor.shape) == 2 and tensor.kind.split is not None


def _stays_mapped(file: GgufFile, tensor: GgufTensor, in_16_bits: bool) -> bool:
    """True for numbers in fp32, and for those in 16 bits that keep their dtype."""
    if file.mapping is None or tensor.kind.dtype is None:
        return False
    return tensor.kind.dtype == np.float32 or (in_16_bits and _is_in_16_bits(tensor))


def _is_in_16_bits(tensor: GgufTensor) -> bool:
    return len(tensor.shape) == 2 and tensor.kind.dtype is not None and tensor.kind.dtype.itemsize == 2


class _Place:
    """The place of a weight: a whole tensor (rows None), or the rows `begin` to `end` of a tensor with `rows` rows."""

    __slots__ = ("begin", "end", "rows", "tensor")

    def __init__(self, tensor: str, begin: int = 0, end: int | None = None, rows: int | None = None) -> None:
        self.tensor, self.begin, self.end, self.rows = tensor, begin, end, rows


def _place(config: LlamaConfig, architecture: str, own: str) -> _Place:
    match = LAYER.fullmatch(own)
    if match is None:
        stem, _, kind = own.rpartition(".")
        return _Place(f"{OUTER[f'{stem}.weight']}.{kind}")
    i, part, kind = match.groups()
    for fused, parts in FUSED.get(architecture, {}).items():
        if part in parts:
            queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
            sizes = [queries, keys, keys] if parts is QKV else [config.hidden] * 2
            at = parts.index(part)
            begin = sum(sizes[:at])
            return _Place(f"blk.{i}.{fused}.{kind}", begin, begin + sizes[at], sum(sizes))
    names = {**PARTS, **POST_NORMS} if config.post_norms else PARTS
    return _Place(f"blk.{i}.{names[part]}.{kind}")


def _part(whole: Array | Blocks, place: _Place) -> Array | Tensor:
    def rows(array: Array) -> Array:
        if place.rows is None:
            return array
        part = array[place.begin : place.end]
        return part if FileMapping.of(part) else part.copy()

    return _encoded(rows(whole.integers), rows(whole.scales)) if isinstance(whole, Blocks) else rows(whole)


def _later(file: GgufFile, tensor: GgufTensor, place: _Place) -> FileTensor:
    """Returns a weight that is decoded when it is read. Reads no other rows of its tensor."""
    assert file.mapping is not None
    part = (
        tensor if place.rows is None else tensor.rows(place.begin, tensor.shape[0] if place.end is None else place.end)
    )
    later = file.later()

    def decode() -> Tensor:
        blocks = later.read_blocks(part)
        return _encoded(blocks.integers, blocks.scales)

    return FileTensor(file.mapping, decode)


def _encoded(integers: Array, scales: Array) -> Tensor:
    (value,) = apply(OPS["decode_blocks"], [constant(integers, ()), constant(scales, ())], {}, ())
    return Tensor(value)
