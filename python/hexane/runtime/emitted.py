"""Writes emitted programs to files, so that an interruption leaves each text with its own weights, and all programs of
a folder from one model.

Nothing is synced to the disk. After a power loss within seconds a file may be truncated: readers refuse it, and
emitting again repairs it. The end of the process alone never truncates a file.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hexane import _core
from hexane.emit.mil import Mil
from hexane.emit.mil.write import WEIGHTS
from hexane.emit.parent import check_parent
from hexane.errors import Error
from hexane.importers.mil import MODEL_PATH
from hexane.netplist import Netplist, write_plist
from hexane.netplist.plist import WEIGHTS as NETPLIST_WEIGHTS

FolderPath = str | os.PathLike[str]


class _Files(NamedTuple):
    """A program: the name of the text's file, a function from the name of the weights' file to the text, the name of
    the weights' file, and the weights."""

    name: str
    text: Callable[[str], bytes]
    weights_name: str
    weights: bytes | _core.WeightFile


def _files_of(program: Mil | Netplist) -> _Files:
    if isinstance(program, Netplist):
        return _Files("net.plist", partial(write_plist, program), NETPLIST_WEIGHTS, program.weights)
    mil = program

    def text(weights: str) -> bytes:
        return mil.text.replace(f'"{MODEL_PATH}{WEIGHTS}"', f'"{MODEL_PATH}{weights}"').encode()

    return _Files("model.mil", text, WEIGHTS, mil.weight_file)


def save_mil(mil: Mil, folder: FolderPath) -> Path:
    """Writes folder/model.mil and its weights, and returns the path of the text. Raises Error if a file cannot be
    written.

    After any failure, also the end of the process, the text in the folder still has its own weights.
    """
    return _save(Path(folder), _files_of(mil))


def save_mil_as(mil: Mil, path: FolderPath) -> Path:
    """Writes the text to the path and its weights to weights/NAME.bin next to it, as `save_mil` does. Raises Error if
    the path's folder does not exist."""
    path = Path(path)
    check_parent(path)
    name = weights_beside(path).relative_to(path.parent).as_posix()
    return _save(path.parent, _files_of(mil)._replace(name=path.name, weights_name=name))


def weights_beside(path: FolderPath) -> Path:
    """Returns the path of the weights of a program in MIL that `save_mil_as` writes to `path`."""
    path = Path(path)
    return path.parent / Path(WEIGHTS).parent / f"{path.stem}.bin"


def save_netplist(net: Netplist, folder: FolderPath) -> Path:
    """Writes folder/net.plist and its weights.0, as `save_mil` does. Returns the path of the property list."""
    return _save(Path(folder), _files_of(net))


def _save(folder: Path, files: _Files) -> Path:
    """Writes weights, and the text that names them. An existing text keeps its own weights until the new text replaces
    it:

    model.mil (old)        weights.bin (old)
    model.mil (old)        weights.bin (old)   .next.weights.bin (new)
    model.mil (new, next)  weights.bin (old)   .next.weights.bin (new)
    model.mil (new, next)  weights.bin (new)   .next.weights.bin (new)
    model.mil (new)        weights.bin (new)
    """
    name, text, weights_name, weights = files
    path, weights_path = folder / name, folder / weights_name
    next_name = (Path(weights_name).parent / f".next.{weights_path.name}").as_posix()
    needed = weights_path.parent if weights else folder
    with _folder_errors(needed):
        needed.mkdir(parents=True, exist_ok=True)
        if weights and not _core.file_has(os.fspath(weights_path), weights):
            old = path.read_bytes() if path.is_file() else b""
            named = weights_name.encode() in old and next_name.encode() not in old
            if named and weights_path.is_file():
                _core.save_file(os.fspath(folder / next_name), weights, sync=False)
                _core.save_file(os.fspath(path), text(next_name), sync=False)
            _core.save_file(os.fspath(weights_path), weights, sync=False)
        _core.save_file(os.fspath(path), text(weights_name), sync=False)
        (folder / next_name).unlink(missing_ok=True)
    return path


def save_programs(programs: Mapping[int, Mil | Netplist], folder: FolderPath) -> dict[int, Path]:
    """Writes each program into `folder`/segment_N, where N is its number, and returns the paths of the texts. Programs
    are all MIL, or all netplists.

    The programs are written into a temporary folder, which then replaces `folder` in one step: the folder never mixes
    programs of two models. Files that are no programs are kept. Concurrent calls for one folder wait for
    each other. Raises Error if writing fails, and for a folder that cannot be replaced: the working folder, or a mount
    point.
    """
    files = {f"segment_{number}": _files_of(program) for number, program in programs.items()}
    path = Path(folder).resolve()
    if Path.cwd().is_relative_to(path):
        raise Error(f"[emit] {folder}: got the working folder, which several programs replace as a whole, need another")
    own = {name for f in files.values() for name in (f.name, f.weights_name)}
    aside = path.with_name(f"{path.name}.{next(iter(files.values())).name}.part")
    with _folder_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):
            _clear(aside, path, own)
            try:
                for name, program in files.items():
                    _save(aside / name, program)
                _put_in_place(aside, path)
            finally:
                _clear(aside, path, own)
    return {number: path / f"segment_{number}" / files[f"segment_{number}"].name for number in programs}


def _put_in_place(aside: Path, path: Path) -> None:
    for new in (aside, *sorted(aside.rglob("*"))) if path.exists() else ():
        old = path / new.relative_to(aside)
        if old.exists() and old.is_dir() != new.is_dir():
            kind = "a folder" if old.is_dir() else "a file"
            raise Error(f"[emit] {old}: got {kind} in the place of the programs, need another folder")
        if old.exists():
            shutil.copymode(old, new)
    try:
        aside.rename(path)  # succeeds if the path is free, or an empty folder
    except OSError:
        if not _core.exchange_folders(os.fspath(aside), os.fspath(path)):
            raise Error(f"[emit] {path}: got a folder that cannot be replaced as a whole, need another") from None


def _clear(aside: Path, path: Path, own: set[str]) -> None:
    """Removes unfinished or replaced programs in the temporary folder. All other files in that folder are moved to the
    new one."""
    if aside.is_dir() and path.is_dir():
        _move_others(aside, path, own)
    if aside.exists():
        shutil.rmtree(aside)


def _move_others(aside: Path, path: Path, own: set[str]) -> None:
    def move(old: Path) -> None:
        inside = old.relative_to(aside)
        new = path / inside
        if old.is_dir() and not old.is_symlink() and (new.is_dir() or _SEGMENT.fullmatch(inside.parts[0])):
            for part in list(old.iterdir()):
                move(part)
        elif not os.path.lexists(new) and not _is_own(inside, own):
            new.parent.mkdir(parents=True, exist_ok=True)
            old.rename(new)

    for part in list(aside.iterdir()):
        move(part)


_SEGMENT = re.compile(r"segment_\d+")


def _is_own(path: Path, own: set[str]) -> bool:
    """True for the path of a program's file, or of a temporary file of an interrupted write."""
    if not _SEGMENT.fullmatch(path.parts[0]):
        return False
    name = path.name.removeprefix(".next.").removesuffix(".part")
    return Path(*path.parts[1:-1], name).as_posix() in own


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Waits until no other process emits into the folder. On file systems without locks, nothing waits."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _folder_errors(needed: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Error(
            f"[emit] {error.filename or needed}: {error.strerror}, need a folder that can be written to"
        ) from None
