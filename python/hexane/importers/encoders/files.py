"""Text encoders in folders of Hugging Face: config.json, weights in safetensors, and sentence-transformers' files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.encoders.config import EncoderConfig, config_in, is_encoder
from hexane.importers.encoders.families import FAMILIES, Family
from hexane.importers.encoders.pooling import Pooling, pooling_in
from hexane.importers.files import open_inside, open_next_to, read_all
from hexane.importers.safetensors import read_tensors, read_weights
from hexane.importers.weights import as_fp32

CONFIG, MODULES = "config.json", "modules.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_BYTES = 1 << 26  # largest size of a JSON file
FLOATS = ("float32", "float16", "bfloat16")
OLD = {".gamma": ".weight", ".beta": ".bias"}  # endings of layer norms' names in the files of BERT's first releases
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


@dataclass(frozen=True, slots=True)
class EncoderFiles:
    """The contents of a folder. weights: in fp32 or as stored, by this package's names."""

    config: EncoderConfig
    pooling: Pooling
    weights: dict[str, Array]

    @property
    def parameters(self) -> int:
        return sum(one.size for one in self.weights.values())


def holds_encoder(folder: Path) -> bool:
    """True if a folder has a readable config.json that names one of the families."""
    if not (folder / CONFIG).is_file():
        return False
    try:
        return is_encoder(json_object(folder, CONFIG, "[encoder]"))
    except Error:
        return False


def read_config(folder: Path) -> tuple[EncoderConfig, Pooling]:
    """Returns the config of a folder and its pooling. Raises Error for unknown fields."""
    where = f"[encoder] {folder}"
    config = config_in(f"{where}/{CONFIG}", json_object(folder, CONFIG, where))
    if not (folder / MODULES).is_file():
        return config, Pooling()

    def read(name: str) -> Mapping[str, Any] | None:
        return json_object(folder, name, where) if (folder / name).is_file() else None

    return config, pooling_in(where, _json(folder, MODULES, where), read)


def read_encoder(folder: Path, stored: bool = False) -> EncoderFiles:
    """Returns the config and the weights of a folder. stored: arrays with the file's numbers stay in the mapped file,
    and matrices in 16 bits keep their dtype.

    Raises Error for damaged files, for an unsupported config, and for missing or unexpected tensors.
    """
    where = f"[encoder] {folder}"
    config, pooling = read_config(folder)
    family = FAMILIES[config.family]
    tensors = {_new(name): array for name, array in tensors_in(folder, where, stored).items()}
    check_layers(where, config.layers, len(tensors))
    prefix = f"{family.prefix}."
    if any(name.startswith(prefix) for name in tensors):
        inner = {name.removeprefix(prefix): a for name, a in tensors.items() if name.startswith(prefix)}
        outer = {name: a for name, a in tensors.items() if not name.startswith(prefix)}
    else:
        inner, outer = {n: a for n, a in tensors.items() if not _of_head(family, n)}, {}
        outer = {name: a for name, a in tensors.items() if name not in inner}
    if family.pooler and f"{family.pooler}.weight" in inner:
        config = replace(config, pooled=True)
    taken = _Taken(where, inner, outer, stored)
    for name, (source, shape) in body(config).items():
        taken.take(name, source, shape)
    if config.head:
        _take_head(taken, config, family)
    taken.check_rest(family)
    return EncoderFiles(config, pooling, taken.weights)


def check_layers(where: str, layers: int, tensors: int) -> None:
    """Raises Error if a config has more layers than the file has tensors. The check bounds the list of tensor names."""
    if layers > tensors:
        raise Error(f"{where}: got {layers} layers and {tensors} tensors, need those of a model of this config")


def _of_head(family: Family, name: str) -> bool:
    heads = [part for head in family.heads.values() for part in (head.first, head.last, head.norm, head.bias)]
    return name.startswith(family.ignored) or any(
        part and (name == part or name.startswith(f"{part}.")) for part in heads
    )


