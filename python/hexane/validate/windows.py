"""The validators of pooling, of reductions, and of layers that find extremes. The main parameters of each layer:

Pool: kernel_sizes (height, width) or (depth, height, width), strides, pad (before and after each axis, or one number
each for height and width), dilations, mode ("max", "min", "average", "l2"), padding_mode. Reduction: axis (0 to 4),
square. ArgMinMax: axes ("channels", "spatial"), kernel_sizes, strides, pad (left, right, top, bottom, front, back).
GlobalArgMinMax: mode (1 or 2), dimension. Sort, TopK: k, direction. NMS: boxes, scores. RingBufferWriter: live_state.
"""

from hexane.validate.rule import Call, Found, Rule, bottoms, fails, inputs, own

PADDING = {"max": ("negative",), "min": ("positive",), "l2": ("replication", "zero"), "average": ()}


def _kernel(c: Call, default: int = 1) -> tuple[int, int]:
    height, width = (default, default, *c.get("kernel_sizes", ()))[-2:]
    return height, width


def _pads(c: Call) -> tuple[int, int, int, int]:
    """(top, bottom, left, right)"""
    given = tuple(c.get("pad", (0,)))
    if len(given) < 4:
        height, width = (given * 2)[:2]
        return height, height, width, width
    top, bottom, left, right = given[-4:]
    return top, bottom, left, right


def _windows(c: Call) -> list[tuple[int, int, int, int]]:
    """(kernel, pad before, pad after, extent) of depth, height and width."""
    kernel, pad = tuple(c.get("kernel_sizes", ())), tuple(c.get("pad", ()))
    depth = kernel[0] if len(kernel) == 3 else 1
    front, back = pad[:2] if len(pad) == 6 else (0, 0)
    top, bottom, left, right = _pads(c)
    height, width = _kernel(c)
    x = c.x
    return [(depth, front, back, x.depth), (height, top, bottom, x.height), (width, left, right, x.width)]


def _pool_axis(c: Call, axis: int, extent: int) -> Found:
    most = c.chip.extents.pool_window
    got = _kernel(c)[axis]
    return most is not None and not 1 <= got <= most and got != extent and (got, most, extent)


def _pool_pad(c: Call) -> Found:
    return any(max(before, after) >= kernel for kernel, before, after, _ in _windows(c))


def _pool_beyond(c: Call) -> Found:
    return any(kernel > extent + before + after for kernel, before, after, extent in _windows(c))


def _pool_padding(mode: str) -> "Rule":
    words = {"max": "MaxPool padding mode must be Negative", "min": "MinPool padding mode must be Positive",
             "l2": "L2Pool padding mode must be Replication or Zero"}  # fmt: skip
    return Rule(
        words[mode],
        lambda c: (
            c.get("mode", "max") == mode
            and any(_pads(c))
            and c.get("padding_mode", PADDING[mode][0]) not in PADDING[mode]
        ),
    )


POOL = (
    bottoms("Pool layer must have only one single input.", 1),
    Rule('Pooling mode "%s" is not available on this ANE architecture.',
         lambda c: c.get("mode", "max") not in PADDING and (c.get("mode"),)),
    Rule("Invalid Pool kernel width (%zd), must be [1-%zd] or %zd", lambda c: _pool_axis(c, 1, c.x.width),
         change="pool twice with smaller windows", kind="oversize"),
    Rule("Invalid Pool kernel height (%zd), must be [1-%zd] or %zd", lambda c: _pool_axis(c, 0, c.x.height), published=False,
         change="pool twice with smaller windows", kind="oversize"),
    own("pad: got as much as the window, need less", _pool_pad),
    own("window: larger than the padded input", _pool_beyond),
    _pool_padding("max"),
    _pool_padding("min"),
    _pool_padding("l2"),
    Rule("Pool with strides of 3 is only supported with Avg mode",
         lambda c: 3 in tuple(c.get("strides", ())) and c.get("mode", "max") != "average",
         change="pool with a stride of 1 and slice every third"),
    own("dilations: got %s, need 1", lambda c: any(d > 1 for d in c.get("dilations", ())) and (c.get("dilations"),)),
)  # fmt: skip


def _reduced(c: Call) -> Found:
    axes = {int(c.get("axis", 0))} if "axis" in c.attrs else None
    if axes is None or c.out is None:
        return None
    return any((o != 1) if i in axes else (o != n) for i, (n, o) in enumerate(zip(c.x, c.out, strict=True)))


REDUCTION = (
    bottoms("Reduction layer can only have one bottom", 1),
    own("axis: got %d, need 0 to 4", lambda c: not 0 <= c.get("axis", 0) <= 4 and (c.get("axis"),)),
    own("output: need 1 along the reduced axis and the input's extents along the others", _reduced),
    Rule("square operation after reduction is not supported",
         lambda c: c.get("square", False) and c.chip.facts["gates.square_after_reduction"].value is False and _byte_494(c)),
)  # fmt: skip


def _byte_494(c: Call) -> bool:
    """True unless a claim with the status "decoded" says that the chip's byte 0x494 is set. If it is set, the validator
    accepts the layer. The gate is false on such a chip because the byte changes nothing on silicon."""
    decoded = [
        claim.value for claim in c.chip.facts["gates.square_after_reduction"].claims if claim.status == "decoded"
    ]
    return not any(decoded)


def _sides(c: Call) -> tuple[int, int, int, int, int, int]:
    left, right, top, bottom, front, back = (*c.get("pad", ()), 0, 0, 0, 0, 0, 0)[:6]
    return left, right, top, bottom, front, back


