"""Adapters of families whose linear layers have other names in transformers, or are fused.

The adapters of a fused layer's parts become one adapter: their matrices A are stacked, and their matrices B become
blocks on the diagonal of a larger B. All adapters of a file get the same rank, filled with zeros.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.formats.hugging_face_families import WITH_IMAGES
from hexane.train.decoder.formats.hugging_face_names import NAMES, OF_IMAGES, PLAIN, Names, text_name
from hexane.train.decoder.lora import LAYERS, Lora

LAYERS_WITH_IMAGES = "model.language_model.layers."  # The text part's layers in transformers 4.52 and later.
Stems = Mapping[str, Array]  # tensors by names such as "model.layers.0.self_attn.q_proj.lora_A.weight"
TENSOR = re.compile(r"(\D+)(\d{1,9})\.(.+)\.lora_A\.weight")


@dataclass(frozen=True, slots=True)
class Renamed:
    """Adapters with the names of transformers. lora: rank and alpha; targets: names of the adapted layers; transposed:
    the layers' matrices are (in, out)."""

    lora: Lora
    tensors: dict[str, Array]
    targets: list[str]
    transposed: bool


def for_family(family: str, config: LlamaConfig, lora: Lora, adapters: Stems) -> Renamed:
    """Returns the adapters as transformers names them in a family. For other model_types the names do not change."""
    names = NAMES.get(family)
    if family in WITH_IMAGES:
        named = {LAYERS_WITH_IMAGES + name.removeprefix(PLAIN.layer): array for name, array in adapters.items()}
        # Whole names: the layers of the image encoder end with the same words.
        return Renamed(lora, named, sorted({name.partition(".lora_")[0] for name in named}), False)
    if names is None:
        return Renamed(lora, dict(adapters), list(lora.targets), False)
    asked = {LAYERS[target] for target in lora.targets if config.gated or target != "gate_proj"}
    groups = _groups(names, asked)
    stacked = max(sum(part in asked for part in parts) for parts in groups.values())
    rank = stacked * lora.rank
    tensors: dict[str, Array] = {}
    for i in range(config.layers):
        for own, parts in groups.items():
            pairs = [_pair(adapters, f"{PLAIN.layer}{i}.{part}") if part in asked else None for part in parts]
            a, b = _joined(config, parts, pairs, rank)
            stem = f"{names.layer}{i}.{own}"
            tensors[f"{stem}.lora_A.weight"] = a
            tensors[f"{stem}.lora_B.weight"] = _interleaved(config, b) if names.by_heads and len(parts) > 1 else b
    assert lora.alpha is not None
    wide = Lora(rank, stacked * lora.alpha, lora.targets)
    return Renamed(wide, tensors, list(groups), names.transposed)


def from_family(where: str, config: LlamaConfig, rank: int, alpha: float, tensors: Stems) -> Renamed:
    """Returns adapters with the names of `Lora.shapes`. Fused adapters are split, and columns of zeros in B are
    dropped. Of a model that also reads images, only adapters of the part for texts are returned.

    Raises Error, beginning with `where`, for tensors that do not fit together. Unknown names stay as they are.
    """
    tensors = _of_texts(where, tensors)
    plain = Renamed(Lora(rank, alpha), dict(tensors), [], False)
    found = {name: known for name in tensors if (known := _known(name)) is not None}
    families = [names for names, *_ in found.values()]
    if all(names is PLAIN for names in families):
        return plain
    left, split = plain.tensors, dict[str, tuple[Array, Array]]()
    for name, (names, layer, parts) in found.items():
        a, b = left.pop(name), left.pop(name.replace("lora_A", "lora_B"), None)
        rows = [_rows(config, part) for part in parts]
        need = (sum(rows), rank)
        if a.ndim != 2 or len(a) != rank or b is None or b.shape != need:
            got = f"{a.shape} and {'no lora_B' if b is None else b.shape}"
            raise Error(f"{where}: {name}: got the shapes {got}, need ({rank}, in) and {need} of lora_B")
        if names.by_heads and len(parts) > 1:
            if config.kv_heads != config.heads:
                raise Error(f"{where}: {name}: got {config.kv_heads} key heads, need as many as query heads")
            b = b.reshape(config.heads, len(parts), config.head_dim, rank).swapaxes(0, 1).reshape(need)
        ends = np.cumsum([0, *rows])
        for part, begin, end in zip(parts, ends, ends[1:], strict=False):
            used = np.flatnonzero(b[begin:end].any(0))
            if (stem := f"{PLAIN.layer}{layer}.{part}") in split:
                raise Error(f"{where}: {name}: got a second adapter of {stem}, need one")
            split[stem] = (a[used], b[begin:end, used])
    own = max(len(a) for a, _ in split.values())
    if own:  # drops parts of fused layers that no layer adapts
        used_parts = {stem.rpartition(".")[2] for stem, (a, _) in split.items() if len(a)}
        split = {stem: pair for stem, pair in split.items() if stem.rpartition(".")[2] in used_parts}
    own = max(own, 1)
    for stem, (a, b) in split.items():
        left[f"{stem}.lora_A.weight"] = _filled(a, (own, a.shape[1]))
        left[f"{stem}.lora_B.weight"] = _filled(b, (len(b), own))
    return Renamed(Lora(own, alpha * own / rank), left, [], any(names.transposed for names in families))


