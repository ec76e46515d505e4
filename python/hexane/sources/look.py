"""Looks at a given path or object before it is read: its type, its name, its first bytes, and the names in a folder or
a zip."""

import io
import os
import zipfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.files import open_regular

MOST_BYTES = 4096
MOST_NAMES = 10_000  # most names in a folder


@dataclass(frozen=True, slots=True)
class Seen:
    """Facts about a path or object before it is read. value: the given path or object. path: None for an object.
    function: the text after "#" in the path. start: the first bytes of a file or a bytes object; size: of all its
    bytes. names: of the files in a folder or a zip."""

    value: Any
    path: Path | None = None
    function: str | None = None
    is_folder: bool = False
    start: bytes = b""
    size: int = 0
    names: frozenset[str] = frozenset()

    @property
    def is_data(self) -> bool:
        """True for bytes in a file or in memory."""
        return isinstance(self.value, bytes) or (self.path is not None and not self.is_folder)

    @property
    def suffix(self) -> str:
        return "" if self.path is None else self.path.suffix.lower()

    @property
    def given(self) -> str:
        """The path as the caller gave it, "" for an object."""
        return os.fspath(self.value) if isinstance(self.value, (str, os.PathLike)) else ""

    @property
    def name(self) -> str:
        """The name in messages: the given path, or "model"."""
        return self.given or "model"

    def begins(self, *magics: bytes) -> bool:
        return self.start.startswith(magics)


def look(value: Any, where: str) -> Seen:
    """Looks at a path or object. Raises Error for a path that cannot be read, and for pipes and devices."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return Seen(data, start=data[:MOST_BYTES], size=len(data), names=_members(data, data[:MOST_BYTES]))
    if not isinstance(value, (str, os.PathLike)):
        return Seen(value)
    path, function = split_function(value)
    if path.is_dir():
        try:
            with os.scandir(path) as entries:
                names = frozenset(entry.name for entry in islice(entries, MOST_NAMES))
        except OSError as error:
            raise Error(f"[{where}] {path}: {error.strerror}, need a readable model") from None
        return Seen(value, path, function, is_folder=True, names=names)
    with os.fdopen(open_regular(path, f"[{where}] {path}", "model"), "rb") as file:
        start, size = file.read(MOST_BYTES), os.fstat(file.fileno()).st_size
    return Seen(value, path, function, start=start, size=size, names=_members(path, start))


def split_function(model: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """The path and the name of a function: "net.aimodel#decode" gives ("net.aimodel", "decode")."""
    text = os.fspath(model)
    folder, _, function = text.rpartition("#")
    if not (folder and function) or Path(text).exists():
        return Path(text), None
    is_asset = (
        folder.lower().endswith((".aimodel", ".mlpackage", ".mlmodelc", ".tflite", ".hxp")) or Path(folder).is_dir()
    )
    return (Path(folder), function) if is_asset else (Path(text), None)


def _members(data: Path | bytes, start: bytes) -> frozenset[str]:
    """The names in a zip; none for other data, and for a damaged zip."""
    if not start.startswith(b"PK\x03\x04"):
        return frozenset()
    try:
        with zipfile.ZipFile(io.BytesIO(data) if isinstance(data, bytes) else data) as archive:
            return frozenset(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return frozenset()
