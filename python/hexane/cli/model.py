"""Opens what a command is given: a plan, told by the first bytes, a form of Apple's, by the name, or an ONNX file."""

import os
from collections.abc import Iterable
from pathlib import Path

import hexane
from hexane.cli.options import Fallback, NamedShape, Numerics, Precision, by_name
from hexane.cli.output import working
from hexane.errors import Error
from hexane.importers.files import is_asset, open_regular
from hexane.importers.likely_shapes import likely_shapes, shape_option

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


def shapes_of(items: Iterable[NamedShape] | None) -> dict[str, tuple[int, ...]]:
    return {name: item.shape for name, item in by_name(items or (), "--input-shape").items()}


def open_model(
    path: Path,
    *,
    target: str | None = None,
    threads: int | None = None,
    dtype: Precision | None = None,
    input_shapes: Iterable[NamedShape] | None = None,
    dump: Path | None = None,
    fallback: Fallback = Fallback.HOST,
    numerics: Numerics | None = None,
    memory: hexane.Memory | None = None,
) -> hexane.Model | hexane.OpenModel:
    """A loaded plan or a compiled model. Raises Error for a plan with options that only compiling can follow."""
    shapes = shapes_of(input_shapes)
    if is_plan(path):
        options = {"--target": target, "--dtype": dtype, "--input-shape": shapes, "--numerics": numerics}
        if given := [name for name, value in options.items() if value]:
            raise Error(f"[open] {path}: got a plan and {', '.join(given)}, need an ONNX model to compile that way")
        with working(f"loading {path.name}"):
            return hexane.load(path, threads=threads)
    with working(f"compiling {path.name}"):
        chosen = dtype.value if dtype else ""
        return hexane.compile(
            path,
            target=target,
            threads=threads,
            dtype=chosen,
            input_shapes=shapes,
            fallback=fallback.value,
            numerics=numerics.value if numerics else "",
            dump=dump,
            memory=memory,
        )


def shape_options(model: hexane.OpenModel) -> list[str]:
    """The options that would fix the shapes of a model, with likely extents for its free dims."""
    ports = [port for port in model.inputs if any(not isinstance(d, int) for d in port.shape)]
    likely = likely_shapes([(p.name, p.dtype.kind, None if "..." in p.shape else p.shape) for p in ports])
    return [shape_option(name, shape) for name, shape in likely.items()]