def _of_texts(where: str, tensors: Stems) -> Stems:
    named: dict[str, Array] = {}
    for name, array in tensors.items():
        own = text_name(name)
        if name.startswith(OF_IMAGES):
            continue
        if own in named:
            raise Error(f"{where}: {name}: got a second adapter of {own}, need one")
        named[own] = array
    if tensors and not named:
        raise Error(f"{where}: got adapters of an image encoder alone, need adapters of linear layers of a decoder")
    return named


def _groups(names: Names, asked: set[str]) -> dict[str, tuple[str, ...]]:
    """Returns the adapted layers of a family, each with the parts that it holds."""
    groups = {own: parts for own, parts in names.fused.items() if asked & set(parts)}
    fused = {part for parts in names.fused.values() for part in parts}
    return groups | {names.parts.get(part, part): (part,) for part in LAYERS.values() if part in asked - fused}


def _known(name: str) -> tuple[Names, str, tuple[str, ...]] | None:
    """Returns the family, layer and parts of a lora_A; None for other tensors."""
    match = TENSOR.fullmatch(name)
    if match is None:
        return None
    for names in (PLAIN, *NAMES.values()):
        parts = _groups(names, set(LAYERS.values())).get(match[3])
        if match[1] == names.layer and parts is not None:
            return names, match[2], parts
    return None


def _rows(config: LlamaConfig, part: str) -> int:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    sizes = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
    return sizes.get(part, config.hidden if part in ("mlp.gate_proj", "mlp.up_proj") else config.dim)


def _pair(adapters: Stems, stem: str) -> tuple[Array, Array]:
    return adapters[f"{stem}.lora_A.weight"], adapters[f"{stem}.lora_B.weight"]


def _joined(
    config: LlamaConfig, parts: tuple[str, ...], pairs: list[tuple[Array, Array] | None], rank: int
) -> tuple[Array, Array]:
    """Returns A (rank, in) and B (rows of all parts, rank)."""
    given = [pair for pair in pairs if pair is not None]
    a = _filled(np.concatenate([one for one, _ in given]), (rank, given[0][0].shape[1]))
    rows = [_rows(config, part) for part in parts]
    b, row, column = np.zeros((sum(rows), rank), np.float32), 0, 0
    for count, pair in zip(rows, pairs, strict=True):
        if pair is not None:
            b[row : row + count, column : column + pair[1].shape[1]] = pair[1]
            column += pair[1].shape[1]
        row += count
    return a, b


def _interleaved(config: LlamaConfig, b: Array) -> Array:
    """Returns rows of queries, keys and values interleaved by head."""
    return b.reshape(3, config.heads, config.head_dim, -1).swapaxes(0, 1).reshape(b.shape)


def _filled(array: Array, shape: tuple[int, int]) -> Array:
    filled = np.zeros(shape, np.float32)
    filled[: array.shape[0], : array.shape[1]] = array
    return filled
