"""TFLite (LiteRT) models: `.tflite` files, whose functions are their signatures."""

import struct
from collections.abc import Mapping

from hexane.importers.files import open_regular, read_all
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, functions_of

IDENTIFIER = b"TFL3"  # follows the 4-byte offset of the root


def _matches(seen: Seen) -> bool:
    if not seen.is_data or seen.start[4:8] != IDENTIFIER:
        return False
    return bool(struct.unpack_from("<I", seen.start)[0] < seen.size)


def _open(seen: Seen) -> Mapping[str, Function]:
    from hexane.importers.tflite.opened import open_model  # imported late, because plans do not need it

    if isinstance(seen.value, bytes):
        data = seen.value
    else:
        assert seen.path is not None
        data = read_all(open_regular(seen.path, f"[tflite] {seen.path}", "TFLite model"), f"[tflite] {seen.path}")
    model = open_model(data)

    return functions_of(model, [seen.function] if seen.function else model.signatures)


TFLITE = Format("tflite", "a TFLite model", _matches, _open)
