"""The validators of layers that multiply and accumulate, convolutions apart.

MatrixMult: pad, shared. Linear: none. SDPA: scale_constant; inputs query, key, value, scale, mask. CrossCorrelation:
groups, pad, template. CrossProduct: interleave.
"""

from math import prod

from hexane.validate.convolution import CONV, kernel_memory, padding_of
from hexane.validate.rule import FP16, Call, Found, Rule, bottoms, dims, inputs, own


def _contraction(c: Call) -> Found:
    pad = c.get("pad", 0)
    return c.x.width + pad != c.at(1).channels and (c.x.width, pad, c.at(1).channels)


def _kmem(c: Call) -> Found:
    bytes_ = c.types[0].dtype.bits // 8 if c.types and str(c.types[0].dtype) in ("int8", "uint8") else 2
    return c.x.width * bytes_ > kernel_memory(c.chip, c.get("shared", False))


MATRIX_MULT = (
    bottoms("Matrix mult. layer can only have two bottoms", 2),
    Rule("depth > 1 is not supported for MatMult", lambda c: c.x.depth > 1 or c.at(1).depth > 1, source="guide ch22",
         change="merge the leading axes into one"),
    Rule("Error: invalid output channel = %zd. Expecting it to be input A's channel dimension = %zd for MatMult",
         lambda c: c.out is not None and c.out.channels != c.x.channels and (c.out.channels, c.x.channels)),
    Rule("Error: invalid input dim : input tensor A's width (%zd) + padding (%d) != tensor B's channel (%zd)", _contraction),
    Rule("can not fit the Kmem", _kmem, source="guide ch22", kind="oversize", change="split the product along its contracted axis and add the parts"),
)  # fmt: skip

LINEAR = (
    bottoms("Linear layer must have only one single input.", 1),
    Rule("ANE cannot support Linear with input rank >= 5", lambda c: bool(c.types) and c.types[0].rank >= 5,
         change="merge the leading axes into one"),
)  # fmt: skip


def _mask(c: Call) -> bool:
    return len(c.types) == 5


SDPA = (
    bottoms("4 or 5 bottoms must be present for SDPA", 4, 5),
    bottoms("SDPA layer must have only 4 or 5(optional mask) inputs", 4, 5),
    Rule("SDPA does not currently support rank 5 operands", lambda c: any(t.rank > 4 for t in c.types[:3])),
    Rule("Q and K must have same embedding size i.e W dim", lambda c: c.x.width != c.at(1).width),
    Rule("K and V must have same sequence length i.e C dim", lambda c: c.at(1).channels != c.at(2).channels),
    own("key and value: need one shape", lambda c: c.at(1) != c.at(2)),
    Rule("Q, K and V must have same format", lambda c: len({c.format(i) for i in range(3)}) > 1),
    Rule("Scale is expected to be constant.", lambda c: not c.get("scale_constant", True)),
    Rule("Mask format must be same as Q, K and V", lambda c: _mask(c) and c.format(4) != c.format(0)),
    Rule("Mask Width axis must match K and V Channel axis", lambda c: _mask(c) and c.at(4).width != c.at(1).channels),
    Rule("Mask Channel axis must match Q Channel axis or broadcastable",
         lambda c: _mask(c) and c.at(4).channels not in (1, c.x.channels)),
)  # fmt: skip


def _template(c: Call) -> Found:
    t = c.at(1)
    size = tuple(c.get("template", (t.height, t.width)))
    return t.height != 1 or t.depth != 1 or t.width % max(prod(size), 1) != 0


CROSS_CORRELATION = (
    bottoms("Input size for Cross Correlation layer must be 2", 2),
    Rule("Cross Correlation: Num Groups must be positive", lambda c: c.get("groups", 1) <= 0),
    own("pad: got a negative one, need 0 or more", lambda c: any(p < 0 for p in padding_of(c))),
    own("template: need its pixels along the width, height and depth 1", _template),
    own("reference: smaller than the template",
        lambda c: any(n + 2 * p < t for n, p, t in zip((c.x.height, c.x.width), padding_of(c), c.get("template", (1, 1)), strict=False))),
)  # fmt: skip

CROSS_PRODUCT = (
    inputs(2),
    own("need vectors of 3 channels, depth, height and width 1",
        lambda c: any((d := dims(t.shape)).channels != 3 or d.depth * d.height * d.width != 1 for t in c.types)),
    own("interleave: got %d, need 1", lambda c: c.get("interleave", 1) != 1 and (c.get("interleave"),)),
    own("format: got %s, need fp16", lambda c: any(str(t.dtype) not in FP16 for t in c.types) and (c.format(0),)),
)  # fmt: skip

LAYERS = {
    "Conv": CONV,
    "MatrixMult": MATRIX_MULT,
    "Linear": LINEAR,
    "SDPA": SDPA,
    "CrossCorrelation": CROSS_CORRELATION,
    "CrossProduct": CROSS_PRODUCT,
}
