"""The validators of layers that move elements. The main parameters of each layer:

Concat: axis. Pad: axes (names), mode ("constant", "reflect", "symmetric", "edge"). Tile: factors. Broadcast: axis (a
name). InputView: axis (a name), offset, size, step. Gather: axes (their number). Shuffles: factors (x, y, z).
"""

from collections.abc import Iterable
from math import prod

from hexane.validate.rule import (
    Call,
    Rule,
    bottoms,
    differs_off_axis,
    inputs,
    made_of_factors,
    own,
)


def _made(c: Call, numbers: Iterable[int]) -> bool:
    """True if every number is a product of the chip's factors."""
    return all(made_of_factors(number, c.chip.extents.stride_factors) for number in numbers)


def _no_factor(c: Call, numbers: Iterable[int]) -> bool:
    return any(number not in (1, *c.chip.extents.stride_factors) for number in numbers)


def _xyz(c: Call) -> tuple[int, int, int]:
    x, y, z = (*c.get("factors", ()), 1, 1, 1)[:3]
    return x, y, z


def _view(c: Call) -> tuple[int, int, int, int]:
    extent = getattr(c.x, c.get("axis", "width"), 0)
    return extent, c.get("offset", 0), c.get("size", extent), c.get("step", 1)


GATHER = (
    inputs(2),
    own("channels of the index: got %d, need a multiple of the interleave %d",
        lambda c: c.at(1).channels % c.get("interleave", 1) != 0 and (c.at(1).channels, c.get("interleave"))),
    Rule("Invalid gather axes size %ld, must be 3", lambda c: _h13(c) and c.get("axes", 3) != 3 and (c.get("axes"),)),
    Rule("Invalid gather data tensor batch size %ld, must be 1", lambda c: _h13(c) and c.x.batch != 1 and (c.x.batch,),
         change="gather one item of the batch at a time; family A14 and later take several"),
    Rule("Invalid gather data tensor depth size %ld, must be 1", lambda c: _h13(c) and c.x.depth != 1 and (c.x.depth,)),
    Rule("Invalid gather index tensor channel size %ld, must be %ld",
         lambda c: _h13(c) and c.at(1).channels != 3 and (c.at(1).channels, 3)),
    Rule("Invalid gather index tensor width size %ld, must be 1", lambda c: _h13(c) and c.at(1).width != 1 and (c.at(1).width,)),
    own("depth of the index: got %d, need 1", lambda c: _h13(c) and c.at(1).depth != 1 and (c.at(1).depth,), source="guide ch35"),
    own("layout of the axes: got %s, need nch", lambda c: _h13(c) and c.get("layout", "nch") != "nch" and (c.get("layout"),),
        source="guide ch35"),
    Rule("Cannot decompose layer on this architecture", lambda c: _h13(c) and not c.get("decomposes", True)),
)  # fmt: skip


def _h13(c: Call) -> bool:
    return c.chip.gates.gather_check


