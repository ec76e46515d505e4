"""The engine's layers, anec.*: the ops of lowered graphs, with the compiler's names for layers that it names.

Every layer of a netplist with a descriptor has an op, and each kind of elementwise layer has its own op. Each engine
layer is defined by ops of users. In ieee numerics, a layer computes in the precision of its accumulator, and rounds
where its node says.
"""

from collections.abc import Mapping
from dataclasses import replace

from hexane.ops.records.engine import mac, movement, planar
from hexane.ops.records.engine.calls import CALLS
from hexane.ops.spec import Op


def engine_ops(user: Mapping[str, Op]) -> dict[str, Op]:
    """Returns the records by name. Many layers are derived from the record of an equal op of users."""
    ops = (op for family in (mac, planar, movement) for op in family.ops(user))
    return {op.name: replace(op, call=CALLS.get(op.name)) for op in ops}
