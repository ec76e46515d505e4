"""Constants that lose digits in fp16: factors and divisors near 0, reciprocals that replace divisions, and variances of
batch norms."""

from weakref import WeakKeyDictionary

import numpy as np

from hexane.graph import Array, Node, Value
from hexane.lowering.affine import Affine, normalisation
from hexane.lowering.halves import half
from hexane.targets import Verdict
from hexane.validate.rule import judged

TINY = float(np.finfo(np.float16).tiny)  # The smallest number that has all digits in fp16.
LARGEST = float(np.finfo(np.float16).max)
INVERTED = 2.0**28  # Largest product of two factors that have all digits in fp16.
MOST = 1 << 20  # Larger constants are not read.

SMALL_CONSTANT = "constants in fp16"
MOST_LOST = 2.0**-9  # Allowed relative error of a batch norm's scale, more than usual rounding.
_LOST = {"batch_norm": "variance, mean or factor", "mul": "factor", "quantize": "scale", "dequantize": "scale"}
_LOST["real_div"] = "divisor, or of its reciprocal, with which the engine multiplies"
_known: "WeakKeyDictionary[Node, tuple[bool, bool]]" = WeakKeyDictionary()
_norms: "WeakKeyDictionary[Node, bool]" = WeakKeyDictionary()


def loses_digits(node: Node) -> bool:
    """True if a factor, divisor or scale would lose digits in fp16 that a product of two factors keeps."""
    if node.op == "mul":
        return any(v is not None and _of(v)[0] for v in node.inputs)
    if node.op == "real_div":
        divisor = node.inputs[1]
        return divisor is not None and _of(divisor)[1]
    if node.op in ("quantize", "dequantize"):
        scale = node.inputs[1]
        return scale is not None and _of(scale)[0]
    if node.op == "batch_norm":
        if node not in _norms:
            _norms[node] = _norm_loses(node)
        return _norms[node]
    return False


def held_norm(node: Node) -> Affine | None:
    """The scale and shift of a batch norm of constants, if every number is within fp16's range; else None."""
    affine = normalisation(node, node.inputs[1:])
    if affine is None or not np.isfinite(affine.scale + affine.shift).all():
        return None
    return affine if all((np.abs(a) <= LARGEST).all() for a in affine[:2]) else None


def _norm_loses(node: Node) -> bool:
    """True if rounding the constants of a batch norm to fp16 changes its scale or shift, and a scale and shift without
    this error are possible. Channels whose results have few digits in fp16 anyway are ignored."""
    affine = held_norm(node)
    if affine is None or not affine.scale.size:
        return False
    constants = [None if v is None else v.node.data for v in node.inputs[1:]]
    mean, variance, gamma, beta = (
        None if a is None else half(a).astype(np.float64) for a in (*constants, None, None)[:4]
    )
    assert mean is not None
    assert variance is not None
    epsilon = float(half(np.array(node.attrs["epsilon"], np.float32)))
    with np.errstate(all="ignore"):
        scale = (1 if gamma is None else gamma) / np.sqrt(variance + epsilon)
        shift = (0 if beta is None else beta) - mean * scale
        spread = np.ones_like(affine.scale) if gamma is None else np.abs(gamma)
        kept = np.abs(scale - affine.scale) <= MOST_LOST * np.abs(affine.scale)
        kept &= np.abs(shift - affine.shift) <= MOST_LOST * np.maximum(np.abs(affine.shift), spread)
    return not bool((kept if affine.live is None else kept | ~affine.live).all())


def lost_digits(node: Node) -> Verdict | None:
    """The verdict on a native node that would lose digits of a constant; None for other nodes."""
    if not loses_digits(node):
        return None
    return judged("decomposed", f"fp16 keeps few digits of the constant {_LOST[node.op]}", SMALL_CONSTANT)


def _of(value: Value) -> tuple[bool, bool]:
    """Two answers about a constant. Does fp16 lose digits of it as a factor, because it is near 0 or beyond the range?
    Does fp16 lose digits of it, or of its reciprocal, as a divisor?"""
    node = value.node
    if node.op != "const" or value.dtype.kind != "float" or not 0 < value.type.size <= MOST:
        return False, False
    if node not in _known:
        assert node.data is not None
        size = np.abs(node.data.astype(np.float64)).ravel()
        with np.errstate(divide="ignore"):
            divisor = _lost(1 / size, LARGEST) or _lost(size[size >= 1 / INVERTED], np.inf)
            _known[node] = _lost(size, LARGEST), divisor
    return _known[node]


def _lost(size: Array, largest: float) -> bool:
    """True if fp16 loses digits of one of these numbers. `to_fp16` would clamp a constant beyond `largest`; a
    reciprocal beyond fp16 would be infinite. A single number far below fp16's range also loses digits: it would be
    rounded up, and the result would be far too large."""
    numbers = size[np.isfinite(size) & (size > 0) & (size <= INVERTED)]
    with np.errstate(over="ignore"):
        same = numbers.astype(np.float16).astype(np.float64) == numbers
    return bool((~same & ((numbers < TINY) | (numbers > largest))).any())


def two_factors(numbers: Array) -> tuple[Array, Array]:
    """Splits numbers into powers of two and factors near 1, both normal in fp16."""
    wide = numbers.astype(np.float64)
    _, exponent = np.frexp(np.where(wide == 0, 1.0, wide))
    power = np.exp2(np.clip(exponent - 1, -14, 15))
    return power.astype(numbers.dtype), (wide / power).astype(numbers.dtype)