LAYERS = {
    "Concat": (
        Rule("Concat layer must have at least 2 inputs", lambda c: len(c.types) < 2),
        Rule("ANE Concat supports only supports const positive axis", lambda c: not isinstance(c.get("axis", 0), int) or c.get("axis", 0) < 0),
        Rule("both concat inputs must have the same layout", lambda c: len(set(c.get("layouts", ()))) > 1),
        own("inputs: need the same extents along every other axis", differs_off_axis),
    ),
    "Pad": (
        inputs(1),
        Rule("Channel padding is not supported on ANE", lambda c: not set(c.get("axes", ())) <= {"height", "width"},
             change="concatenate with zeros"),
        Rule("Replication padding mode is not supported", lambda c: c.get("mode", "constant") == "edge",
             change="slice the edge, tile it and concatenate"),
        Rule("Architecture does not support padding mode.",
             lambda c: c.get("mode", "constant") in ("reflect", "symmetric") and not c.chip.gates.texture_engine,
             change="slice the margin, reverse it and concatenate"),
        own("padding mode: got wrap, which no layer has", lambda c: c.get("mode", "constant") == "wrap",
            change="slice the far side and concatenate"),
        Rule("Padding mode must be the same on all axes", lambda c: len(set(c.get("modes", ()))) > 1),
    ),
    "Tile": (
        inputs(1),
        own("factors: got %s, need products of 2, 3, 4 and 8",
            lambda c: not _made(c, c.get("factors", ())) and (c.get("factors"),), change="concatenate the copies"),
    ),
    "Broadcast": (
        inputs(1),
        own("axis: got extent %d, need 1", lambda c: (n := getattr(c.x, c.get("axis", "width"))) != 1 and (n,)),
        Rule("Broadcast along depth axis is not supported on this architecture",
             lambda c: c.get("axis", "width") == "depth" and c.chip.gates.depth_broadcast is False),
        Rule("Broadcast output tensor channel must be 1 or match input_channel size",
             lambda c: c.out is not None and c.get("axis", "width") != "channels" and c.out.channels not in (1, c.x.channels)),
    ),
    "InputView": (
        inputs(1),
        Rule("InvalidInputViewDimension", lambda c: c.get("axis", "width") not in c.x._fields),
        Rule("InvalidInputViewOffset", lambda c: not 0 <= _view(c)[1] < _view(c)[0]),
        Rule("InvalidInputViewSize", lambda c: _view(c)[2] < 1 or _view(c)[1] + _view(c)[2] > _view(c)[0]),
        Rule("InvalidInputViewStep", lambda c: _view(c)[3] == 0),
        Rule("Error: View unit cannot be a partial view with negative strides", lambda c: _view(c)[3] < 0 and _view(c)[2] != _view(c)[0]),
        own("offset of channels: got %d, need a multiple of the interleave %d",
            lambda c: c.get("axis", "width") == "channels" and _view(c)[1] % c.get("interleave", 1) != 0 and (_view(c)[1], c.get("interleave"))),
        own("need a layer like a reshape in front", lambda c: not c.get("after_reshape", True)),
    ),
    "DynamicSlice": (inputs(2),),
    "Gather": GATHER,
    "PixelShuffle": (
        inputs(1),
        Rule("returned invalid:", lambda c: _xyz(c)[2] != 1 or _no_factor(c, _xyz(c)[:2])),
        Rule("Error: PixelShuffle's channel dimension must be divisible by the product of its factors",
             lambda c: c.x.channels % max(prod(_xyz(c)), 1) != 0),
    ),
    "PixelUnshuffle": (
        inputs(1),
        Rule("PixelUnshuffle on z axis is not supported", lambda c: _xyz(c)[2] != 1),
        own("factors: got %d and %d, need 1, 2, 3, 4 or 8", lambda c: _no_factor(c, _xyz(c)[:2]) and _xyz(c)[:2]),
        Rule("Error: Input dimensions should be divisible by the PixelUnshuffle factor",
             lambda c: c.x.width % max(_xyz(c)[0], 1) != 0 or c.x.height % max(_xyz(c)[1], 1) != 0),
    ),
    "ChannelToSpace": (
        inputs(1),
        Rule("ChannelToSpace in z dimension is not supported, current factor.z = %d.", lambda c: _xyz(c)[2] != 1 and (_xyz(c)[2],)),
    ),
    "SpaceToChannel": (bottoms("SpaceToChannel layer must have only one input", 1),),
    "SpaceToBatch": (
        inputs(1),
        own("space-to-batch on z axis: got %d, need 1", lambda c: _xyz(c)[2] != 1 and (_xyz(c)[2],)),
        own("factors: got %d and %d, need products of 2, 3, 4 and 8",
            lambda c: not _made(c, _xyz(c)[:2]) and _xyz(c)[:2]),
        Rule("Error: Input dimensions should be divisible by the SpaceToBatch factor",
             lambda c: c.x.width % max(_xyz(c)[0], 1) != 0 or c.x.height % max(_xyz(c)[1], 1) != 0),
    ),
    "BatchToSpace": (
        inputs(1),
        Rule("batch-to-space on z axis is not supported", lambda c: _xyz(c)[2] != 1),
        own("factors: got %d and %d, need products of 2, 3, 4 and 8",
            lambda c: not _made(c, _xyz(c)[:2]) and _xyz(c)[:2]),
        Rule("Input batch n = %zd is not divisible by factor x = %d * factor y = %d",
             lambda c: c.x.batch % max(_xyz(c)[0] * _xyz(c)[1], 1) != 0 and (c.x.batch, *_xyz(c)[:2])),
    ),
}  # fmt: skip
