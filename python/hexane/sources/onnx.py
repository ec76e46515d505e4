"""ONNX models: a path, the file's bytes, or a ModelProto. A file is ONNX if it is nothing else: ONNX has no magic."""

from collections.abc import Mapping

from hexane.graph import Graph
from hexane.importers.signature import Signature
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, Shapes, Values


def _matches(seen: Seen) -> bool:
    # By name: importing onnx takes longer than all of hexane.
    return seen.is_data or type(seen.value).__name__ == "ModelProto"


def _open(seen: Seen) -> Mapping[str, Function]:
    known: list[Signature] = []

    def graph(shapes: Shapes, values: Values) -> Graph:
        from hexane.importers.onnx import import_described

        made, described = import_described(seen.value, shapes, values)
        known[:] = [described]  # the file is read once
        return made

    def describe() -> Signature:
        from hexane.importers.onnx import signature

        if not known:
            known.append(signature(seen.value))
        return known[0]

    return {"main": Function(graph, describe, is_open=True)}


ONNX = Format("onnx", "an ONNX model", _matches, _open)
