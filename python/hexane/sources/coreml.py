"""Core ML models: packages (`NAME.mlpackage`), compiled models (`NAME.mlmodelc`) and bare `.mlmodel` files."""

from collections.abc import Mapping

from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, functions_of

SUFFIXES = (".mlpackage", ".mlmodelc", ".mlmodel")


def _matches(seen: Seen) -> bool:
    if seen.path is None:
        return False
    return seen.suffix in SUFFIXES or (seen.is_folder and {"Manifest.json", "Data"} <= seen.names)


def _open(seen: Seen) -> Mapping[str, Function]:
    from hexane.importers.coreml.model import open_model  # imported late, because plans do not need it

    assert seen.path is not None
    model = open_model(seen.path)

    return functions_of(model, [seen.function] if seen.function else model.functions)


COREML = Format("coreml", "a Core ML model", _matches, _open)
