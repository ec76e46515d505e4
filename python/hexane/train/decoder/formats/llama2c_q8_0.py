"""Files of llama2.c, version 2: matrices and embedding in int8 with a scale for each group of numbers (q8_0).

    magic 0x616b3432, version 2, the 7 integers and the byte of version 1, group size (32 bits), zeros up to byte 256
    rms_att, rms_ffn, the last norm in fp32; then embedding, wq wk wv wo w1 w2 w3, the head if not tied, each as
    its integers, then its scales in fp32: weight = integer * scale

Source: llama2.c's export.py and runq.c.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from struct import pack

import numpy as np

from hexane._core import save_file
from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.formats.binary import BinaryFile, opened
from hexane.train.decoder.formats.llama2c import (
    HEADER,
    SIZES,
    checked_config,
    flag_of_head,
    header,
    order_of_v1,
    parameter_count,
    prepared,
    sizes_at,
    sizes_text,
    starts_with,
)
from hexane.train.decoder.formats.model_file import Format

GROUP = 64  # numbers in a group; halved until it divides dim and hidden
LARGEST = 127


def _read(path: Path) -> tuple[LlamaConfig, dict[str, Array]]:
    with opened(path, f"[train.load_llama] {path}", "model file") as file:
        config = checked_config(file, sizes_at(file, 8), flag_of_head(file))
        (group,) = file.integers(9 + 4 * len(SIZES), 1, "group size")
        if group < 1 or config.dim % group:
            raise Error(f"{file.where}: group size: got {group}, need a divisor of dim {config.dim}")
        norms = config.dim * (2 * config.layers + 1)
        products = parameter_count(config) - norms
        need = HEADER + 4 * norms + products + 4 * (products // group)
        file.check_size(need, f"{sizes_text(config)}, groups of {group}")
        shapes, weights, offset = config.shapes(), {}, HEADER
        for name in order_of_v1(config):
            if len(shapes[name]) == 1:
                weights[name] = file.array(offset, shapes[name], "<f4", name)
                offset += 4 * prod(shapes[name])
            else:
                weights[name], offset = _product(file, name, shapes[name], group, offset)
    return config, weights


def _product(file: BinaryFile, name: str, shape: tuple[int, ...], group: int, offset: int) -> tuple[Array, int]:
    groups = prod(shape) // group
    integers = file.array(offset, (groups, group), "|i1", name)
    scales = file.array(offset + groups * group, (groups, 1), "<f4", name)
    return (integers * scales).reshape(shape), offset + groups * group + 4 * groups


def _write(path: Path, config: LlamaConfig, weights: Mapping[str, Array]) -> None:
    config, weights = prepared(path, config, weights, 2)
    group = GROUP
    while config.dim % group or config.hidden % group:
        group //= 2
    pieces: list[bytes | Array] = [header(config, 2, pack("<i", group))]
    for name in order_of_v1(config):
        if weights[name].ndim == 1:
            pieces.append(weights[name])
        else:
            if not np.isfinite(weights[name]).all():
                raise Error(f"[train.save_llama] {path}: {name}: got numbers that are not finite, need finite ones")
            pieces += quantised(weights[name].reshape(-1, group))
    save_file(str(path), pieces)


def quantised(groups: Array) -> list[Array]:
    """Returns int8 integers and fp32 scales (rows,) of numbers (rows, group): scale = largest magnitude / 127, and
    integers rounded to nearest. Rows decoded from such integers, of which one is 127 or -127, get integers and scale
    back: the scale and its two neighbouring fp32 numbers are tried, and the first that reproduces the row is kept."""
    largest = np.abs(groups).max(axis=1)
    scales = (largest / np.float32(LARGEST)).astype(np.float32)
    integers = _integers(groups, scales)
    others = np.flatnonzero((integers * scales[:, None] != groups).any(axis=1))
    for direction in (np.float32(0), np.float32(np.inf)):
        near = np.nextafter(scales[others], direction)
        rounded = _integers(groups[others], near)
        same = (rounded * near[:, None] == groups[others]).all(axis=1)
        rows = others[same]
        scales[rows], integers[rows] = near[same], rounded[same]
        others = others[~same]
    return [integers, scales.astype("<f4")]


def _integers(groups: Array, scales: Array) -> Array:
    safe = np.where(scales > 0, scales, np.float32(1))[:, None]
    return np.clip(np.rint(groups / safe), -LARGEST, LARGEST).astype(np.int8)


V2 = Format("llama2.c-q8_0", "llama2.c's quantised files, int8 in groups", starts_with(2), _read, _write)
