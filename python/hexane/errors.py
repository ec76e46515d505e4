"""The errors Hexane raises on purpose (the C++ core raises `Error` too), and its warnings."""

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)


class Error(Exception):
    """Every error Hexane raises on purpose. The message reads `[where] what: got X, need Y`."""


class InputError(Error, ValueError):
    """An array or a shape does not fit its input, or an input is missing or unknown: the caller's mistake, after which
    the model runs on as before. A ValueError, too."""


class UnsupportedError(Error):
    """A model that cannot be opened, imported or compiled as it is: of a format that Hexane does not read, with ops or
    dtypes that it does not have, or that the chip does not run. Damaged files are an Error."""


class DeviceError(Error):
    """The Neural Engine, or its stand-in, failed. stage: "open", "files", "compile", "load", "bind", "evaluate"
    or "unload". code: the system's own number, 0 if it gave none, -2**63 if it has not answered within its limit. hint:
    what to do, where that is known."""

    def __init__(self, message: str, stage: str = "", code: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.stage, self.code, self.hint = stage, code, hint


class FallbackWarning(UserWarning):
    """Parts of a network that was compiled for a chip run on the host: which, and why."""


class HazardWarning(UserWarning):
    """The chip a network was compiled for computes something else than the network says, for some inputs: where, and
    which."""


class CrossChipFP16Warning(UserWarning):
    """A network's numbers may differ between two chips: where, by how much, and which fact of the chips says so."""


def warn(message: str, category: type[Warning]) -> None:
    """A warning at the line of the user's that called into this package."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
