"""The memory of a loop's or branch's body in the C99 runtime, which lies in the arena of the surrounding plan."""

from collections.abc import Sequence

from hexane.emit.plan_view import PlanView
from hexane.graph import TensorType

_NET_BYTES = 512  # Size of the runtime's hx_net with 64-bit pointers; the loader fails if hx_net is larger.
_SPACE_BYTES = 16  # Size of an hx_memory with 64-bit pointers.
_ALIGNMENT = 16


def room_bytes(body: bytes) -> int:
    """Returns the bytes of a loaded body: its `hx_net`, its table of memories, and its arenas."""
    spaces = PlanView(body).spaces
    own = sum(space.bytes + space.alignment for space in spaces if space.kind == "arena")
    return _ALIGNMENT + _NET_BYTES + _ALIGNMENT + _SPACE_BYTES * len(spaces) + own


def carried_bytes(carried: Sequence[TensorType]) -> int:
    """Returns the bytes of a loop's carried values, each stored twice: before and after a step."""
    return sum(2 * (kind.bytes + 7) for kind in carried)
