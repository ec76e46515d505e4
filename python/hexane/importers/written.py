"""Models in Apple's forms, by the ending of their name."""

import os
from collections.abc import Mapping, Sequence

from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.files import asset_path, is_asset


def load_written_model(path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """The graph of MIL text (.mil), of a netplist (.plist), with the weights in the same folder, or of a function of a
    Core AI asset (.aimodel, or .aimodel#FUNCTION). shapes: of an asset's inputs with open axes; the others have
    none."""
    # Loaded where they are used: a plan needs none.
    if is_asset(path):
        from hexane.importers.coreai import import_coreai

        folder, function = asset_path(path)
        return import_coreai(folder, function=function, shapes=shapes)
    if shapes:
        raise Error("[open] input_shapes: got some for a model of fixed shapes, need an ONNX model or a Core AI asset")
    if os.fspath(path).lower().endswith(".plist"):
        from hexane.importers.netplist import load_netplist_file

        return load_netplist_file(path)
    from hexane.importers.mil import load_mil_file

    return load_mil_file(path)
