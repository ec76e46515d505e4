"""What compilers have made, kept from process to process: named files under a key, in one folder of the user's.

An entry is one file of that folder, KEY.kept:

    "HXKEPT01" | SHA-256 of all that follows | u64 bytes of the header | header: JSON [[name, bytes], ..] | the files

It is written beside its place, synced and renamed to it, so who reads finds all of an entry or none, and several
processes may do both at once. What a killed process leaves is removed by the next who writes.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import platformdirs

from hexane import _core
from hexane.errors import Error

VARIABLE = "HEXANE_CACHE_DIR"
OFF = "off"
MAGIC = b"HXKEPT01"
LIMIT = 2 << 30
_HEAD = len(MAGIC) + sha256().digest_size + 8


@dataclass(frozen=True, slots=True)
class Cache:
    """The entries of a folder, which is made when the first is written. limit: the most bytes that they take; where
    another needs room, those go that were not used for longest. Raises Error for what is no folder, and no number of
    bytes."""

    folder: Path
    limit: int

    def __init__(self, folder: str | os.PathLike[str], limit: int = LIMIT) -> None:
        if not isinstance(folder, (str, os.PathLike)) or (Path(folder).exists() and not Path(folder).is_dir()):
            raise Error(f"[cache] got {folder!r}, need a folder")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise Error(f"[cache] limit: got {limit!r}, need a number of bytes")
        object.__setattr__(self, "folder", Path(folder))
        object.__setattr__(self, "limit", limit)

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files of an entry, or None where there is none. One that is damaged is removed."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                entry = file.read(self.limit + 1)
        except OSError:
            return None
        files = _files(entry)
        with suppress(OSError):  # what cannot be written to can be read
            path.unlink() if files is None else os.utime(path)
        return files

    def put(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Keeps the files, in the place of what the key had. False where there is no room, or the folder cannot be
        written to."""
        header = json.dumps([[name, len(data)] for name, data in files.items()]).encode()
        rest = b"".join((len(header).to_bytes(8, "little"), header, *files.values()))
        entry = MAGIC + sha256(rest).digest() + rest
        if len(entry) > self.limit:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room(len(entry))
            _core.save_file(os.fspath(self._path(key)), entry)
        except (OSError, Error):
            return False
        return True

    def remove(self, key: str) -> None:
        """Removes an entry, if it is there."""
        self._path(key).unlink(missing_ok=True)

    def clear(self) -> int:
        """Removes all entries. Returns how many there were. Raises Error for one that cannot be removed."""
        self._sweep()
        count = 0
        for _, _, path in self.entries():
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Error(f"[cache] {path}: {error.strerror}, need a folder that can be written to") from None
            count += 1
        return count

    def entries(self) -> list[tuple[int, int, Path]]:
        """When each entry was last used (ns), its bytes and its file, the one longest unused first."""
        return sorted(self._files("*.kept"))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.kept"

    def _files(self, pattern: str) -> Iterator[tuple[int, int, Path]]:
        for path in self.folder.glob(pattern):
            try:
                status = path.lstat()
            except OSError:  # another process was faster
                continue
            yield status.st_mtime_ns, status.st_size, path

    def _make_room(self, size: int) -> None:
        self._sweep()
        entries = self.entries()
        total = size + sum(taken for _, taken, _ in entries)
        for _, taken, path in entries:
            if total <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= taken

    def _sweep(self) -> None:
        """Removes what killed processes were writing: who still writes holds a lock on it."""
        for _, _, path in self._files("*.part"):
            try:
                opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except OSError:
                pass
            finally:
                os.close(opened)


def cache_key(*parts: str | bytes) -> str:
    """The key of what was made of these parts."""
    digest = sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def find_cache(given: "Cache | str | os.PathLike[str] | bool | None" = None) -> Cache | None:
    """The cache that is asked for: None or True for the one of HEXANE_CACHE_DIR, else of the user's folder for such
    files; False for none. Raises Error for what is no folder."""
    if given is False:
        return None
    if isinstance(given, Cache):
        return given
    if given is None or given is True:
        named = os.environ.get(VARIABLE, "")
        if named == OFF:
            return None
        return Cache(Path(named).expanduser() if named else platformdirs.user_cache_path("hexane", appauthor=False))
    return Cache(given)


def _files(entry: bytes) -> dict[str, bytes] | None:
    """The files of an entry; None for a damaged one."""
    rest = memoryview(entry)[_HEAD - 8 :]
    if len(entry) < _HEAD or entry[: len(MAGIC)] != MAGIC or sha256(rest).digest() != entry[len(MAGIC) : _HEAD - 8]:
        return None
    at = _HEAD + int.from_bytes(rest[:8], "little")
    files = {}
    for name, size in json.loads(entry[_HEAD:at]):
        files[name] = entry[at : at + size]
        at += size
    return files
