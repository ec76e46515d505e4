"""Loads models from files of `save`."""

import os

from hexane import _core
from hexane.errors import Error
from hexane.importers.files import open_regular, read_all
from hexane.options import Options
from hexane.runtime import functions, open_model, several_plans
from hexane.runtime.engine import why_on_cpu
from hexane.runtime.functions import Functions
from hexane.runtime.model import Model
from hexane.runtime.open_model import OpenModel
from hexane.sources import PLANS_MAGIC


def load(path: str | os.PathLike[str], *, threads: int | None = None, contexts: int | None = None) -> Model | OpenModel:
    """Loads a model that `save` wrote. An open model has the sets of shapes that were compiled. The whole file is read:
    later changes of it have no effect. threads, contexts: see `hx.Options`.

    Raises Error for an unreadable or damaged file, and for a file of several functions (see `load_functions`).
    """
    options = Options(threads=threads, contexts=contexts)
    if not has_several(path):
        core = _core.Program.load(os.fsencode(path), options.num_threads)
        core.limit_callers(options.num_contexts)
        return Model(core, why=why_on_cpu())
    reader = _reader(path)
    if reader.kind != "shapes":
        raise Error(f"[load] {os.fspath(path)}: got the functions of a model, need one model: hx.load_functions(path)")
    return open_model.from_file(reader, options.num_threads, options.num_contexts)


def load_functions(
    path: str | os.PathLike[str], *, threads: int | None = None, contexts: int | None = None
) -> Functions:
    """Loads the functions that `Functions.save` wrote, with shared states. Raises Error as `load` does, and for a file
    of one model."""
    options = Options(threads=threads, contexts=contexts)
    reader = _reader(path) if has_several(path) else None
    if reader is None or reader.kind != "functions":
        raise Error(f"[load] {os.fspath(path)}: got no file of several functions, need one: hx.load opens a model")
    return functions.from_file(reader, options.num_threads, options.num_contexts)


def load_function(path: str | os.PathLike[str], name: str | None, *, threads: int | None = None) -> Model | OpenModel:
    """Loads a model, or one function of a file with several. name: of the function; None: the only one."""
    if not has_several(path) or _reader(path).kind != "functions":
        return load(path, threads=threads)
    by_name = load_functions(path, threads=threads)
    if name is None and len(by_name) > 1:
        raise Error(f"[load] {os.fspath(path)}: got no function, need one of {', '.join(by_name)}")
    return by_name.function(name or next(iter(by_name)))


def functions_in(path: str | os.PathLike[str]) -> list[str]:
    """Returns the names of the functions in a file; empty for a file of one model."""
    reader = _reader(path) if has_several(path) else None
    if reader is None or reader.kind != "functions":
        return []
    return [reader.entry(row, "name", str) for row in reader.plans]


def has_several(path: str | os.PathLike[str]) -> bool:
    """True if a file has several plans. False for an unreadable file."""
    try:
        descriptor = open_regular(path, "[load]", "model")
    except Error:
        return False  # reading the plan then gives a better error
    with os.fdopen(descriptor, "rb") as file:
        return file.read(len(PLANS_MAGIC)) == PLANS_MAGIC


def _reader(path: str | os.PathLike[str]) -> several_plans.Reader:
    where = f"[load] {os.fspath(path)}"
    return several_plans.Reader(read_all(open_regular(path, where, "model"), where), where)
