"""Damaged containers: thousands of mutants, and Error alone comes out, with the byte in the file that it speaks of."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from containers import make_e5, make_hwx
from hexane.containers import hwx_writer, read_e5, read_hwx
from hexane.containers.task_descriptor import encode_descriptor, write_descriptors
from hexane.errors import Error

NUMBERS = (0, 1, 2, 3, 4, 7, 8, 0x19, 24, 72, 80, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip

TASKS = hwx_writer.make_hwx(4, write_descriptors([encode_descriptor({})] * 2), [("x", 64), ("y", 99)], 640)
MADE: dict[str, tuple[Callable[[bytes], Any], list[bytes]]] = {
    "hwx": (read_hwx, [make_hwx(weights=bytes(64)), make_hwx(11, [], b""), make_hwx(7, ["s2w"] * 9, bytes(8)), TASKS]),
    "e5": (read_e5, [make_e5(), make_e5(names=(), num_sections=0), make_e5(names=["n"] * 30, num_sections=9)]),
}


def mutant(whole: bytes, draw: random.Random) -> bytes:
    """With numbers exchanged, most of them in the first half, where offsets are; with a piece moved, or missing."""
    data = bytearray(whole)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        kind, at = draw.randrange(8), draw.randrange(max(1, len(data) >> draw.randrange(2)))
        size = draw.choice((1, 2, 4, 4, 8))
        if kind < 4:
            at -= at % size
            number = draw.choice((draw.choice(NUMBERS), draw.randrange(len(whole) + 9), draw.getrandbits(8 * size)))
            data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
        elif kind == 4:  # a number near the one that is there
            old = int.from_bytes(data[at : at + size], "little")
            data[at : at + size] = ((old + draw.randint(-9, 9)) % (1 << 8 * size)).to_bytes(size, "little")
        elif kind == 5:
            other = draw.randrange(max(1, len(data)))
            data[at : at + 16] = data[other : other + 16]
        elif kind == 6:
            del data[at : at + draw.choice((1, 4, 100))]
        elif draw.random() < 0.3:
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize("count", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", MADE)
def test_mutants_are_read_or_refused(kind: str, count: int) -> None:
    draw, (read, good) = random.Random(5), MADE[kind]
    num_read, refused = 0, []
    for i in range(count):
        data = mutant(good[i % len(good)], draw)
        try:
            found = read(data)
        except Error as error:
            refused.append(str(error))
            continue
        num_read += 1
        assert len(repr(found)) < 64 * (len(data) + 100)
    assert 0 < num_read < count
    assert [text for text in refused if len(text) > 3000 or not re.match(rf"\[{kind}\] byte -?\d+: ", text)] == []
