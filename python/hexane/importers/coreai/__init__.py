"""`import_coreai` reads a Core AI asset (`.aimodel`) as a graph; `open_asset` and `asset_inputs` read its contents."""

import os
from collections.abc import Mapping, Sequence

from hexane.dtypes import DTYPES, DType
from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.coreai.asset import Asset, AssetFunction, AssetPort, open_asset, read_asset
from hexane.importers.coreai.attributes import Tensor
from hexane.importers.coreai.numbers import DTYPE_OF
from hexane.importers.coreai.translate import Translator

__all__ = [
    "Asset",
    "AssetFunction",
    "AssetPort",
    "asset_inputs",
    "import_asset",
    "import_coreai",
    "open_asset",
    "read_asset",
]


def import_coreai(
    path: str | os.PathLike[str],
    *,
    function: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """Returns the graph of a function of a Core AI asset: the function of this name; without a name, `main` or the only
    one. path: the folder `NAME.aimodel`, or a bundle that contains one.

    shapes: the shapes of inputs that have axes of unknown extent. Raises Error for a damaged file, with the offset of
    the damage. Raises UnsupportedError that lists all kinds of unsupported operations, with up to three source
    lines of each.
    """
    return import_asset(open_asset(path), function=function, shapes=shapes)


def import_asset(
    asset: Asset, *, function: str | None = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> Graph:
    """Like import_coreai, for an open asset."""
    try:
        return Translator(asset, asset.function(function)).graph(shapes or {})
    except RecursionError:
        raise Error(f"[coreai] {asset.path}: got bodies nested too deeply, need fewer levels") from None
    except MemoryError:
        raise Error(f"[coreai] {asset.path}: got a model that needs more memory than there is") from None


def asset_inputs(asset: Asset, function: str | None = None) -> list[tuple[str, tuple[int | None, ...], DType]]:
    """Returns the name, extents (None for an unknown one) and dtype of each input that is a tensor of a known dtype. A
    complex input has a last axis of 2, for real and imaginary parts."""
    inputs = []
    for port in asset.function(function).inputs:
        kind = port.type
        if not isinstance(kind, Tensor):
            continue
        element = kind.element.removeprefix("complex<").rstrip(">")
        pairs = (2,) if element != kind.element else ()
        if element in DTYPE_OF:
            inputs.append((port.name, (*kind.shape, *pairs), DTYPES[DTYPE_OF[element]]))
    return inputs
