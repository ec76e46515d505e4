"""Opens regular files only. Names from an untrusted file may not lead out of its folder."""

import os
import stat
from pathlib import Path, PurePosixPath

import numpy as np

from hexane.errors import Error


def read_all(descriptor: int, where: str) -> bytes:
    """Returns the bytes of an open file, and closes it. Raises Error if the file is larger than the machine's
    memory."""
    with os.fdopen(descriptor, "rb") as file:
        check_memory(where, os.fstat(descriptor).st_size)
        return file.read()


def read_view(descriptor: int, where: str) -> memoryview:
    """Like read_all, but returns a read-only view, whose memory may consist of large pages."""
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        check_memory(where, size)
        room, size_read = np.empty(size, np.uint8).data, 0
        while size_read < size and (count := file.readinto(room[size_read:])):
            size_read += count
        return room[:size_read].toreadonly()


def open_regular(path: str | os.PathLike[str], where: str, need: str) -> int:
    """Returns a descriptor of the file that the user named, which may be a link. `where` starts the message of an
    Error, and `need` ends it.

    Pipes and devices are refused, because reading them may never end.
    """
    try:
        # O_NONBLOCK: opening a pipe must not wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Error(f"{where}: {reason}, need a readable {need}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Error(f"{where}: got no regular file, need the {need} itself")
    return descriptor


def check_memory(where: str, size: int) -> None:
    """Raises Error if a file is larger than the machine's memory. A sparse file can have any size."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise Error(f"{where}: got {size} bytes, need at most this machine's {memory}")


def open_inside(folder: Path, location: str, where: str) -> int:
    """Returns a descriptor of a file below the folder. The path may contain neither `..` nor links.

    Each directory of the path is opened relative to its parent, so no component can be replaced between check and use.
    In a Hugging Face cache the file itself may be a link to a blob of the same repository (see `_blob`). `where` starts
    the message of an Error.
    """
    parts = PurePosixPath(location).parts
    if not parts or "\\" in location or "\0" in location or location.startswith("/") or ".." in parts:
        raise Error(f"{where}: got the location {location!r}, need a file inside the model's folder")
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            opened = _into(opened, part, os.O_DIRECTORY)
        last = parts[-1]
        if (blob := _blob(folder.joinpath(*parts), opened)) is not None:
            for part in (*[os.pardir] * blob.parts.count(os.pardir), "blobs"):
                opened = _into(opened, part, os.O_DIRECTORY)
            last = blob.name
        opened = _into(opened, last, os.O_NONBLOCK)
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise Error(f"{where}: {location!r} is a link or no regular file, need a file of its own")
    except OSError as error:
        os.close(opened)
        reason = "a link" if os.path.islink(folder.joinpath(*parts)) else error.strerror
        raise Error(f"{where}: {location!r}: {reason}, need a file inside the model's folder") from None
    except Error:
        os.close(opened)
        raise
    return opened


def open_next_to(folder: Path, name: str, where: str) -> int:
    """Like open_inside, for a name that does not come from an untrusted file. The opened file may be a link to another
    file of the same folder."""
    try:
        target = os.readlink(folder / name)
    except OSError:
        return open_inside(folder, name, where)
    near = target.removeprefix("./")
    try:
        return open_inside(folder, near if "/" not in near and near not in ("", ".", "..") else name, where)
    except Error:
        raise Error(
            f"{where}: {name!r}: got a link to {target!r}, need the file itself or a link to one in the same folder (in"
            " a cache of Hugging Face: to a blob of the same repository); copy the file into the folder"
        ) from None


def _into(opened: int, part: str, flag: int) -> int:
    """Opens an entry of the open directory, unless it is a link, and closes the directory. On OSError the directory
    stays open."""
    inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | flag, dir_fd=opened)
    os.close(opened)
    return inner


def _blob(path: Path, opened: int) -> PurePosixPath | None:
    """Returns the target of a link in a Hugging Face cache, where files are stored by their hashes; None for any other
    file.

        models--ORG--NAME/snapshots/REVISION/[FOLDER/]FILE  ->  [../]../../blobs/HASH

    The link may have another form, also an absolute path, if it leads to a file in this repository's `blobs`. The
    result is `../../blobs/HASH` or the like, relative to `opened`, the link's directory.
    """
    try:
        target = os.readlink(path.name, dir_fd=opened)
    except OSError:
        return None
    above = Path(os.path.realpath(path.parent)).parts
    roots = [i for i, part in enumerate(above[:-1]) if part.startswith("models--") and above[i + 1] == "snapshots"]
    if not roots or len(above) < roots[-1] + 3:
        return None
    name = target.rpartition("/")[2]
    blobs = Path(*above[: roots[-1] + 1], "blobs")
    if name in ("", ".", "..") or Path(os.path.realpath(path.parent / target.rpartition("/")[0])) != blobs:
        return None
    return PurePosixPath("../" * (len(above) - roots[-1] - 1) + "blobs", name)
