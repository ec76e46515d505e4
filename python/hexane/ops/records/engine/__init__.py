"""The layers of the engine, anec.*: the ops of lowered graphs, under the compiler's names where it has one.

Every layer of a netplist that has a descriptor is here, and elementwise ones, one for each kind. Each runs as ops of
users: in ieee numerics a layer is as wide inside as its accumulator, and rounds where its node says.
"""

from collections.abc import Mapping
from dataclasses import replace

from hexane.ops.records.engine import mac, movement, planar
from hexane.ops.records.engine.calls import CALLS
from hexane.ops.spec import Op


def engine_ops(user: Mapping[str, Op]) -> dict[str, Op]:
    """The records by name. Many mean the same as an op of users, and are derived from its record."""
    ops = (op for family in (mac, planar, movement) for op in family.ops(user))
    return {op.name: replace(op, call=CALLS.get(op.name)) for op in ops}
