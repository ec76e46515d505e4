"""The validator of convolutions, and the limits of kernels.

Conv: kernel_sizes (height, width) or (depth, height, width), strides, dilations, pad, groups, transposed, channelwise,
large_kernel.
"""

from collections.abc import Callable
from operator import gt

from hexane.targets import Chip
from hexane.validate.rule import Call, Found, Rule, fails, inputs, made_of_factors, own

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


def padding_of(c: Call) -> tuple[int, ...]:
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
