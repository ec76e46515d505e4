"""The validators of the texture engine's layers.

Resize: sizes, scales, axes (names), software (whether the compiler can write it as other layers). CropResize: methods
(one for each axis), crop (height, width). Resample: padding_mode, method. AffineTransform: none.
"""

from hexane.validate.rule import FP16, Call, Found, Rule, inputs, own


def _crop(c: Call) -> Found:
    most = min(c.chip.extents.width, c.chip.extents.height)
    return any(not 1 <= n <= most for n in c.get("crop", ())) and (1, most)


LAYERS = {
    "Resize": (
        inputs(1),
        own("sizes and scales: need one of them", lambda c: ("sizes" in c.attrs) == ("scales" in c.attrs) and "sizes" in c.attrs),
        own("axes: need height and width", lambda c: not set(c.get("axes", ())) <= {"height", "width"}),
        Rule("failed to map resize layer on this arch", lambda c: not c.chip.gates.texture_engine and not c.get("software", True),
             source="guide ch35"),
    ),
    "CropResize": (
        inputs(2),
        Rule("Crop Resize index format must be FP16", lambda c: c.format(1) not in FP16),
        Rule("Invalid crop_resize crop width/height size, it should be in the range of [%ld, %ld]", _crop),
        Rule("Illegal crop_resize batch sizes for index tensor and input tensor",
             lambda c: c.at(1).batch != c.x.batch and c.x.batch != 1),
        own("methods: need the same along both axes", lambda c: len(set(c.get("methods", ()))) > 1),
    ),
    "Resample": (
        inputs(2),
        own("depth of the coordinates: got %d, need 1", lambda c: c.at(1).depth != 1 and (c.at(1).depth,)),
        Rule("Channel size in coordinates should be 1 or 2", lambda c: c.at(1).channels not in (1, 2)),
        Rule("Background padding with NearestNeighbor is not supported for Resample on %s",
             lambda c: c.get("padding_mode") == "background" and c.get("method") == "nearest" and ("this chip",)),
    ),
    "AffineTransform": (
        inputs(2),
        own("matrix: got %s, need fp16", lambda c: c.format(1) not in FP16 and (c.format(1),)),
        own("matrix: got %d coefficients, need 6", lambda c: len(c.types) > 1 and _coefficients(c) != 6 and (_coefficients(c),)),
    ),
}  # fmt: skip


def _coefficients(c: Call) -> int:
    d = c.at(1)
    return d.channels * d.depth * d.height * d.width
