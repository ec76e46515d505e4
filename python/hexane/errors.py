"""The errors Hexane raises on purpose. The C++ core raises `Error` too."""


class Error(Exception):
    """Every error Hexane raises on purpose. The message reads `[where] what: got X, need Y`."""
