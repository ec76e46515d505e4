"""Files of llama2.c in fp32: version 0, without a magic number, and version 1.

    v0  7 integers of 32 bits: dim, hidden, layers, heads, kv_heads, vocab (negative: the head is not tied), seq
        embedding, then each weight for all layers: rms_att wq wk wv wo rms_ffn w1 w2 w3; the last norm;
        cosines and sines of the rotary angles (seq, head_dim / 2), which no reader uses; the head if not tied
    v1  magic 0x616b3432, version, the same 7 integers, a byte (1: the head is the embedding), zeros up to byte 256
        rms_att, rms_ffn, the last norm, embedding, wq wk wv wo w1 w2 w3, the head if not tied

Source: llama2.c's export.py and run.c.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from struct import pack

from hexane._core import save_file
from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder.config import EMBEDDING, HEAD, NORM, LlamaConfig, layer
from hexane.train.decoder.formats.binary import BinaryFile, opened
from hexane.train.decoder.formats.model_file import LAYER, Format, check_parameters, config_of, little_endian
from hexane.train.decoder.rotary import rotary_angles, with_rope

MAGIC = 0x616B3432
HEADER = 256  # bytes of versions 1 and 2
PRODUCTS = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
SIZES = ("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "seq")
FIXED = {"theta": 10000.0, "epsilon": 1e-5, "residual": 1.0}  # constants of run.c, which files do not store


def sizes_at(file: BinaryFile, offset: int) -> dict[str, int]:
    """Returns the 7 integers of the header, by the names of LlamaConfig."""
    return dict(zip(SIZES, file.integers(offset, len(SIZES), "sizes"), strict=True))


def checked_config(file: BinaryFile, sizes: Mapping[str, int], tied: bool) -> LlamaConfig:
    """Returns the config. Raises Error for sizes below 1, or that contradict each other."""
    for name, value in sizes.items():
        if value < 1:
            raise Error(f"{file.where}: {name}: got {value}, need at least 1")
    return config_of(file.where, **sizes, tied=tied, rope="interleaved")


def parameter_count(config: LlamaConfig) -> int:
    """Returns the number of weights without listing them: a damaged file may claim billions of layers."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    of_layer = config.dim * (2 + 2 * queries + 2 * keys + 3 * config.hidden)
    return config.layers * of_layer + config.dim + config.vocab * config.dim * (1 if config.tied else 2)


def sizes_text(config: LlamaConfig) -> str:
    """Returns the sizes as text, for errors about a file's length."""
    return "its sizes, " + ", ".join(f"{name} {getattr(config, name)}" for name in SIZES)


def for_all_layers(config: LlamaConfig, names: Sequence[str]) -> Iterator[str]:
    """Yields full names of weights: the first weight of all layers, then the second of all layers, and so on."""
    for name in names:
        for i in range(config.layers):
            yield layer(i, LAYER[name])


def order_of_v1(config: LlamaConfig) -> list[str]:
    norms = [*for_all_layers(config, ("rms_att", "rms_ffn")), NORM]
    return [*norms, EMBEDDING, *for_all_layers(config, PRODUCTS), *([] if config.tied else [HEAD])]


def prepared(
    path: Path, config: LlamaConfig, weights: Mapping[str, Array], version: int
) -> tuple[LlamaConfig, dict[str, Array]]:
    """Returns the model as written: neighbouring channels are rotated together. Raises Error for models that run.c
    cannot compute."""
    check_config(f"[train.save_llama] {path}", config, version)
    config, weights = with_rope(config, little_endian(config, weights), "interleaved")
    return config, little_endian(config, weights)


def check_config(where: str, config: LlamaConfig, version: int) -> None:
    """Raises Error, beginning with `where`, if run.c cannot compute the model."""
    check_parameters(where, config, FIXED)
    if config.heads * config.head_dim != config.dim:
        raise Error(
            f"{where}: head_dim: got {config.head_dim} for {config.heads} heads, need dim {config.dim} divided by heads"
        )
    if config.rope == "none":
        raise Error(f"{where}: rope: got 'none', need a model with rotary positions: llama2.c's have them")
    if version == 0 and config.vocab == 1 and not config.tied:
        raise Error(f"{where}: vocab: got 1, need at least 2")


