"""Core AI assets (`.aimodel`) as graphs: `import_coreai`, and what an asset has: `open_asset`."""

import os
from collections.abc import Mapping, Sequence

from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.coreai.asset import Asset, AssetFunction, AssetPort, open_asset, read_asset
from hexane.importers.coreai.translate import Translator

__all__ = ["Asset", "AssetFunction", "AssetPort", "import_asset", "import_coreai", "open_asset", "read_asset"]


def import_coreai(
    path: str | os.PathLike[str],
    *,
    function: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """The graph of a function of a Core AI asset: the one of this name, or `main`, or the only one. path: the folder
    `NAME.aimodel`, or the folder of a bundle that has one.

    `shapes` fixes inputs with axes of unknown extent. Raises Error for a file that is damaged, with the offset in it,
    and, all at once, for operations that Hexane does not have, with the author's lines.
    """
    return import_asset(open_asset(path), function=function, shapes=shapes)


def import_asset(
    asset: Asset, *, function: str | None = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> Graph:
    """As import_coreai, of an asset that was read."""
    try:
        return Translator(asset, asset.function(function)).graph(shapes or {})
    except RecursionError:
        raise Error(f"[coreai] {asset.path}: got bodies nested too deeply, need fewer levels") from None
    except MemoryError:
        raise Error(f"[coreai] {asset.path}: got a model that needs more memory than there is") from None
