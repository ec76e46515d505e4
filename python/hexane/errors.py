"""The errors that Hexane raises on purpose (the C++ core raises `Error` too), and its warnings."""

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)


class Error(Exception):
    """The base of all errors that Hexane raises on purpose. The message reads `[where] what: got X, need Y`."""


class InputError(Error, ValueError):
    """An array or a shape does not fit its input, or an input is missing or unknown. The model can be called again
    after this error."""


class UnsupportedError(Error):
    """A model that cannot be opened, imported or compiled as it is: Hexane does not read its format, does not have some
    of its ops or dtypes, or the chip does not run them. Damaged files raise Error."""


class DeviceError(Error):
    """The Neural Engine, or its stand-in, failed. stage: "open", "files", "compile", "load", "bind", "evaluate" or
    "unload". code: the system's error number; 0 if it gave none, -2**63 if it did not answer within the time limit.
    hint: what to do, if that is known."""

    def __init__(self, message: str, stage: str = "", code: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.stage, self.code, self.hint = stage, code, hint


class FallbackWarning(UserWarning):
    """Some parts of a network that was compiled for a chip run on the host. The message has the parts and the
    reasons."""


class HazardWarning(UserWarning):
    """For some inputs, the chip that a network was compiled for computes something else than the network says. The
    message has the ops and these inputs."""


class CrossChipFP16Warning(UserWarning):
    """The numbers of a network may differ between two chips. The message has the op, the size of the difference, and
    the fact about the chips that causes it."""


def warn(message: str, category: type[Warning]) -> None:
    """Warns at the line of the user's code that called into this package."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
