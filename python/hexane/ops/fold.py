"""Constant folding: evaluates a node of constant operands by its record."""

from math import prod
from typing import Any

from hexane.errors import Error
from hexane.graph import Node, Value, constant
from hexane.ops import LEAVES, OPS, evaluate
from hexane.ops.compose import Builder, Operand, lift
from hexane.ops.valid_lengths import apply
from hexane.system.limits import MAX_GROWTH_BYTES, MAX_WINDOW_BYTES


class Folder(Builder):
    """A builder that folds constants. limited: does not fold a node whose result is too large. aligned: as in
    `valid_lengths.apply`."""

    __slots__ = ("_aligned", "_limited")

    def __init__(self, *sources: str, limited: bool = True, aligned: bool = False) -> None:
        super().__init__(*sources)
        self._limited, self._aligned = limited, aligned

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        values = apply(OPS[name], lift(inputs, self.sources), attrs, self.sources, self._aligned)
        return fold_node(values[0].node, self._limited) or values


def fold_node(node: Node, limited: bool = True) -> tuple[Value, ...] | None:
    """Returns constants for the node's outputs, or None if an operand is no constant, or if `limited` and a result is
    too large.

    Raises Error if the op raises it for these operands.
    """
    if node.op in LEAVES or any(v is not None and v.node.op != "const" for v in node.inputs):
        return None
    if OPS[node.op].every_call:
        return None
    result_bytes = sum(t.bytes for t in node.types)
    operand_bytes = sum(v.type.bytes for v in node.inputs if v is not None)
    taps = prod(node.attrs.get("kernel_sizes", ()))
    # A result above the limit may be at most four times as large as its operands, so broadcasts are left to run time.
    is_bloat = result_bytes > max(MAX_GROWTH_BYTES, 4 * operand_bytes) or taps * result_bytes > MAX_WINDOW_BYTES
    if limited and is_bloat:
        return None
    op = OPS[node.op]
    if op.expand is not None and not op.kernel:  # Folds the expansion, because a ref may loop over elements.
        result = op.expand(Folder(*node.sources, limited=limited), *node.inputs, **node.attrs)
        values = (result,) if isinstance(result, Value) else tuple(result)
        return values if all(v.node.op == "const" for v in values) else None
    arrays = [None if v is None else v.node.data for v in node.inputs]
    try:
        results = evaluate(node, arrays)
    except MemoryError:
        if not limited:
            raise
        return None
    except (Error, ValueError) as error:
        raise Error(f"[{node.where}] {error}") from None
    return tuple(constant(array, node.sources) for array in results)
