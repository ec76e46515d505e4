"""What can be wrong with the blocks of `packed_plan`: a change of its sections, and what the host's loader says of
it."""

from collections.abc import Callable
from typing import Any


def moved(row: int, **fields: int) -> Callable[[dict[str, Any]], None]:
    def change(sections: dict[str, Any]) -> None:
        for name, value in fields.items():
            sections["blocks"][row][name] = value

    return change


def cut_short(sections: dict[str, Any]) -> None:
    sections["packed"] = sections["packed"][:-1]
    sections["blocks"][1]["packed_bytes"] -= 1


def with_more(sections: dict[str, Any]) -> None:
    sections["packed"] += b"\0"


def without_blocks(sections: dict[str, Any]) -> None:
    sections["blocks"] = sections["blocks"][:0]


def with_a_longer_first(sections: dict[str, Any]) -> None:
    sections["blocks"][0]["num_steps"] = 3


WRONG = {
    "another codec": (moved(0, codec=1), "codec: got .*, need lz4"),
    "no string": (moved(0, codec=10_000), "codec: got string 10000"),
    "no arena": (moved(0, arena=1), "need one of kind arena"),
    "no space": (moved(0, arena=99), "need one of kind arena"),
    "behind the arena": (moved(0, arena_offset=129), "in the arena"),
    "far behind the arena": (moved(0, arena_offset=2**64 - 64), "in the arena"),
    "over a result": (moved(0, arena_offset=16), "bytes of the arena in which packed weights are"),
    "over the plain weights": (moved(0, offset=0), "offset: got 0"),
    "over another block": (moved(1, offset=128), "offset: got 128"),
    "behind the weights": (moved(1, bytes=65), "in the weights"),
    "nothing": (moved(0, bytes=0), "bytes: got 0"),
    "more than LZ4 can give": (moved(1, bytes=256 * 256, arena_offset=0), "in the arena"),
    "packed elsewhere": (moved(1, packed=0), "packed: got 0"),
    "packed outside": (moved(1, packed=2**63), "packed: got"),
    "other bytes": (moved(0, bytes=124), "literals|match|got"),
    "unpacked too late": (moved(0, first_step=1, num_steps=1), "not in a block unpacked for this step"),
    "gone too soon": (moved(0, num_steps=1), "not in a block unpacked for this step"),
    "no step": (moved(0, num_steps=0), "steps: got"),
    "steps that are not there": (moved(1, num_steps=9), "steps: got"),
    "out of order": (moved(1, first_step=0), "bytes of the arena in which another block is|in a block"),
    "at the same time in the same place": (with_a_longer_first, "bytes of the arena in which another block is"),
    "an end that is missing": (cut_short, "need|got"),
    "bytes that belong to none": (with_more, "packed: got"),
    "packed bytes without blocks": (without_blocks, "weights: got 64 bytes"),
}  # fmt: skip