def body(config: EncoderConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns the file's name and the shape of each weight of a model without its head, by this package's names."""
    c, family = config, FAMILIES[config.family]
    names = family.names
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}

    def add(own: str, source: str, *shape: int, bias: bool = True) -> None:
        tensors[f"{own}.weight"] = f"{source}.weight", shape
        if bias:
            tensors[f"{own}.bias"] = f"{source}.bias", shape[:1]

    for own, rows in (("word", c.vocab), ("position", c.positions), ("type", c.types)):
        if rows:
            add(f"embeddings.{own}", names[f"embeddings.{own}"], rows, c.dim, bias=False)
    add("embeddings.norm", names["embeddings.norm"], c.dim)
    if c.buckets:
        add("distances", "encoder.relative_attention_bias", c.buckets, c.heads, bias=False)
    for i in range(c.layers):
        for own in ("query", "key", "value", "out"):
            add(f"layer.{i}.{own}", f"{names['layer']}.{i}.{names[own]}", c.dim, c.dim)
        add(f"layer.{i}.attention_norm", f"{names['layer']}.{i}.{names['attention_norm']}", c.dim)
        add(f"layer.{i}.up", f"{names['layer']}.{i}.{names['up']}", c.hidden, c.dim)
        add(f"layer.{i}.down", f"{names['layer']}.{i}.{names['down']}", c.dim, c.hidden)
        add(f"layer.{i}.norm", f"{names['layer']}.{i}.{names['norm']}", c.dim)
    if c.pooled:
        add("pooler", family.pooler, c.dim, c.dim)
    return tensors


def _take_head(taken: "_Taken", c: EncoderConfig, family: Family) -> None:
    head = family.heads[c.head]
    if head.first.startswith(f"{family.prefix}."):  # the head's first layer is the model's pooler
        if not c.pooled:
            raise Error(f"{taken.where}: got no tensor {head.first + '.weight'!r}, need it for {c.head}")
        taken.weights |= {f"head.first.{part}": taken.weights[f"pooler.{part}"] for part in ("weight", "bias")}
    elif head.first:
        taken.take("head.first.weight", f"{head.first}.weight", (c.dim, c.dim))
        taken.take("head.first.bias", f"{head.first}.bias", (c.dim,))
    if head.norm:
        taken.take("head.norm.weight", f"{head.norm}.weight", (c.dim,))
        taken.take("head.norm.bias", f"{head.norm}.bias", (c.dim,))
    if head.tied:
        taken.take_tied(head.last, head.bias, c.vocab)
        return
    weight = taken.outer.get(f"{head.last}.weight")
    labels = 2 if c.head == "ForQuestionAnswering" else 1 if weight is None or not weight.ndim else weight.shape[0]
    taken.take("head.last.weight", f"{head.last}.weight", (labels, c.dim))
    taken.take("head.last.bias", f"{head.last}.bias", (labels,))


class _Taken:
    """Takes tensors out of a file as weights. `check_rest` reports the remaining tensors."""

    def __init__(self, where: str, inner: dict[str, Array], outer: dict[str, Array], stored: bool) -> None:
        self.where, self.inner, self.outer, self.stored = where, inner, outer, stored
        self.weights: dict[str, Array] = {}

    def take(self, own: str, name: str, shape: tuple[int, ...]) -> None:
        tensors = self.outer if own.startswith("head.") else self.inner
        if name not in tensors:
            raise Error(f"{self.where}: got no tensor {name!r}, need those of a model of this config")
        array = tensors.pop(name)
        if array.shape != shape or array.dtype.name not in FLOATS:
            raise Error(
                f"{self.where}: {name}: got {array.dtype.name} of shape {array.shape}, need shape {shape} in one of"
                f" {', '.join(FLOATS)}"
            )
        wide = as_fp32(array, self.stored)
        wide.flags.writeable = False
        self.weights[own] = wide

    def take_tied(self, last: str, bias: str, vocab: int) -> None:
        """Takes the bias of a head whose weight is the embedding. The file may have copies of weight and bias, which
        must be equal."""
        weight, other = self.outer.pop(f"{last}.weight", None), f"{last}.bias"
        if weight is not None and not np.array_equal(weight, self.weights["embeddings.word.weight"]):
            raise Error(f"{self.where}: {last}.weight: got another than the embedding, need a tied one")
        copy = self.outer.pop(other, None) if other != bias and bias in self.outer else None
        self.take("head.last.bias", bias if bias in self.outer else other, (vocab,))
        if copy is not None and not np.array_equal(copy, self.weights["head.last.bias"]):
            raise Error(f"{self.where}: {other}: got another than {bias}, need one of them")

    def check_rest(self, family: Family) -> None:
        """Raises Error for remaining tensors, except for buffers, poolers and heads of other architectures."""
        rest = [name for name in self.inner if name not in BUFFERS and not name.startswith("pooler.")]
        rest += [name for name in self.outer if not _of_head(family, name)]
        if rest:
            raise Error(
                f"{self.where}: got the tensor {sorted(rest)[0]!r}{f' and {len(rest) - 1} more' if rest[1:] else ''},"
                " need those of a model of this config"
            )


def _new(name: str) -> str:
    for old, new in OLD.items():
        if name.endswith(f"LayerNorm{old}"):
            return name.removesuffix(old) + new
    return name


def tensors_in(folder: Path, where: str, mapped: bool = False) -> dict[str, Array]:
    """Returns the tensors of the model's weight files. Other weight files of the folder are ignored. mapped: see
    `read_tensors`."""
    if (folder / WEIGHTS).is_file() and not (folder / INDEX).exists():
        return read_tensors(open_next_to(folder, WEIGHTS, where), f"{where}/{WEIGHTS}", mapped)
    return read_weights(folder, mapped)


def json_object(folder: Path, name: str, where: str) -> dict[str, Any]:
    """Returns the JSON object in a file of a folder. Raises Error, with the prefix `where`, if the file contains no
    object."""
    fields = _json(folder, name, where)
    if not isinstance(fields, dict):
        raise Error(f"{where}: {name}: got {type(fields).__name__}, need an object")
    return fields


def _json(folder: Path, name: str, where: str) -> Any:
    inside = open_inside if "/" in name else open_next_to
    data = read_all(inside(folder, name, where), where)
    if len(data) > MOST_BYTES:
        raise Error(f"{where}: {name}: got {len(data)} bytes, need at most {MOST_BYTES}")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: {name}: {error}, need JSON") from None
