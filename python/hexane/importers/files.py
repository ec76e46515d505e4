"""Files that an untrusted file names: they are opened only inside its own folder."""

import os
import stat
from pathlib import Path, PurePosixPath

from hexane.errors import Error


def open_inside(folder: Path, location: str, where: str) -> int:
    """A descriptor of a file below the folder, reached through plain directories: no `..`, no links of either kind.

    Each component is opened relative to the one before, so that nothing can be exchanged between check and use.
    `where` opens the message of an Error.
    """
    parts = PurePosixPath(location).parts
    if not parts or "\\" in location or "\0" in location or location.startswith("/") or ".." in parts:
        raise Error(f"{where}: got the location {location!r}, need a file inside the model's folder")
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            # O_NONBLOCK: opening a pipe must not wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | (os.O_NONBLOCK if last else os.O_DIRECTORY)
            inner = os.open(part, flags, dir_fd=opened)
            os.close(opened)
            opened = inner
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
