"""Graphs on which a pass fires, and ones that it must leave alone, by name: (pass, graph). Those of every file here that
has such."""

from importlib import import_module
from pkgutil import iter_modules

from pass_cases.graphs import Case

_ALL = [import_module(f"pass_cases.{file.name}") for file in iter_modules(__path__) if file.name != "graphs"]
FIRES: dict[str, Case] = {name: case for part in _ALL for name, case in part.FIRES.items()}
LEAVES: dict[str, Case] = {name: case for part in _ALL for name, case in part.LEAVES.items()}
