"""Warns about large loss scales for convolutions on chips whose slices along the width turn large numbers to infinity.

The gradient of a weight that is wider than one reads slices that begin inside a row. Chips of family A13 turn numbers
above 4094 in slices that begin inside a row into infinity (`hazards.width_slice_limit`), and a loss scale enlarges all
gradients.
"""

from collections.abc import Sequence

import numpy as np

from hexane import build as hx
from hexane.autograd import grad
from hexane.build import Tensor
from hexane.graph import Graph, topological
from hexane.targets import Chip

# Smallest scale with a warning, the same as ANEForge's: the gradients of real networks are far below the limit.
LEAST_SCALE = 512.0
OUTPUT = "largest"


def backward_of_wide_weights(loss: Tensor, params: Sequence[Tensor], loss_scale: float, chip: Chip) -> Graph | None:
    """Returns a graph of the largest magnitude in the scaled gradient of each convolution's result, for convolutions
    with a trained weight wider than one. Returns None if the chip has no limit, the scale is small, or no convolution
    is so wide."""
    if chip.hazards.width_slice_limit is None or loss_scale < LEAST_SCALE:
        return None
    trained = {p.value for p in params}
    wide = [
        Tensor(node.values[0])
        for node in topological([loss.value])
        if node.op == "conv" and node.inputs[1] in trained and node.inputs[1].shape[-1] > 1
    ]
    if not wide:
        return None
    backward = grad(loss, wide, seed=np.full(loss.shape, loss_scale, loss.dtype.numpy))
    each = [hx.reshape(hx.reduce_max(hx.abs(g)), shape=(1,)) for g in backward]
    return hx.graph({OUTPUT: hx.concat(*each, axis=0) if len(each) > 1 else each[0]})


def warning_text(largest: float, loss_scale: float, chip: Chip) -> str:
    limit, fact = chip.hazards.width_slice_limit, chip.facts["hazards.width_slice_limit"]
    return (
        f"[train] {chip.label} turns numbers above {limit} into infinity in gradients of convolutions wider than one"
        f" ({fact.source}, {fact.status}): with loss_scale={loss_scale:g} the largest number of the first batch"
        f" is {largest:.4g}, {largest / float(limit or 1):.2g} times the limit. Training goes on unchanged; a smaller"
        " loss_scale makes the number smaller"
    )
