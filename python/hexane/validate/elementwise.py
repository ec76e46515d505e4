"""Validators of elementwise layers, activations, types, and random numbers.

ScaledElementWise: kind ("add", "mult", "max", "min", "sum_square"). Neuron: mode (1 to 46), limit (of a limited ReLU).
Quant and DeQuant: zero_point, blockwise, per_channel. Dropout: rate. Random: low, high. GOC: gains and offsets as
further inputs. KernelRasterizer: identity.
"""

from hexane.validate.rule import Call, Found, Rule, own


def _between(c: Call, low: int, high: int) -> Found:
    return not low <= len(c.types) <= high and (len(c.types),)


def _mode(c: Call) -> Found:
    mode = c.get("mode", 1)
    return not 1 <= mode <= 46 and (mode,)


STUDY = "placement study"
KINDS = ("add", "mult", "max", "min", "sum_square")

LAYERS = {
    "ElementWise": (own("got %d inputs, need 1 or 2", lambda c: _between(c, 1, 2)),),
    "ScaledElementWise": (
        Rule("Scaled Elementwise must have 1 or 2 input", lambda c: bool(_between(c, 1, 2))),
        own("kind: got %s, need add, mult, max, min or sum_square",
            lambda c: c.get("kind", "add") not in KINDS and (c.get("kind"),), change="add the negative"),
    ),
    "GOC": (
        own("got %d inputs, need 1 and constants for gain and offset", lambda c: _between(c, 1, 3)),
        own("gain and offset: got height %d, need 1",
            lambda c: any(c.at(i).height != 1 for i in range(1, len(c.types))) and (c.at(1).height,)),
    ),
    "DynamicGOC": (
        own("got %d inputs, need 2 or 3", lambda c: _between(c, 2, 3)),
        own("channels: got %d, need 1, 2, 3, 4 or 8", lambda c: c.x.channels not in (1, 2, 3, 4, 8) and (c.x.channels,)),
    ),
    "Neuron": (
        own("got %d inputs, need 1", lambda c: _between(c, 1, 1)),
        Rule("This platform doesn't support Neuron %s", _mode),
        own("limit: got %s, need a positive number", lambda c: c.get("limit", 1) <= 0 and (c.get("limit"),)),
    ),
    "Dropout": (
        own("got %d inputs, need 1", lambda c: _between(c, 1, 1)),
        own("rate: got %s, need 0 or more, and less than 1", lambda c: not 0 <= c.get("rate", 0) < 1 and (c.get("rate"),)),
    ),
    "Random": (
        own("got %d inputs, need none", lambda c: _between(c, 0, 0)),
        own("low and high: got %s and %s, need low below high",
            lambda c: c.get("low", 0) >= c.get("high", 1) and (c.get("low", 0), c.get("high", 1))),
        own("output: got %s, need int8, uint8 or fp16",
            lambda c: c.output is not None and c.output_format not in ("int8", "uint8", "fp16") and (c.output_format,)),
    ),
    "Quant": (
        own("got %d inputs, need 1", lambda c: _between(c, 1, 1)),
        Rule("Quant layer must have fp16 or fp32 input format", lambda c: c.format(0) not in ("fp16", "fp32"), source=STUDY),
        Rule("Quant layer must have int8, uint8, e4m3 or e5m2 output format",
             lambda c: c.output is not None and c.output_format not in ("int8", "uint8", "fp8e4m3", "fp8e5m2"), source=STUDY),
        Rule("Zero point is not supported for quant with E4M3 output format",
             lambda c: c.output_format == "fp8e4m3" and c.get("zero_point", 0) != 0, source=STUDY),
        Rule("Asym quantization is not supported",
             lambda c: c.output_format == "int8" and c.get("zero_point", 0) != 0, source=STUDY, change="use a zero point of 0"),
    ),
    "DeQuant": (
        own("got %d inputs, need 1", lambda c: _between(c, 1, 1)),
        Rule("Dequant layer must have fp16 output format",
             lambda c: c.output is not None and c.output_format != "fp16", source=STUDY),
        Rule("Dequant layer must have int8, uint8, int4 or e4m3 input format",
             lambda c: c.format(0) not in ("int8", "uint8", "int4", "fp8e4m3"), source=STUDY),
        Rule("ANE doesn't support blockwise scale", lambda c: c.get("blockwise", False), source=STUDY),
        Rule("Int4 Per-Cout Dequant is not supported",
             lambda c: c.format(0) == "int4" and c.get("per_channel", False), source=STUDY),
    ),
    "KernelRasterizer": (own("only the rasterizer that changes nothing compiles", lambda c: not c.get("identity", False)),),
}  # fmt: skip
