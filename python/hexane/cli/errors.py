"""Ends a command: an error is one paragraph on stderr with exit code 1; a closed pipe on stdout has no message."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TextIO

import typer

from hexane.errors import CrossChipFP16Warning, Error, FallbackWarning, HazardWarning

P = ParamSpec("P")
OWN = (CrossChipFP16Warning, FallbackWarning, HazardWarning)


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Makes the function a command, which prints errors without a traceback unless its parameter `debug` is set."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _own_warnings():
                function(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes stdout at exit; this flush must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except typer.Exit:
            raise
        except Exception as error:
            if kwargs["debug"] or _wrong_usage(error):
                raise
            print(f"error: {_message(error)}", file=sys.stderr)
            raise typer.Exit(1) from None

    return run


@contextmanager
def _own_warnings() -> Iterator[None]:
    """Prints Hexane's warnings as one line on stderr, each text once: a command may compile a network several times."""
    show = warnings.showwarning
    said: set[str] = set()

    def shown(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, OWN):
            if str(message) not in said:
                print(f"warning: {message}", file=sys.stderr)
            said.add(str(message))
        else:
            show(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        for category in OWN:
            warnings.simplefilter("always", category)
        warnings.showwarning = shown
        yield


def _wrong_usage(error: Exception) -> bool:
    return isinstance(error, typer.BadParameter)  # typer prints it, exit code 2


def _message(error: Exception) -> str:
    if isinstance(error, Error):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {error} (a fault of hexane; --debug shows where)"