ARG_MIN_MAX = (
    bottoms("ArgMinMax layer must have one input", 1),
    Rule("ArgMinMax left padding value should be smaller than kernel width %d, but %d is given",
         lambda c: _sides(c)[0] >= _kernel(c)[1] and _sides(c)[0] > 0 and (_kernel(c)[1], _sides(c)[0])),
    own("pad: got a negative one, need 0 or more", lambda c: min(_sides(c)) < 0),
    Rule("Invalid ArgMinMax pool stride x:%d, must be within [1, 2, 4]",
         lambda c: next(((s,) for s in c.get("strides", ()) if s not in (1, 2, 4)), None)),
    Rule("ArgMinMax must have equal left and right padding, but left:%d and right:%d are given",
         lambda c: _sides(c)[0] != _sides(c)[1] and _sides(c)[:2]),
    Rule("ArgMinMax must have equal top and bottom padding, but top:%d and bot:%d are given",
         lambda c: _sides(c)[2] != _sides(c)[3] and _sides(c)[2:4]),
    Rule("ArgMinMax must have zero front and back padding, but front:%d and back:%d are given",
         lambda c: any(_sides(c)[4:]) and _sides(c)[4:]),
    own("channels: got %d, need at most %d: fp16 counts exactly to there",
        lambda c: _arg_extent(c, "channels", c.x.channels), change="split the axis and compare the parts", kind="oversize"),
    own("height or width: got %d, need at most %d: fp16 counts exactly to there",
        lambda c: _arg_extent(c, "spatial", max(c.x.height, c.x.width)), change="split the axis and compare the parts", kind="oversize"),
)  # fmt: skip


def _arg_extent(c: Call, axes: str, extent: int) -> Found:
    most = c.chip.extents.arg_extent
    return most is not None and c.get("axes", "channels") == axes and extent > most and (extent, most)


GLOBAL_ARG = (
    inputs(1),
    own("mode: got %s, need 1 or 2", lambda c: c.get("mode", 1) not in (1, 2) and (c.get("mode"),)),
    own("dimension: got 5, need another", lambda c: c.get("dimension", 0) == 5),
)

SORTED = ("fp16", "uint16")

LAYERS = {
    "Pool": POOL,
    "Reduction": REDUCTION,
    "ArgMinMax": ARG_MIN_MAX,
    "GlobalArgMinMax": GLOBAL_ARG,
    "Sort": (
        inputs(1),
        own("direction: got %s, need ascending or descending",
            lambda c: c.get("direction", "ascending") not in ("ascending", "descending") and (c.get("direction"),)),
        Rule("Sort unit output format must be FP16 or Uint16", lambda c: c.output is not None and c.output_format not in SORTED),
        Rule("Sort/TopK layer's vector_dimension size exceeds the record limit",
             lambda c: c.get("record_limit") is not None and c.get("vector_size", 1) > c.get("record_limit")),
    ),
    "TopK": (
        inputs(1),
        own("k: got %d, need 1 to %d",
            lambda c: c.get("extent") is not None and not 1 <= c.get("k", 1) <= c.get("extent") and (c.get("k"), c.get("extent"))),
        Rule("TopK unit output format must be FP16 or Uint16", lambda c: c.output is not None and c.output_format not in SORTED),
        fails("k: got %d, need another number than 3 and 4", lambda c: c.get("k", 1) in (3, 4) and (c.get("k"),),
              change="ask for the 5 largest and slice"),
    ),
    "NMS": (
        own("got %d inputs, need boxes and scores", lambda c: len(c.types) < 2 and (len(c.types),)),
        Rule("NMS Boxes batch must equal Scores batch", lambda c: c.x.batch != c.at(1).batch),
        Rule("NMS Boxes channels must be %zd", lambda c: c.x.channels != 4 and (4,)),
        Rule("NMS Boxes width must equal Scores width", lambda c: c.x.width != c.at(1).width),
        own("height: got %d, need 1", lambda c: c.x.height != 1 and (c.x.height,)),
        Rule("NMS output format must be either Float 16 or UInt 16", lambda c: c.output is not None and c.output_format not in SORTED),
    ),
    "RingBufferWriter": (
        inputs(2),
        own("need a buffer of state that is alive", lambda c: not c.get("live_state", True)),
        Rule("Circular buffer is not supported on this architecture", lambda c: c.get("circular", False) and c.chip.gates.gather_check),
    ),
    "FurthestPointSampling": (
        inputs(1),
        own("points: got %d, need at most 8192", lambda c: c.get("points", 0) > 8192 and (c.get("points"),)),
        own("centroids: got %d, need at most 1024", lambda c: c.get("centroids", 1) > 1024 and (c.get("centroids"),)),
        own("distance: got %s, need l2", lambda c: c.get("distance", "l2") != "l2" and (c.get("distance"),)),
    ),
    "RadiusSearch": (
        inputs(2),
        own("need points of depth 1, 3 channels and height 1",
            lambda c: any((c.at(i).depth, c.at(i).channels, c.at(i).height) != (1, 3, 1) for i in range(len(c.types)))),
    ),
    "CostVolume": (
        inputs(2),
        own("width of the reference: got %d, need %d or more",
            lambda c: c.at(1).width < c.x.width + c.get("range", 0) and (c.at(1).width, c.x.width + c.get("range", 0))),
    ),
    "MatrixDecomposition": (inputs(1),),
}  # fmt: skip
