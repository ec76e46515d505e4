"""The validators of layers that view elements in another shape or order.

Reshape: none, only the output's type. Transpose: perm.
"""

from math import prod

from hexane.targets import Family
from hexane.validate.rule import Call, Rule, changes_the_size, inputs, own


def _flattens(c: Call) -> bool:
    """True if a reshape is a flatten, (N, C, H, W) to (N, C * H * W). Chips before family A13 have no other reshape."""
    if c.output is None or not c.types:
        return True
    x, y = c.types[0].shape, tuple(d for i, d in enumerate(c.output.shape) if i < 2 or d != 1)
    return len(x) > 0 and y == (x[0], prod(x[1:]))


def _perm(c: Call) -> tuple[int, ...]:
    rank = c.types[0].rank if c.types else 0
    return tuple(c.get("perm", range(rank)))


LAYERS = {
    "Reshape": (
        inputs(1),
        Rule("Cannot reshape a tensor of rank > 5", lambda c: any(t.rank > 5 for t in (*c.types, c.output) if t is not None),
             kind="oversize", change="fold axes into one"),
        Rule("Error: Invalid output dimensions for Reshape unit", changes_the_size),
        Rule("cannot be lowered as Flatten on ANE", lambda c: c.chip.family < Family.A13 and not _flattens(c), source="guide ch35",
             change="needs family A13 or later"),
    ),
    "Flatten": (
        inputs(1),
        Rule("Flatten is not supported on this architecture", lambda c: c.get("layout", "nchw") not in ("nchw", "nhwc")),
    ),
    "Unflatten": (inputs(1),),
    "Shape": (inputs(1),),
    "Transpose": (
        inputs(1),
        own("perm: got %s, need each axis once", lambda c: sorted(_perm(c)) != list(range(len(_perm(c)))) and (_perm(c),)),
        own("perm: got %s, need the first of five axes to stay first", lambda c: len(_perm(c)) == 5 and _perm(c)[0] != 0 and (_perm(c),),
            change="merge the leading axes into one"),
        Rule("TransposeNC: Invalid input channel %ld, must be 1",
             lambda c: c.get("batch_to_channels", False) and c.x.channels != 1 and (c.x.channels,)),
        Rule("NE Input Transpose is not supported for this arch",
             lambda c: c.get("on_input", False) and c.chip.extents.transpose_width == 0),
    ),
}  # fmt: skip
