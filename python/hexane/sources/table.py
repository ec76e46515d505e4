"""The table of everything that can be opened. `open` is for all known formats, `open_network` for formats with a
graph."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from hexane.errors import Error, UnsupportedError
from hexane.sources.compiled import E5, HWX, PLAN, PLAN_MAGIC, PLANS
from hexane.sources.coreai import COREAI
from hexane.sources.coreml import COREML
from hexane.sources.encoder import ENCODER
from hexane.sources.foreign import FOREIGN, Foreign
from hexane.sources.format import Format
from hexane.sources.graphs import GRAPH
from hexane.sources.look import Seen, look
from hexane.sources.mil import MIL
from hexane.sources.module import Module
from hexane.sources.netplist import NETPLIST
from hexane.sources.onnx import ONNX
from hexane.sources.refused import foreign, unknown
from hexane.sources.tensors import TENSORS
from hexane.sources.tflite import TFLITE

# The order matters: ONNX has no magic, so a file is ONNX if it is nothing else.
FORMATS = (GRAPH, TENSORS, PLANS, PLAN, HWX, E5, MIL, NETPLIST, COREML, COREAI, TFLITE, ENCODER, ONNX)
WITH_FUNCTIONS = (COREAI, COREML, TFLITE, PLANS)


def open(model: Any, *, function: str | None = None, where: str = "open") -> Module:
    """Recognises a model by its type, its name and its first bytes. The model's graph is read on demand.

    model: a Graph; tensors (one, a sequence, or a mapping of names); an ONNX model (path, bytes or ModelProto); a
    TFLite model (path or bytes); or the path of MIL text, a netplist, a Core ML package, a Core AI asset
    ("net.aimodel#decode" for one function), an encoder's Hugging Face folder, or a compiled program. A Module is
    returned unchanged. function: if given, the Module has only this function. where: the first word in the message of
    an Error.

    Raises UnsupportedError for any other model; the message has advice for known kinds of files.
    """
    if isinstance(model, Module):
        return model
    seen = look(model, where)
    return _opened(_row(seen, where), seen, function, where)


def form_of(model: Any, *, where: str = "open") -> str:
    """The name of a model's format, found without reading more than its first bytes. Raises the same errors as
    `open`."""
    return _row(look(model, where), where).name


def title_of(path: Path, *, where: str = "open") -> str | None:
    """The kind of a file by its first bytes or its name, as in a sentence: "an ONNX model" or "a PyTorch file". None if
    the kind is unknown."""
    seen = look(path, where)
    rows: tuple[Format | Foreign, ...] = (*FOREIGN, *(row for row in FORMATS if row is not ONNX))
    title = next((row.title for row in rows if row.matches(seen)), None)
    return ONNX.title if title is None and seen.suffix == ".onnx" else title


def open_network(model: Any, *, function: str | None = None, where: str = "open") -> Module:
    """Like `open`. Raises Error for a compiled program, which has no graph."""
    opened = open(model, function=function, where=where)
    row = _row_of(opened)
    if row.open is None:
        raise UnsupportedError(
            f"[{where}] {opened.name or 'model'}: got {row.title}, which is compiled already, need the model that it"
            f" was made from; {row.advice}"
        )
    return opened


def open_onnx(model: Any, *, where: str) -> Module:
    """Like `open_network`. Raises Error for any format but ONNX."""
    opened = open_network(model, where=where)
    if opened.form != ONNX.name:
        raise UnsupportedError(f"[{where}] {opened.name or 'model'}: got {opened.title}, need an ONNX model")
    return opened


def _row_of(opened: Module) -> Format:
    return next(row for row in FORMATS if row.name == opened.form)


def _row(seen: Seen, where: str) -> Format:
    if seen.is_data or seen.is_folder:
        for kind in FOREIGN:
            if kind.matches(seen):
                raise foreign(seen, kind, where)
    for row in FORMATS:
        if row.matches(seen):
            return row
    raise unknown(seen, where)


def _opened(row: Format, seen: Seen, function: str | None, where: str) -> Module:
    if row is PLAN and not seen.begins(PLAN_MAGIC):
        start = seen.start[: len(PLAN_MAGIC)]
        raise Error(f"[{where}] {seen.name}: got the first bytes {start!r}, need those of a plan, {PLAN_MAGIC!r}")
    if function is not None and row not in WITH_FUNCTIONS:
        raise Error(
            f"[{where}] {seen.name}: got the function {function!r} for a model of one function, need a Core ML"
            " package, a TFLite model or a Core AI asset"
        )
    seen = replace(seen, function=function or seen.function)
    functions = {} if row.open is None else row.open(seen)
    source = seen.value if seen.path is None else seen.path
    return Module(row.name, row.title, seen.given, source, functions, seen.function)
