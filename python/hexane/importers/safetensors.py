"""Reads weights from safetensors: `load_weights` for a file, a folder of shards, or an index of shards.

Files are untrusted. The safetensors package checks the header. The tensors are read into arrays of their own, or stay
in the mapped file.
"""

import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hexane._core import FileMapping
from hexane.dtypes import DTYPES, DType
from hexane.errors import Error
from hexane.graph import Array, tensor_type
from hexane.importers.files import check_memory, open_inside, open_regular

# safetensors' names of the dtypes.
_NAMES = {
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "F8_E4M3": "fp8e4m3",
    "F8_E5M2": "fp8e5m2",
    "F16": "fp16",
    "BF16": "bf16",
    "F32": "fp32",
    "F64": "fp64",
}
ALIGNMENT = 64
MAPPED_ALIGNMENT = 8  # bytes; no element of a weight is larger
_INDEX = ".safetensors.index.json"
_MAX_INDEX_BYTES = 100_000_000  # the safetensors package's limit of a header


def load_weights(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Returns the tensors of a .safetensors file, of a folder of .safetensors files, or of the shards in a
    *.safetensors.index.json, by name.

    The arrays are read-only. Files are read, not mapped: later changes to a file would change mapped weights, or end
    the process. Each array owns its memory. bf16 and fp8 arrays have the dtypes of ml_dtypes. A folder is read by its
    index if it has one. A shard must be a file inside the folder. Only a Hugging Face cache may have links, to its
    blobs. Raises Error for missing, damaged or duplicate weights.
    """
    return read_weights(Path(path), mapped=False)


def read_weights(path: Path, mapped: bool) -> dict[str, Array]:
    """Like `load_weights`. mapped: the tensors stay in the files; see `read_tensors`."""
    if path.is_dir():
        return _folder(path, mapped)
    if path.name.endswith(_INDEX):
        return _indexed(path, _open(path), mapped)
    return read_tensors(_open(path), f"[load_weights] {path}", mapped)


def _folder(folder: Path, mapped: bool) -> dict[str, Array]:
    try:
        files = sorted(os.listdir(folder))
    except OSError as error:
        raise Error(f"[load_weights] {folder}: {error.strerror}, need a readable folder") from None
    indices = [name for name in files if name.endswith(_INDEX)]
    if len(indices) > 1:
        raise Error(f"[load_weights] {folder}: got the indices {', '.join(indices)}, need the path of one")
    if indices:
        return _indexed(folder / indices[0], _open_shard(folder, indices[0]), mapped)
    shards = [name for name in files if name.endswith(".safetensors")]
    if not shards:
        raise Error(f"[load_weights] {folder}: got a folder without .safetensors files, need at least one")
    weights: dict[str, Array] = {}
    for name in shards:
        tensors = read_tensors(_open_shard(folder, name), f"[load_weights] {folder / name}", mapped)
        if twice := sorted(weights.keys() & tensors.keys()):
            raise Error(f"[load_weights] {folder / name}: got tensor {twice[0]!r} of another file, need distinct names")
        weights |= tensors
    return weights


def _indexed(path: Path, descriptor: int, mapped: bool) -> dict[str, Array]:
    """Returns the tensors that the index lists, in its order. Raises Error if index and shards disagree."""
    shard_of = _read_index(path, descriptor)
    weights: dict[str, Array] = {}
    for shard in dict.fromkeys(shard_of.values()):
        where = f"[load_weights] {path.parent / shard}"
        tensors = read_tensors(_open_shard(path.parent, shard), where, mapped)
        listed = {name for name, file in shard_of.items() if file == shard}
        for name in sorted(listed ^ tensors.keys()):
            verb = "does not hold" if name in listed else "holds, unlike the index says,"
            raise Error(f"{where}: {verb} tensor {name!r}, need what {path.name} lists")
        weights |= tensors
    return {name: weights[name] for name in shard_of}


def _read_index(path: Path, descriptor: int) -> dict[str, str]:
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_MAX_INDEX_BYTES + 1)
    if len(data) > _MAX_INDEX_BYTES:
        raise Error(f"[load_weights] {path}: got more than {_MAX_INDEX_BYTES} bytes, need an index of shards")
    try:
        index = json.loads(data, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise Error(f"[load_weights] {path}: {error}, need JSON") from None
    shard_of = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shard_of, dict) or not shard_of or not all(isinstance(v, str) for v in shard_of.values()):
        raise Error(
            f"[load_weights] {path}: got no table of files, need a 'weight_map' from tensor names to file names"
        )
    return shard_of


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("got a key twice in one object")
    return table


def _open(path: Path) -> int:
    return open_regular(path, f"[load_weights] {path}", "safetensors file")


def _open_shard(folder: Path, name: str) -> int:
    return open_inside(folder, name, f"[load_weights] {folder}")


def read_tensors(descriptor: int, where: str, mapped: bool = False) -> dict[str, Array]:
    """Closes an open file and returns its tensors, in the file's order: read-only arrays. `where` starts the message of
    an Error.

    Each array owns its memory. mapped: arrays that are aligned in the file stay in it (`FileMapping.of`), if its file
    system can map files. Nobody may write to a mapped file as long as the arrays are used.
    """
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        try:
            # The descriptor ensures that the checked file is the one read below.
            with safe_open(f"/dev/fd/{file.fileno()}", framework="np") as header:
                names = header.offset_keys()
                kinds = [header.get_slice(name) for name in names]
                types = [(kind.get_dtype(), tuple(kind.get_shape())) for kind in kinds]
        except (SafetensorError, OSError) as error:
            raise Error(f"{where}: {error}, need a safetensors file") from None
        size = os.fstat(file.fileno()).st_size
        mapping = FileMapping.map(file.fileno(), where) if mapped else None
        if mapping is None:
            check_memory(where, size)
        # The file has the header's length, the header, then the tensors without gaps in the order of their offsets.
        at = 8 + int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
        weights = {}
        for name, (type_name, shape) in zip(names, types, strict=True):
            try:
                kind = tensor_type(_dtype(type_name), shape)
                stays = mapping is not None and at % MAPPED_ALIGNMENT == 0
                raw = mapping.part(at, kind.bytes) if mapping and stays else _read(file, at, kind.bytes)
                if kind.dtype.kind == "bool" and raw.size and raw.max() > 1:
                    raise Error(f"got the byte {raw.max()}, need 0 or 1 for bool")
                weights[name] = raw.view(kind.dtype.numpy).reshape(shape)
            except Error as error:
                raise Error(f"{where}: tensor {name!r}: {error}") from None
            at += kind.bytes
    return weights


def _read(file: FileIO, at: int, size: int) -> NDArray[np.uint8]:
    """Reads bytes into an aligned array, which kernels can use in place."""
    room = np.empty(size + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    raw, count_read = room[begin : begin + size], 0
    file.seek(at)
    while count_read < size and (count := file.readinto(raw[count_read:].data)):
        count_read += count
    if count_read != size:
        raise Error(f"got {count_read} bytes, need {size}")
    raw.flags.writeable = False
    return raw


def _dtype(name: str) -> DType:
    if name not in _NAMES:
        raise Error(f"got the dtype {name}, need one of {', '.join(_NAMES)}")
    return DTYPES[_NAMES[name]]


def dtype_name(where: str, kind: DType) -> str:
    """Returns safetensors' name of a dtype. Raises Error, with the prefix `where`, if there is none."""
    for name, ours in _NAMES.items():
        if DTYPES[ours] is kind:
            return name
    raise Error(f"{where}: got the dtype {kind}, need one of {', '.join(_NAMES.values())}")