def header(config: LlamaConfig, version: int, *extra: bytes) -> bytes:
    """Returns the 256-byte header of versions 1 and 2."""
    sizes = pack("<7i", *(getattr(config, name) for name in SIZES))
    return b"".join([pack("<Ii", MAGIC, version), sizes, bytes([config.tied]), *extra]).ljust(HEADER, b"\0")


def starts_with(version: int) -> Callable[[Path, bytes], bool]:
    """Returns a predicate for files that begin with the magic number and this version."""
    return lambda path, head: head[:8] == pack("<Ii", MAGIC, version)


def _read_v0(path: Path) -> tuple[LlamaConfig, dict[str, Array]]:
    with opened(path, f"[train.load_llama] {path}", "model file") as file:
        sizes = sizes_at(file, 0)
        tied = sizes["vocab"] > 0
        config = checked_config(file, {**sizes, "vocab": abs(sizes["vocab"])}, tied)
        angles = config.seq * config.head_dim
        file.check_size(4 * (len(SIZES) + parameter_count(config) + angles), sizes_text(config))
        order = [EMBEDDING, *for_all_layers(config, tuple(LAYER)), NORM]
        weights, end = _arrays(file, config, order, 4 * len(SIZES))
        if not tied:
            weights |= _arrays(file, config, [HEAD], end + 4 * angles)[0]
    return config, weights


def _read_v1(path: Path) -> tuple[LlamaConfig, dict[str, Array]]:
    with opened(path, f"[train.load_llama] {path}", "model file") as file:
        config = checked_config(file, sizes_at(file, 8), flag_of_head(file))
        file.check_size(HEADER + 4 * parameter_count(config), sizes_text(config))
        weights, _ = _arrays(file, config, order_of_v1(config), HEADER)
    return config, weights


def flag_of_head(file: BinaryFile) -> bool:
    """True if the head is the embedding, by the flag of versions 1 and 2."""
    flag = file.bytes(8 + 4 * len(SIZES), 1, "flag of the head")[0]
    if flag > 1:
        raise Error(f"{file.where}: flag of the head: got {flag}, need 0 or 1")
    return bool(flag)


def _arrays(file: BinaryFile, config: LlamaConfig, order: Sequence[str], offset: int) -> tuple[dict[str, Array], int]:
    """Returns the arrays that lie one after the other from the offset on, and the offset of their end."""
    shapes, arrays = config.shapes(), {}
    for name in order:
        arrays[name] = file.array(offset, shapes[name], "<f4", name)
        offset += 4 * prod(shapes[name])
    return arrays, offset


def _write_v0(path: Path, config: LlamaConfig, weights: Mapping[str, Array]) -> None:
    config, weights = prepared(path, config, weights, 0)
    sizes = [config.vocab * (1 if config.tied else -1) if n == "vocab" else getattr(config, n) for n in SIZES]
    order = [EMBEDDING, *for_all_layers(config, tuple(LAYER)), NORM]
    angles = [array.astype("<f4") for array in rotary_angles(config)]
    head = [] if config.tied else [weights[HEAD]]
    save_file(str(path), [pack("<7i", *sizes), *(weights[name] for name in order), *angles, *head])


def _write_v1(path: Path, config: LlamaConfig, weights: Mapping[str, Array]) -> None:
    config, weights = prepared(path, config, weights, 1)
    save_file(str(path), [header(config, 1), *(weights[name] for name in order_of_v1(config))])


V0 = Format("llama2.c-v0", "llama2.c's first files, in fp32", lambda path, head: False, _read_v0, _write_v0)
V1 = Format("llama2.c-v1", "llama2.c's files with a header, in fp32", starts_with(1), _read_v1, _write_v1)
