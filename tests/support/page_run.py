"""Runs the code blocks of a page. Each language has one function here; a block of another language is an error."""

import ast
import asyncio
import inspect
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hexane as hx
from command import Cli, command, options_of
from page_blocks import Block, blocks_of, with_texts
from printed_examples import commands_of, shortened

ROOT = Path(__file__).parents[2]

# Arguments of commands whose options are checked instead, and why.
ONLY_PARSED = {
    "bench": "measures for a minute or more",
    "--report": "probes for minutes",
    "--read-report": "needs a report from a Mac",
    "serve": "runs until it is stopped",
    "--follow": "runs until it is stopped",
    "--measured": "needs a Mac",
    "mpirun": "needs four processes",
}
# Exit code 3 says that the command has found what it looks for, such as an op that a chip lacks.
FINDERS = ("check", "compare", "fit")
SWIFT = ("MLModelConfiguration",)  # of Core ML


class PageRun:
    """Runs a page in the working folder. printed: what was printed since its last call; given: the names that the page
    takes from its reader."""

    def __init__(self, page: str, cli: Cli, printed: Callable[[], str], given: dict[str, Any]) -> None:
        self.page, self.cli, self.printed, self.given = page, cli, printed, given
        self.names: dict[str, Any] = {"hx": hx, "np": np, **given}
        self.shown = ""  # what the last Python block printed
        self.texts: dict[Block, str] = {}  # of blocks that show a printed text, as it is printed now

    def run(self) -> str:
        """The page with the texts that its examples print now."""
        run = {"python": self.python, "text": self.text, "console": self.console, "sh": self.shell}
        run |= {"c": self.c, "swift": self.swift}
        for block in blocks_of(self.page):
            try:
                assert block.language in run, f"got a block of {block.language!r}, need one of {', '.join(run)}"
                if not block.not_run:
                    run[block.language](block)
                elif block.language == "python":
                    check_names(block.text)
            except BaseException as error:
                error.add_note(f"in the block of line {block.begin + 1}:\n{block.text}")
                raise
        return with_texts(self.page, self.texts)

    def python(self, block: Block) -> None:
        if "import hexane as hx\n" in block.text:  # complete by itself
            self.names = dict(self.given)
        self.printed()
        Path("example.py").write_text(block.text)
        code = compile(block.text, "example.py", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, self.names)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(result)
        self.shown = self.printed()
        self.shapes(block.text)

    def shapes(self, program: str) -> None:
        """A comment such as `# (2, 384)` after a statement is the shape of its value."""
        for node in ast.parse(program).body:
            said = re.search(r"  # (\(\d+,[ \d]*\))", program.splitlines()[node.end_lineno - 1])
            if said and isinstance(node, (ast.Assign, ast.Expr)):
                value = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.value)
                got = np.shape(eval(value, self.names))
                assert got == ast.literal_eval(said[1]), f"{value} has the shape {got}"

    def text(self, block: Block) -> None:
        assert self.shown, "no Python block above prints a text"
        self.texts[block] = shortened(self.shown, block.text)

    def console(self, block: Block) -> None:
        self.texts[block] = ""
        for line, shown in commands_of(block.text):
            self.texts[block] += f"$ {line}\n{shortened(self.command(shlex.split(line)), shown)}"

    def shell(self, block: Block) -> None:
        """Lines of commands, and comments, whose options the command must have."""
        words: list[str] = []
        for line in block.text.splitlines():
            before, _, comment = f" {line}".partition(" #")
            words = shlex.split(before) or words
            if before.strip():
                self.command(words)
            check_options(words, comment)

    def command(self, words: list[str]) -> str:
        """What the command prints, if it is one of Hexane's."""
        name, *arguments = words
        if Path(name).name == "hexane":
            return self.hexane(arguments)
        if name == "mpirun":
            parse(words[words.index("hexane") + 1 :])
        elif name == "pip":
            extras = re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
            assert all(extra in extras for extra in re.findall(r"hexane\[(.*?)\]", " ".join(arguments)))
        elif name == "python":
            program = (ROOT / arguments[0]).read_text()
            assert all(f'"{option}"' in program for option in arguments if option.startswith("-"))
        elif name == "make" and "-C" in arguments:
            subprocess.run(["make", "-n", *arguments], check=True, capture_output=True)
        elif name == "make":
            targets = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
            unknown = [argument for argument in arguments if "=" not in argument and argument not in targets]
            assert not unknown, f"make has no {', '.join(unknown)}"
        else:
            assert name.startswith(".ci/"), f"no way to run {name}"
            assert (ROOT / name).stat().st_mode & 0o100
        return ""

    def hexane(self, arguments: list[str]) -> str:
        if only_parsed(arguments):
            parse(arguments)
            return ""
        ended = self.cli(*arguments)
        assert ended.code == 0 or (ended.code == 3 and arguments[0] in FINDERS), ended.err or ended.out
        return ended.out

    def c(self, block: Block) -> None:
        """Compiles the block against the app that a command of the page wrote. given.h declares the reader's functions."""
        compiler = shutil.which("cc")
        if compiler is None:
            return
        Path("given.h").write_text(self.given.get("given.h", ""))
        Path("example.c").write_text(block.text)
        options = ["-std=c99", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Iapp", "-Iapp/include"]
        checked = subprocess.run(
            [compiler, *options, "-include", "given.h", "example.c"], capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stderr

    def swift(self, block: Block) -> None:
        """Classes are Core ML's, or Xcode's for a package that a command of the page wrote."""
        for name in re.findall(r"\b([A-Z]\w*)\(", block.text):
            assert name in SWIFT or Path(f"{name}.mlpackage").exists(), name


def only_parsed(words: list[str]) -> str:
    """Why this command does not run; "" if it runs."""
    return next((why for word, why in ONLY_PARSED.items() if word in words), "")


def not_run(page: str) -> Iterator[str]:
    """The blocks and commands of a page that are checked without running, each with the reason."""
    for block in blocks_of(page):
        if block.not_run:
            yield f"{block.language}: {block.not_run}"
        elif block.language == "sh":
            for line in block.text.splitlines():
                words = shlex.split(f" {line}".partition(" #")[0])
                if "hexane" in words and (why := only_parsed(words)):
                    yield f"{' '.join(words)}: {why}"


def parse(arguments: list[str]) -> None:
    """Refuses arguments that the command of Hexane would refuse."""
    name, *rest = arguments
    command().commands[name].make_context(name, rest)


def check_options(words: list[str], comment: str) -> None:
    """The options that a comment names are options of the command before it."""
    if "hexane" in words:
        name = words[words.index("hexane") + 1]
        for other, option in re.findall(r"hexane ([a-z]+)|(?<!\S)(--[a-z0-9-]+)", comment):
            name = other or name
            assert not option or option in options_of(name), f"hexane {name} has no {option}"


def check_names(program: str) -> None:
    """A program that does not run parses, and Hexane has the names that it takes from hx."""
    for node in ast.walk(compile(program, "example.py", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("hx", "hx.train", "hx.llm"):
            assert eval(ast.unparse(node), {"hx": hx})
