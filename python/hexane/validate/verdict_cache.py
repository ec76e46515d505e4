"""A cache of verdicts, and its keys."""

from collections.abc import Sequence
from typing import Any

from hexane.graph import Node
from hexane.ops import LEAVES
from hexane.targets import Chip, Verdict
from hexane.targets.floors import route_of
from hexane.targets.legality import combined
from hexane.targets.silicon import sources_of
from hexane.validate.constants import constant_inputs
from hexane.validate.rule import AXES
from hexane.validate.small_constants import loses_digits
from hexane.validate.width_slices import JOINS, joins_width_slices

JUDGED_BY = ("family", "extents", "memory", "gates", "hazards")  # the parts of a chip that rules read
MOST_KNOWN = 1 << 16
SMALL = 1024  # the most elements of a constant whose numbers decide how a node is written
# Ops whose MIL form depends on the numbers in these operands.
BY_OPERAND = {"quantize": (1,), "dequantize": (1,), "gather": (1,), "gather_along_axis": (1,), "gather_nd": (1,)}


class VerdictCache:
    """Verdicts by key, shared by all chips that have the same facts for the rules."""

    def __init__(self, chip: Chip) -> None:
        self.chip, self.route = chip, route_of(chip)
        self.kinds: dict[Any, Verdict] = {}
        self.by_rules: dict[Any, Verdict] = {}  # Verdicts without the limits of a whole program.
        self.statuses: dict[Any, Verdict] = {}
        e = chip.extents
        self.largest: dict[int, tuple[int, ...]] = {
            rank: tuple([getattr(e, axis) for axis in AXES.get(rank, ("width",) * rank)]) for rank in range(e.rank + 1)
        }

    def status(self, op: str, names: tuple[str, ...]) -> Verdict:
        """The verdict on an op that is written as these ops of MIL."""
        key = op, names
        if key not in self.statuses:
            self.statuses[key] = combined(op, names, self.chip, self.route)
        return self.statuses[key]


_looks: dict[Any, int] = {}  # Facts that rules read -> number of the facts.
_looks_of: dict[int, tuple[Chip, int]] = {}  # Id -> chip (kept alive, so that the id stays unique) and number.
_caches: dict[int, VerdictCache] = {}  # Number of the facts -> cache.


def cache_of(chip: Chip) -> VerdictCache:
    known = _looks_of.get(id(chip))
    if known is None:
        values = (*[getattr(chip, name) for name in JUDGED_BY], sources_of(chip.products))
        facts = tuple([(path, fact) for path, fact in chip.facts.items() if path.partition(".")[0] in JUDGED_BY])
        known = _looks_of[id(chip)] = chip, _looks.setdefault((values, facts), len(_looks))
    cache = _caches.get(known[1])
    if cache is None:
        cache = _caches[known[1]] = VerdictCache(chip)
    return cache


def key_of(node: Node, constant: tuple[bool, ...]) -> tuple[Any, ...]:
    """The key of a verdict: all that it depends on except the chip."""
    types = tuple([None if v is None else v.node.types[v.output] for v in node.inputs])
    return node.op, types, constant, node.types, tuple(node.attrs.values()), *beyond_types(node, constant)


def kind_of(node: Node, chip: Chip) -> tuple[Any, ...]:
    """The key of a verdict on any chip: all that it depends on, with the chip's cache for the chip."""
    return cache_of(chip), *key_of(node, constant_inputs(node))


def beyond_types(node: Node, constant: Sequence[bool]) -> tuple[Any, ...]:
    """What decides the MIL form of a node besides types and attributes: the values of small constants (for products,
    quotients and batch norms: whether fp16 keeps their digits), for a write_state its state and update, and for a
    concatenation whether it joins slices that begin inside a row."""
    if node.op == "write_state":
        return (node.inputs[0].node.op, node.inputs[1].node.op in LEAVES) if node.inputs[0] and node.inputs[1] else ()
    if node.op in ("mul", "real_div", "batch_norm"):
        return (loses_digits(node),)
    if node.op in JOINS:
        return (joins_width_slices(node),)
    operands = [(node.inputs[i], constant[i]) for i in BY_OPERAND.get(node.op, ())]
    return tuple([v if v is not None and known and v.type.size <= SMALL else None for v, known in operands])
