"""Opens what a command is given: a plan, told by the first bytes, a form of Apple's, by the name, or an ONNX file."""

import os
from pathlib import Path

import hexane
from hexane.cli.given import Given, Known
from hexane.cli.options import Fallback, Numerics, Precision, Repair
from hexane.cli.output import working
from hexane.errors import Error
from hexane.importers.files import is_asset, open_regular

PLAN_MAGIC = b"HEXANE\x1a\n"


def is_plan(path: Path) -> bool:
    """Raises Error for a file named as a plan that does not start as one."""
    if is_asset(path):
        return False
    with os.fdopen(open_regular(path, f"[open] {path}", "model"), "rb") as file:
        start = file.read(len(PLAN_MAGIC))
    if start != PLAN_MAGIC and path.suffix.lower() == ".hxp":
        raise Error(f"[open] {path}: got the first bytes {start!r}, need those of a plan, {PLAN_MAGIC!r}")
    return start == PLAN_MAGIC


def with_function(path: Path, function: str | None) -> Path:
    """The path that names a function of a Core AI asset. Raises Error for another model."""
    if function is None:
        return path
    if not is_asset(path):
        raise Error(f"[open] {path}: got --function {function} for a model of one function, need a Core AI asset")
    return Path(f"{path}#{function}")


def open_model(
    path: Path,
    *,
    target: str | None = None,
    threads: int | None = None,
    dtype: Precision | None = None,
    given: Given | None = None,
    dump: Path | None = None,
    fallback: Fallback = Fallback.HOST,
    repair: Repair = Repair.ON,
    numerics: Numerics | None = None,
    memory: hexane.Memory | None = None,
) -> tuple[hexane.Model | hexane.OpenModel, Known]:
    """A loaded plan or a compiled model, and what is given for its inputs. Raises Error for a plan with options that
    only compiling can follow."""
    given = given or Given.of(None)
    if is_plan(path):
        options = {"--target": target, "--dtype": dtype, "--input-shape": given.shapes, "--numerics": numerics}
        if unfit := [name for name, value in options.items() if value]:
            raise Error(f"[open] {path}: got a plan and {', '.join(unfit)}, need an ONNX model to compile that way")
        with working(f"loading {path.name}"):
            net = hexane.load(path, threads=threads)
        arrays, origins = given.arrays(net.inputs)
        return net, Known(arrays=arrays, origins=origins)
    known = given.read(path)
    with working(f"compiling {path.name}"):
        chosen = dtype.value if dtype else ""
        made = hexane.compile(
            path,
            target=target,
            threads=threads,
            dtype=chosen,
            input_shapes=known.shapes,
            input_values=known.values,
            fallback=fallback.value,
            repair=repair is Repair.ON,
            numerics=numerics.value if numerics else "",
            dump=dump,
            memory=memory,
        )
    return made, known
