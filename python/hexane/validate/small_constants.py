"""Constants of which fp16 keeps few digits, or none: factors and divisors next to 0, and the reciprocals that a
division becomes."""

from weakref import WeakKeyDictionary

import numpy as np

from hexane.graph import Array, Node, Value
from hexane.targets import Verdict
from hexane.validate.rule import judged

TINY = float(np.finfo(np.float16).tiny)  # the smallest number with all digits
LARGEST = float(np.finfo(np.float16).max)
INVERTED = 2.0**28  # above it, not even two factors with all digits make the number
MOST = 1 << 20  # elements that are looked at

SMALL_CONSTANT = "constants in fp16"
_LOST = {"mul": "factor", "quantize": "scale", "dequantize": "scale"}
_LOST["real_div"] = "divisor, or of its reciprocal, with which the engine multiplies"
_known: "WeakKeyDictionary[Node, tuple[bool, bool]]" = WeakKeyDictionary()


def loses_digits(node: Node) -> bool:
    """Whether a product or a division by a constant, or a scale, would lose digits in fp16 that two factors keep."""
    if node.op == "mul":
        return any(v is not None and _of(v)[0] for v in node.inputs)
    if node.op == "real_div":
        divisor = node.inputs[1]
        return divisor is not None and _of(divisor)[1]
    if node.op in ("quantize", "dequantize"):
        scale = node.inputs[1]
        return scale is not None and _of(scale)[0]
    return False


def lost_digits(node: Node) -> Verdict | None:
    """The verdict on a native node that would lose digits of a constant; None for others."""
    if not loses_digits(node):
        return None
    return judged("decomposed", f"fp16 keeps few digits of the constant {_LOST[node.op]}", SMALL_CONSTANT)


def _of(value: Value) -> tuple[bool, bool]:
    """Of a constant: whether fp16 loses digits of it as a factor, next to 0, and as a divisor, on either side of it or
    its reciprocal."""
    node = value.node
    if node.op != "const" or value.dtype.kind != "float" or not 0 < value.type.size <= MOST:
        return False, False
    if node not in _known:
        assert node.data is not None
        size = np.abs(node.data.astype(np.float64)).ravel()
        with np.errstate(divide="ignore"):
            divisor = _lost(1 / size, LARGEST) or _lost(size[size >= 1 / INVERTED], np.inf)
            _known[node] = _lost(size, np.inf), divisor
    return _known[node]


def _lost(size: Array, largest: float) -> bool:
    """A constant beyond the largest number stays finite (`to_fp16`), a reciprocal does not. A single number does not
    vanish either: what is far below fp16 would be far too large."""
    numbers = size[np.isfinite(size) & (size > 0) & (size <= INVERTED)]
    with np.errstate(over="ignore"):
        same = numbers.astype(np.float16).astype(np.float64) == numbers
    return bool((~same & ((numbers < TINY) | (numbers > largest))).any())


def two_factors(numbers: Array) -> tuple[Array, Array]:
    """Powers of two and numbers near 1 whose products are the numbers: both with all digits in fp16."""
    wide = numbers.astype(np.float64)
    _, exponent = np.frexp(np.where(wide == 0, 1.0, wide))
    power = np.exp2(np.clip(exponent - 1, -14, 15))
    return power.astype(numbers.dtype), (wide / power).astype(numbers.dtype)
