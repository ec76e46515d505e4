"""The values of node attributes, including epilogue slots, and how they are compared."""

from dataclasses import dataclass
from typing import Any

from hexane.graph import printer

AttrValue = Any  # bool, int, float, str, DType, EpilogueSlot, and tuples of them, as declared in the op's record
_INT = frozenset((int,))  # bool is left out: True is equal to 1


@dataclass(frozen=True, slots=True)
class EpilogueSlot:
    """An operation that a kernel applies to its accumulators before it stores them: an op of one operand with all its
    attributes, or the addition of the node's input number `operand`."""

    op: str
    attributes: tuple[tuple[str, AttrValue], ...] = ()
    operand: int | None = None

    def __str__(self) -> str:
        """Returns a text such as clip(alpha=0.0, beta=6.0), or add(3)."""
        parts = [] if self.operand is None else [str(self.operand)]
        parts += [f"{name}={printer.print_attr(value)}" for name, value in self.attributes]
        return f"{self.op}({', '.join(parts)})"


def attr_bits(value: AttrValue) -> object:
    """A key that compares attributes by their bits: -0.0 differs from 0.0, and NaN equals NaN."""
    kind = type(value)
    if kind is float:
        return value.hex()
    if kind is tuple:
        return value if _INT.issuperset(map(type, value)) else tuple([attr_bits(v) for v in value])
    if kind is EpilogueSlot:
        return (value.op, attr_bits(value.attributes), value.operand)
    return value
