"""The validators of layers that multiply and accumulate.

Conv: kernel_sizes (height, width) or (depth, height, width), strides, dilations, pad, groups, transposed, channelwise,
large_kernel. MatrixMult: pad, shared. Linear: none. SDPA: scale_constant; inputs query, key, value, scale, mask.
CrossCorrelation: groups, pad, template. CrossProduct: interleave.
"""

from collections.abc import Callable
from math import prod
from operator import gt

from hexane.targets import Chip
from hexane.validate.rule import FP16, Call, Found, Rule, bottoms, dims, fails, inputs, made_of_factors, own

ONES = ((), (1,), (1, 1), (1, 1, 1))  # strides and dilations of most layers


def kernel_memory(chip: Chip, shared: bool) -> int:
    """The bytes of weights that one layer may have on the chip. The larger memory of the shared path counts only if
    `shared` is true and the chip has this path."""
    streamed = chip.memory.streamed_kernel
    return streamed if shared and chip.gates.kernel_streaming and streamed is not None else chip.memory.kernel


def largest_kernel(chip: Chip, fp16: bool, small: bool = False) -> tuple[int, int, int]:
    """(depth, height, width) of the largest kernel. small: the smaller limit, for transposed convolutions with strides,
    and for grouped and dilated convolutions."""
    e = chip.extents
    if small:
        width = e.small_kernel_width if fp16 else e.small_kernel_width_default
        return e.small_kernel_depth, e.small_kernel_height, width
    return e.kernel_depth, e.kernel_height, e.kernel_width if fp16 else e.kernel_width_default


def _kernel(c: Call) -> tuple[int, int, int]:
    depth, height, width = (1, 1, 1, *c.get("kernel_sizes", ()))[-3:]
    return depth, height, width


def _pads(c: Call) -> tuple[int, ...]:
    return tuple(c.get("pad", (0, 0)))


def kernel_bounds(c: Call) -> Found:
    """(axis, got, least, most) for the first axis with a kernel size out of bounds."""
    kernel, strides = _kernel(c), c.get("strides", ())
    fp16 = c.format(0) not in ("int8", "uint8")
    most: tuple[int, ...] = largest_kernel(c.chip, fp16)
    if c.get("transposed", False) and strides not in ONES:
        strided = largest_kernel(c.chip, fp16, small=True)
        strides = (1, 1, 1, *strides)[-3:]
        most = tuple([few if s > 1 else many for s, few, many in zip(strides, strided, most, strict=True)])
    for i in range(3):
        if not 1 <= kernel[i] <= most[i]:
            return ("depth", "height", "width")[i], kernel[i], 1, most[i]
    return None


def _large(c: Call) -> bool:
    small = largest_kernel(c.chip, c.format(0) not in ("int8", "uint8"), small=True)
    return any(k > most for k, most in zip(_kernel(c), small, strict=True))


def _groups(c: Call) -> Found:
    groups = c.get("groups", 1)
    out = c.out.channels if c.out is not None else groups
    return bool(groups < 1 or c.x.channels % groups != 0 or out % groups != 0)


def _padded(c: Call) -> Found:
    """True if the kernel is larger than the padded input along some axis: extent + pads < dilation * (kernel - 1) +
    1."""
    kernel, dilations = _kernel(c), c.get("dilations", ())
    if c.get("transposed", False) or (dilations in ONES and not any(map(gt, kernel, c.x[2:]))):
        return False
    dilations = (1, 1, 1, *dilations)
    rank = len(c.types[0].shape) - 2 if c.types else 2
    pads = c.get("pad") or (0,) * rank
    both = len(pads) == 2 * rank  # True if each side has its own number
    for i in range(-1, -1 - rank, -1):
        pad = pads[i] + pads[i - rank] if both else 2 * pads[i]
        if c.x[i] + pad <= dilations[i] * (kernel[i] - 1):
            return True
    return False


CONV = (
    inputs(1),
    own("rank of the input: got %d, need 4 or 5", lambda c: bool(c.types) and c.types[0].rank not in (4, 5) and (c.types[0].rank,),
        source="guide ch22, listing 22.2"),
    Rule("Invalid conv kernel %s = %zd, It should be in [%zd,%zd]", kernel_bounds, source="guide ch22", kind="oversize",
         change="split the kernel, or move pixels to channels first (space_to_depth)"),
    Rule("input/output channels should be divisible by num group", _groups, source="guide ch22"),
    Rule("ChannelWise Conv must have num_groups == out_dims.c",
         lambda c: c.get("channelwise", False) and c.out is not None and c.get("groups", 1) != c.out.channels),
    Rule("ChannelWise Conv must have in_dims.c == out_dims.c",
         lambda c: c.get("channelwise", False) and c.out is not None and c.x.channels != c.out.channels),
    own("padded input: smaller than the kernel", _padded, source="guide ch22, listing 22.2"),
    Rule("Error: grouped conv with large kernel size is not supported", lambda c: c.get("groups", 1) > 1 and _large(c)),
    Rule("Error: dilated conv with large kernel size is not supported",
         lambda c: c.get("dilations", ()) not in ONES and max(c.get("dilations", ())) > 1 and _large(c)),
    own("large kernel: got %d x %d, need multiples of 8",
        lambda c: c.get("large_kernel", False) and any(k % 8 for k in _kernel(c)[1:]) and _kernel(c)[1:]),
    own("strides: got %s, need 1 or one of %s along each axis: larger ones are several convolutions",
        lambda c: _steps(c, "strides", lambda s: s in (1, *c.chip.extents.stride_factors)), kind="decomposed", source="guide ch35"),
    own("dilations: got %s, need products of %s: pixels move into the batch by these factors",
        lambda c: _steps(c, "dilations", lambda d: made_of_factors(d, c.chip.extents.stride_factors)), kind="decomposed", source="guide ch13"),
    fails("convolution of three axes", lambda c: len(c.get("kernel_sizes", ())) == 3 or c.x.depth > 1,
          source="guide ch22, table 22.5", change="split the kernel along depth into convolutions of two axes and add them"),
)  # fmt: skip


def _steps(c: Call, name: str, allowed: Callable[[int], bool]) -> Found:
    """Strides and dilations of a transposed convolution are not checked: they are no steps through its input."""
    given = tuple(c.get(name, ()))
    if given in ONES or c.get("transposed", False) or all(map(allowed, given)):
        return None
    return given, c.chip.extents.stride_factors


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
    own("pad: got a negative one, need 0 or more", lambda c: any(p < 0 for p in _pads(c))),
    own("template: need its pixels along the width, height and depth 1", _template),
    own("reference: smaller than the template",
        lambda c: any(n + 2 * p < t for n, p, t in zip((c.x.height, c.x.width), _pads(c), c.get("template", (1, 1)), strict=False))),
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
