"""ONNX ops that differ from their counterparts in the catalogue: one function for each, joined here by name."""

from collections.abc import Mapping

from hexane.importers.onnx.handlers import (
    arithmetic,
    bits,
    constants,
    dynamic,
    indexing,
    movement,
    normalization,
    older,
    quantization,
    random,
    recurrent,
    reduction,
    resize,
    sampling,
    scatter,
    sequences,
    signal,
    windows,
)
from hexane.importers.onnx.node import Handler

HANDLERS: Mapping[str, Handler] = {
    **arithmetic.HANDLERS,
    **bits.HANDLERS,
    **constants.HANDLERS,
    **dynamic.HANDLERS,
    **indexing.HANDLERS,
    **movement.HANDLERS,
    **normalization.HANDLERS,
    **quantization.HANDLERS,
    **random.HANDLERS,
    **recurrent.HANDLERS,
    **reduction.HANDLERS,
    **resize.HANDLERS,
    **sampling.HANDLERS,
    **scatter.HANDLERS,
    **sequences.HANDLERS,
    **signal.HANDLERS,
    **windows.HANDLERS,
    **older.HANDLERS,
}
