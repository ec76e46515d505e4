"""The validators of normalisations.

axes: names ("batch", "channels", "depth", "height", "width") of the axes that are normalised over. LayerNorm:
num_groups. LRN: kernel_sizes (channels, height, width). BatchNorm: kernel, True if the layer has gains and offsets.
"""

from hexane.validate.rule import FLOATS, Call, Found, Rule, bottoms, fails, inputs, own

SPATIAL = {"depth", "height", "width"}


def _float_output(c: Call) -> bool:
    return c.output is not None and c.output_format not in FLOATS


def _groups(c: Call) -> Found:
    groups = c.get("num_groups", 1)
    return (groups < 1 or c.x.channels % groups != 0) and (c.x.channels, groups)


def _window(c: Call) -> tuple[int, int, int]:
    channels, height, width = c.get("kernel_sizes", (1, 1, 1))
    return channels, height, width


LAYERS = {
    "BatchNorm": (
        bottoms("BatchNorm layer must have only one single input", 1),
        Rule("BatchNorm must have kernel", lambda c: not c.get("kernel", True), source="placement study"),
        Rule("BatchNorm output tensor must be in Float format", _float_output, source="placement study"),
    ),
    "InstanceNorm": (
        inputs(1),
        own("axes: got more than height and width, need spatial ones", lambda c: not set(c.get("axes", ())) <= SPATIAL),
        Rule("InstanceNorm output tensor must be in Float format", _float_output),
    ),
    "LayerNorm": (
        inputs(1),
        Rule("LayerNorm input channels %zd must be divisible by num_groups (Specified: %zd)", _groups),
        Rule("... does not yet support depth > 1", lambda c: c.get("num_groups", 1) > 1 and c.x.depth > 1),
        Rule("LayerNorm output tensor format must be Float (Specified %s)", lambda c: _float_output(c) and (c.output_format,)),
    ),
    "L2Norm": (
        inputs(1),
        Rule("Error: L2 norm output tensor format must be Float16", lambda c: c.output is not None and c.output_format not in FLOATS),
        Rule("L2 norm does not support batch axis", lambda c: "batch" in c.get("axes", ())),
    ),
    "LRN": (
        inputs(1),
        Rule("LRN height and width kernel dimensions must be 1. Height: %zd, Width: %zd",
             lambda c: _window(c)[1:] != (1, 1) and _window(c)[1:]),
        Rule("LRN Channel count must be greater than kernel channel. Channel: %zd, Kernel Depth: %zd",
             lambda c: c.x.channels <= _window(c)[0] and (c.x.channels, _window(c)[0])),
        Rule("Tensor depth must be 1 for a channelwise LRN. Depth: %zd", lambda c: c.x.depth != 1 and (c.x.depth,)),
        fails("channels: got %d, need less than 16", lambda c: c.chip.gates.gather_check and c.x.channels >= 16 and (c.x.channels,),
              change="write it as a square, an average pool over channels, a power and a division"),
    ),
    "MinMaxNorm": (
        inputs(1),
        Rule("Min/max norm layer does not support batch/channel axis", lambda c: not {"batch", "channels"}.isdisjoint(c.get("axes", ()))),
    ),
    "Softmax": (
        inputs(1),
        own("axes: got none, need one", lambda c: not c.get("axes", ("channels",))),
        Rule("Softmax output tensor must be in Float format", _float_output),
    ),
}  # fmt: skip
