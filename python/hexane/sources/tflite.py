"""TFLite (LiteRT) models: `.tflite` files, whose functions are their signatures."""

import struct
from collections.abc import Mapping

from hexane.graph import Graph
from hexane.importers.signature import Signature
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, Shapes, Values

IDENTIFIER = b"TFL3"  # stands after the offset of the root


def _matches(seen: Seen) -> bool:
    if not seen.is_data or seen.start[4:8] != IDENTIFIER:
        return False
    return bool(struct.unpack_from("<I", seen.start)[0] < seen.size)


def _open(seen: Seen) -> Mapping[str, Function]:
    from hexane.importers.tflite.opened import open_model  # late: a plan needs none of it

    model = open_model(seen.value if isinstance(seen.value, bytes) else seen.path.read_bytes())  # type: ignore[union-attr]

    def function(name: str) -> Function:
        known: list[Signature] = []

        def graph(shapes: Shapes, values: Values) -> Graph:
            return model.graph(name, shapes, values)

        def describe() -> Signature:
            if not known:
                known.append(model.signature(name))
            return known[0]

        return Function(graph, describe, is_open=True)

    names = [seen.function] if seen.function else list(model.signatures)
    return {name: function(name) for name in names}


TFLITE = Format("tflite", "a TFLite model", _matches, _open)
