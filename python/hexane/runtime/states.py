"""Files of the states that models keep between calls: by name, in safetensors with a checksum.

Any reader of safetensors opens files of states. The metadata has the format's version as "hexane.states", and a
checksum as "xxh64": XXH64 of the header with 16 zeros in place of the checksum, then of each tensor's bytes in file
order. Each hash is the seed of the next hash.
"""

import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
from safetensors import SafetensorError, safe_open

from hexane import _core
from hexane.dtypes import dtype
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_regular
from hexane.importers.safetensors import dtype_name, read_tensors

VERSION = "1"
NO_SUM = b"0" * 16
PLAN = b"HEXANE\x1a\n"  # The first bytes of plans.
MAX_HEADER = 100_000_000  # In bytes: the limit of the safetensors package.
Path = str | os.PathLike[str]


def write_states(path: Path, states: Mapping[str, Array]) -> None:
    """Writes arrays by name into a file, atomically: the old file stays if that fails.

    Raises Error for a dtype that safetensors does not have, and if the file cannot be written.
    """
    entries: dict[str, object] = {"__metadata__": {"hexane.states": VERSION, "xxh64": NO_SUM.decode()}}
    arrays = {name: np.asarray(array, order="C") for name, array in states.items()}
    end = 0
    for name, array in arrays.items():
        kind = dtype_name(f"[save_states] state '{name}'", dtype(array.dtype))
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    pieces = [_bytes_of(array) for array in arrays.values()]
    total = f"{_checksum(text, pieces):016x}".encode()
    header = text.replace(NO_SUM, total, 1)
    _core.save_file(os.fspath(path), [len(header).to_bytes(8, "little"), header, *pieces])


def holds_states(descriptor: int) -> bool:
    """True if an open file begins like a file of states or a plan."""
    head = os.pread(descriptor, 256, 0)
    return head.startswith(PLAN) or b'"hexane.states"' in head


def read_states(path: Path, only: Sequence[str] | None = None) -> dict[str, Array]:
    """Returns the arrays of a file of states, read-only, by name. For a plan, returns the initial states of the loaded
    model.

    only: read these names, if they exist; the file's checksum is then not verified. Raises Error for a damaged file, or
    one of another kind.
    """
    where = f"[load_states] {os.fspath(path)}"
    descriptor = open_regular(path, where, "file of states")
    try:
        if os.pread(descriptor, len(PLAN), 0) == PLAN:
            return _of_plan(f"/dev/fd/{descriptor}", only, where)
        header, expected = _header(descriptor, where)
        if only is not None:
            return _some(descriptor, only, where)
        states = read_tensors(os.dup(descriptor), where)
    finally:
        os.close(descriptor)
    if _checksum(header, [_bytes_of(array) for array in states.values()]) != expected:
        raise Error(f"{where}: got bytes that do not fit the checksum, need an undamaged file")
    return states


def _of_plan(path: str, only: Sequence[str] | None, where: str) -> dict[str, Array]:
    try:
        core = _core.Program.load(path, 1)
    except Error as error:
        raise Error(f"{where}: {error}") from None
    return {name: core.read_state(name) for name in core.types("state") if only is None or name in only}


def _header(descriptor: int, where: str) -> tuple[bytes, int]:
    """Returns the header with zeros as its checksum, and the checksum."""
    size = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    text = os.pread(descriptor, min(size, MAX_HEADER), 8)
    try:
        header = json.loads(text)
        metadata = header["__metadata__"]
        version, total = metadata["hexane.states"], metadata["xxh64"]
        expected = int(total, 16)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Error(f"{where}: got a file of another kind, need one that save_states wrote") from None
    if version != VERSION:
        raise Error(f"{where}: version: got {version!r}, need {VERSION!r}")
    return text.replace(str(total).encode(), NO_SUM, 1), expected


def _some(descriptor: int, only: Sequence[str], where: str) -> dict[str, Array]:
    try:
        # Opened by descriptor: if the path is replaced meanwhile, this still reads the old file.
        with safe_open(f"/dev/fd/{descriptor}", framework="np") as file:
            names = {*file.keys()}
            return {name: file.get_tensor(name) for name in only if name in names}
    except (SafetensorError, OSError) as error:
        raise Error(f"{where}: {error}, need an undamaged file") from None


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _checksum(header: bytes, pieces: Sequence[Array]) -> int:
    total = _core.xxh64(header)
    for piece in pieces:
        total = _core.xxh64(piece, seed=total)
    return total
