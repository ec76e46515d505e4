"""Ends a command: an error is one paragraph on stderr with exit code 1; a closed pipe on stdout has no message."""

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import ParamSpec, TextIO

import typer
from typer.models import ArgumentInfo, OptionInfo

from hexane.errors import CrossChipFP16Warning, Error, FallbackWarning, HazardWarning

P = ParamSpec("P")
FILES = (".hxp", ".onnx", ".mil", ".npy", ".bin", ".html", ".json", ".png", ".svg", ".pdf")
FOLDERS = (".mlpackage", ".aimodel")
# Where the library reports a wrong argument.
OF_ARGUMENTS = r"compare|compile|compress|emit|llm(?:\.\w+)?|memory|quantize"
# Functions of the library that read a decoder's files. The user of a command called none of them.
READERS = r"train\.load_(?:llama|tokenizer)"
OWN = (CrossChipFP16Warning, FallbackWarning, HazardWarning)


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Makes the function a command, which prints errors without a traceback unless its parameter `debug` is set."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            check_places(kwargs)
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
            message = with_options(_message(error), options_of(function))
            print(f"error: {of_command(message, function.__module__.rpartition('.')[2])}", file=sys.stderr)
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


def check_places(given: Mapping[str, object]) -> None:
    """Raises Error before the work if the folder of a file to write does not exist, or a folder is in its place."""
    for name in ("output", "html", "plot", "trace"):
        path = given.get(name)
        if not isinstance(path, Path) or path.suffix.lower() not in (*FILES, *FOLDERS):
            continue
        if not path.parent.is_dir():
            raise Error(f"--{name}: {path}: got no folder {path.parent}, need an existing one")
        if path.is_dir() and path.suffix.lower() in FILES:
            raise Error(f"--{name}: {path}: got a folder, need the name of a file")


def options_of(function: Callable[..., None]) -> dict[str, str]:
    """Returns the options of a command by the names of their parameters; MODEL and other arguments are none."""
    result = {"per_layer": "--layer"}
    for name, parameter in signature(function).parameters.items():
        about = getattr(parameter.annotation, "__metadata__", ())
        if not any(isinstance(one, ArgumentInfo) for one in about):
            # typer.Option("--profile") in an Annotated has the name as its default.
            declared = [
                str(text)
                for one in about
                if isinstance(one, OptionInfo)
                for text in (one.default, *(one.param_decls or ()))
            ]
            long = (text.partition("/")[0].strip() for text in declared if text.startswith("--"))
            option = next(long, f"--{name.replace('_', '-')}")
            result[name] = result[option[2:].replace("-", "_")] = option
    return result


def of_command(message: str, name: str) -> str:
    """Returns the message with the command's name in place of a function that reads a decoder's files:
    [train.load_llama] m: got ..  ->  [generate] m: got .."""
    return re.sub(rf"^\[{READERS}\]", f"[{name}]", message)


def with_options(message: str, options: Mapping[str, str]) -> str:
    """Returns the message with the command's options in place of the library's arguments of these names:
    [compress] mode: got 'int5'  ->  [compress] --mode: got 'int5'; fallback='host'  ->  --fallback host;
    or give tokenizer=a file  ->  or give --tokenizer FILE, and nothing if the command has no such option."""

    def placed(found: re.Match[str]) -> str:
        return f"{found[1]}{options.get(found[2], found[2])}: "

    def set_to(found: re.Match[str]) -> str:
        return f"{options[found[1]]} {found[3]}" if found[1] in options else found[0]

    def other_way(found: re.Match[str]) -> str:
        return f", or give {options[found[1]]} FILE" if found[1] in options else ""

    message = re.sub(r", or give ([a-z_]+)=a file\b", other_way, message)
    message = re.sub(rf"^(\[(?:{OF_ARGUMENTS})\] )([a-z_]+): (?=got|need)", placed, message)
    message = re.sub(r"\b([a-z_]+)=(['\"])([\w-]+)\2", set_to, message)
    message = re.sub(r"\b[a-z_]+= \((--[a-z-]+)\)", r"\1", message)
    return re.sub(r"(--[a-z-]+ [\w-]+) \(\1\)", r"\1", message)


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
