"""ONNX models: a path, the file's bytes, or a ModelProto. A file is ONNX if it is nothing else: ONNX has no magic."""

from collections.abc import Mapping
from typing import Any

from hexane.graph import Graph
from hexane.importers.signature import Signature
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, Shapes, Values


def _matches(seen: Seen) -> bool:
    # By name: importing onnx takes longer than all of hexane.
    return seen.is_data or type(seen.value).__name__ == "ModelProto"


# Bytes of a model that stays in memory for the next shapes. Larger ones are read again, unless they are bytes of the
# caller's, which are in memory anyway.
MOST_KEPT = 16 << 20


def _open(seen: Seen) -> Mapping[str, Function]:
    known: list[Signature] = []
    kept: list[Any] = []  # the model as read, if it is small enough and has open shapes

    def graph(shapes: Shapes, values: Values) -> Graph:
        from hexane.importers.onnx import ReadModel

        if kept:
            result: Graph = kept[0].graph(shapes, values)
            return result
        read = ReadModel(seen.value)
        known[:] = [read.described]  # the file is read once
        stays = read.size <= MOST_KEPT or type(seen.value) is bytes
        if stays and (read.described.specialisation or read.described.optional):
            read.parse_once()
            kept.append(read)
        return read.graph(shapes, values)

    def describe() -> Signature:
        from hexane.importers.onnx import signature

        if not known:
            known.append(signature(seen.value))
        return known[0]

    return {"main": Function(graph, describe, is_open=True)}


ONNX = Format("onnx", "an ONNX model", _matches, _open)
