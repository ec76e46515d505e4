"""Core ML models: packages (`NAME.mlpackage`), compiled models (`NAME.mlmodelc`) and bare `.mlmodel` files."""

from collections.abc import Mapping

from hexane.graph import Graph
from hexane.importers.signature import Signature
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, Shapes, Values

SUFFIXES = (".mlpackage", ".mlmodelc", ".mlmodel")


def _matches(seen: Seen) -> bool:
    if seen.path is None:
        return False
    return seen.suffix in SUFFIXES or (seen.is_folder and {"Manifest.json", "Data"} <= seen.names)


def _open(seen: Seen) -> Mapping[str, Function]:
    from hexane.importers.coreml.model import open_model  # late: a plan needs none of it

    assert seen.path is not None
    model = open_model(seen.path)

    def function(name: str) -> Function:
        known: list[Signature] = []

        def graph(shapes: Shapes, values: Values) -> Graph:
            return model.graph(name, shapes, values)

        def describe() -> Signature:
            if not known:
                known.append(model.signature(name))
            return known[0]

        return Function(graph, describe, is_open=True)

    names = [seen.function] if seen.function else list(model.functions)
    return {name: function(name) for name in names}


COREML = Format("coreml", "a Core ML model", _matches, _open)
