"""Core AI assets: the folder `NAME.aimodel`, the folder of a bundle, or one function: `NAME.aimodel#FUNCTION`."""

from collections.abc import Mapping

from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.signature import Input, Signature
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, Shapes, Values

FILES = {"main.mlirb", "metadata.json"}


def _matches(seen: Seen) -> bool:
    return seen.path is not None and (seen.suffix == ".aimodel" or not FILES.isdisjoint(seen.names))


def _open(seen: Seen) -> Mapping[str, Function]:
    from hexane.importers.coreai import asset_inputs, import_asset, open_asset  # late: plans do not need it

    assert seen.path is not None
    asset = open_asset(seen.path)
    names = [asset.function(seen.function).name] if seen.function else list(asset.public())

    def function(name: str) -> Function:
        def graph(shapes: Shapes, values: Values) -> Graph:
            if values:
                raise Error("[open] input_values: got some for a Core AI asset, need an ONNX model")
            return import_asset(asset, function=name, shapes=shapes)

        def describe() -> Signature:
            inputs = tuple(Input(i, dtype, dims) for i, dims, dtype in asset_inputs(asset, name))
            return Signature(inputs, tuple(port.name for port in asset.function(name).outputs))

        return Function(graph, describe)

    return {name: function(name) for name in names}


COREAI = Format("aimodel", "a Core AI asset", _matches, _open)
