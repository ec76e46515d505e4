"""Calibration inputs: those a program has, and those in .npz files, of which one at a time is in memory."""

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import check_memory, open_regular
from hexane.importers.signature import Input, Signature

SUFFIX = ".npz"


def check_feeds(feeds: Iterable[Mapping[str, Any]], signature: Signature) -> list[dict[str, Array]]:
    """The feeds as arrays. Raises Error for names, dtypes and shapes that the model does not have."""
    return [_checked(feed, signature, f"[quantize] calibration input {index}") for index, feed in enumerate(feeds)]


@dataclass(frozen=True, slots=True)
class FeedFiles:
    """The inputs in .npz files: an .npz, or a folder of them. Each array is an input, or, with an axis more in front or
    along a first axis that the model has as 1, several. `command`: what errors name."""

    path: Path
    signature: Signature
    command: str = "quantize"

    def __post_init__(self) -> None:
        self.files  # noqa: B018  raises Error

    @property
    def files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        found = sorted(p for p in self.path.iterdir() if p.suffix.lower() == SUFFIX)
        if not found:
            raise Error(f"{self._where(self.path)}: got a folder without {SUFFIX} files, need at least one")
        return found

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for path in self.files:
            where = self._where(path)
            arrays = _read(path, where)
            _check_names(arrays, self.signature, where)
            for index, feed in enumerate(_split(arrays, self.signature, where)):
                yield _checked(feed, self.signature, f"{where}, input {index}")

    def _where(self, path: Path) -> str:
        return f"[{self.command}] calibration {path}"


def _read(path: Path, where: str) -> dict[str, Array]:
    with os.fdopen(open_regular(path, where, f"{SUFFIX} file"), "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                check_memory(where, sum(info.file_size for info in archive.infolist()))
                found = {}
                for name in archive.namelist():
                    with archive.open(name) as member:
                        found[name.removesuffix(".npy")] = np.asarray(
                            np.lib.format.read_array(member, allow_pickle=False)
                        )
                return found
        except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
            said = "it holds Python objects, which are not loaded" if "allow_pickle" in str(error) else str(error)
            raise Error(f"{where} is no {SUFFIX} file of numbers: {said}") from None


def _check_names(arrays: Mapping[str, Any], signature: Signature, where: str) -> None:
    need = [entry.name for entry in signature.inputs]
    known = {*need, *(entry.name for entry in signature.optional)}
    if not set(need) <= arrays.keys() <= known:
        got = ", ".join(arrays) or "none"
        raise Error(f"{where}: got the arrays {got}, need {', '.join(need)}")


def _split(arrays: Mapping[str, Array], signature: Signature, where: str) -> Iterator[dict[str, Array]]:
    entries = {entry.name: entry for entry in (*signature.inputs, *signature.optional)}
    counts = {name: _count(array, entries[name]) for name, array in arrays.items()}
    number = max((n for n in counts.values() if n is not None), default=None)
    if number is None:
        yield dict(arrays)
        return
    if wrong := [name for name, n in counts.items() if n != number]:
        got = counts[wrong[0]] or 1
        raise Error(f"{where}: got {got} of input {wrong[0]!r}, need {number} as of the others")
    for index in range(number):
        yield {n: a[index] if a.ndim > len(entries[n].dims or ()) else a[index : index + 1] for n, a in arrays.items()}


def _count(array: Array, entry: Input) -> int | None:
    """How many inputs the array holds; None where it is one."""
    if entry.dims is None:
        return None
    if array.ndim == len(entry.dims) + 1:
        return len(array)
    alike = array.ndim == len(entry.dims) and entry.dims and entry.dims[0] == 1
    return len(array) if alike and len(array) != 1 else None


def _checked(feed: Mapping[str, Any], signature: Signature, where: str) -> dict[str, Array]:
    _check_names(feed, signature, where)
    entries = {entry.name: entry for entry in (*signature.inputs, *signature.optional)}
    found = {name: np.asarray(array) for name, array in feed.items()}
    for name, array in found.items():
        entry = entries[name]
        if array.dtype != entry.dtype.numpy or not _fits(array.shape, entry.dims):
            dims = "any shape" if entry.dims is None else [d if isinstance(d, int) else d or "?" for d in entry.dims]
            raise Error(
                f"{where}: got {array.dtype}{list(array.shape)} for {name!r},"
                f" need {np.dtype(entry.dtype.numpy)}{_dims(dims)}"
            )
    return found


def _dims(dims: Any) -> str:
    return f" of {dims}" if isinstance(dims, str) else f"[{', '.join(map(str, dims))}]"


def _fits(shape: Sequence[int], dims: Sequence[Any] | None) -> bool:
    if dims is None:
        return True
    return len(shape) == len(dims) and all(not isinstance(n, int) or d == n for d, n in zip(shape, dims, strict=True))
