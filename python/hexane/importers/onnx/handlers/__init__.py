"""ONNX ops that differ from their counterparts in the catalogue: one function for each, joined here by name."""

from collections.abc import Mapping

from hexane.importers.onnx.handlers import (
    arithmetic,
    constants,
    einsum,
    indexing,
    movement,
    normalization,
    reduction,
    resize,
    windows,
)
from hexane.importers.onnx.node import Handler

HANDLERS: Mapping[str, Handler] = {
    **arithmetic.HANDLERS,
    **constants.HANDLERS,
    **einsum.HANDLERS,
    **indexing.HANDLERS,
    **movement.HANDLERS,
    **normalization.HANDLERS,
    **reduction.HANDLERS,
    **resize.HANDLERS,
    **windows.HANDLERS,
}
