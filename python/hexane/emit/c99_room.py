"""The room of a loop or branch in the C99 runtime: memory in the arena of the plan around it, for the body's own."""

from collections.abc import Sequence

from hexane.emit.plan_view import PlanView
from hexane.graph import TensorType

_NET_BYTES = 512  # of the runtime's hx_net, where pointers have 64 bits; the loader says if it needs more
_SPACE_BYTES = 16  # of an hx_memory there
_ALIGNMENT = 16


def room_bytes(body: bytes) -> int:
    """Memory of a loaded body: its `hx_net`, its table of memories, and its arenas."""
    spaces = PlanView(body).spaces
    own = sum(space.bytes + space.alignment for space in spaces if space.kind == "arena")
    return _ALIGNMENT + _NET_BYTES + _ALIGNMENT + _SPACE_BYTES * len(spaces) + own


def carried_bytes(carried: Sequence[TensorType]) -> int:
    """Two of each carried value of a loop: before a step, and after it."""
    return sum(2 * (kind.bytes + 7) for kind in carried)
