"""Finds the chains of at most four moves that read a tensor in another order and that a chip accepts.

Chips refuse some transposes and reshapes; `reorders.py` lists the candidates.
"""

from collections.abc import Sequence

from hexane.graph import TensorType, Value, tensor_type
from hexane.ops.records.engine.calls import as_fp16
from hexane.passes.engine.chain import refused_reshape
from hexane.passes.engine.legalize.split_transposes import is_valid_ne_transpose_configuration
from hexane.passes.engine.moves import MOVES, Step, shape_behind, step_of
from hexane.passes.engine.reorders import parts_of, reorders
from hexane.targets import Chip
from hexane.validate import validate
from hexane.validate.extents import fits
from hexane.validate.verdict_cache import cache_of

MOST_KNOWN = 1 << 15
_known: dict[tuple[int, TensorType, Step], TensorType | None] = {}  # The type after each step, None if refused.


def traced(value: Value, more: Sequence[Step] = ()) -> tuple[Value, list[Step]]:
    """Returns (source, steps): the chain of moves that ends in the value, followed by the steps in `more`. The chain
    starts at the farthest value from which `parts_of` can still describe it."""
    steps, result = list(more), (value, list(more))
    while value.node.op in MOVES and value.node.inputs[0] is not None:
        steps.insert(0, step_of(value.node))
        value = value.node.inputs[0]
        if parts_of(value.shape, tuple(steps)) is None:
            break
        result = (value, list(steps))
    return result


def ways(source: TensorType, steps: Sequence[Step], chip: Chip) -> list[tuple[Step, ...]]:
    """Returns the chains of at most four moves that read the source in this order and that the chip accepts.

    Each chain has a transpose, with a reshape before it, after it, or both. A second transpose may begin the chain and
    put channels last, or end the chain and exchange rows and columns. The list may be empty.
    """
    shape = shape_behind(tuple(source.shape), steps)
    parts = parts_of(tuple(source.shape), tuple(steps))
    if parts is None or 0 in shape:
        return []
    return [way for way in reorders(tuple(source.shape), parts, shape) if _is_legal(source, way, chip)]


def _is_legal(source: TensorType, way: Sequence[Step], chip: Chip) -> bool:
    rules = id(cache_of(chip))  # chips with equal rules share a cache; caches are never freed: ids are unique
    for step in way:
        key = (rules, source, step)
        taken = _known.get(key, source)
        if taken is source:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            taken = _known[key] = _taken(source, step, chip)
        if taken is None:
            return False
        source = taken
    return True


def _taken(source: TensorType, step: Step, chip: Chip) -> TensorType | None:
    """Returns the type after the step, or None if the chip refuses the step."""
    kind, values = step
    if kind == "reshape":
        result = tensor_type(source.dtype, values)
        refused = bool(refused_reshape(source, values, chip))
    else:
        result = tensor_type(source.dtype, tuple(source.shape[p] for p in values))
        refused = not is_valid_ne_transpose_configuration(source, values, chip)
        refused = refused or bool(validate("Transpose", (as_fp16(source),), {"perm": values}, chip, as_fp16(result)))
    return None if refused or not fits(result, chip) else result
