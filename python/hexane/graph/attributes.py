"""The values of node attributes, including epilogue slots: how they are compared and printed."""

from dataclasses import dataclass
from typing import Any

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
        parts += [f"{name}={print_attr(value)}" for name, value in self.attributes]
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


def print_attr(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(print_attr(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (bool, int, float)):
        return repr(value)
    return "graph" if hasattr(value, "nodes") else str(value)


def quote(name: str) -> str:
    """The name itself if it is a plain word, else in double quotes."""
    if name and name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit():
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
