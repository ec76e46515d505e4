"""Plans written by hand, row by row: what the tests of reader, writer and executor feed them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hexane import _core
from hexane.program.attrs import Strings, pack
from kernels import layouts, with_slots

DTYPES = _core.plan_dtypes()
BITS = _core.dtypes()
ABSENT = 0xFFFFFFFF
BIG = (64, 1024, 16)  # worth more than one thread


def in_one(pieces: Sequence[tuple[int, Any]]) -> Any:
    """A section that is in pieces as one array."""
    data = np.zeros(pieces[-1][0], np.uint8)
    for begin, piece in pieces:
        data[begin : begin + piece.size] = piece
    return data


def dtype_is_row(name: str) -> bool:
    """Whether rows of the section have fields."""
    return DTYPES[name].names is not None


class PlanBuilder:
    """Rows are added in any order; every method that adds one gives its number."""

    def __init__(self) -> None:
        self.strings = Strings()
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in DTYPES}
        self.attrs = b""
        self.weights = b""
        self.packed = b""
        self.state = b""

    def _add(self, section: str, *fields: Any) -> int:
        self.rows[section].append(fields)
        return len(self.rows[section]) - 1

    def space(self, kind: str, size: int, name: str | None = None, limit: int = 0, alignment: int = 1) -> int:
        return self._add("spaces", self.strings.add(name or kind), self.strings.add(kind), size, limit, alignment)

    def tensor(
        self,
        space: int,
        shape: Sequence[int],
        dtype: str = "fp32",
        offset: int = 0,
        strides: Sequence[int] | None = None,
        name: str = "",
        ring: int = 0,
    ) -> int:
        if strides is None:
            strides = [BITS[dtype] // 8 * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        pad = [0] * (8 - len(shape))
        ids = (self.strings.add(name), self.strings.add(dtype), 0)
        return self._add("tensors", *ids, space, offset, len(shape), ring, [*shape, *pad], [*strides, *pad])

    def step(
        self,
        kernel: str,
        inputs: Sequence[int | None],
        outputs: Sequence[int],
        cut: tuple[int, int, int] = (-1, 0, 0),
        numerics: str = "ieee",
        device: str = "cpu",
        **attrs: Any,
    ) -> int:
        packed = pack(layouts().get(kernel, ""), with_slots(attrs), self.strings)
        first = len(self.rows["operands"])
        self.rows["operands"] += [(ABSENT if i is None else i,) for i in (*inputs, *outputs)]
        texts = [self.strings.add(text) for text in (kernel, device, f"step {len(self.rows['steps'])}")]
        ids = [texts[0], self.numerics(numerics), *texts[1:]]
        counts = (len(inputs), len(outputs), len(packed))
        self.attrs += packed
        return self._add("steps", *ids, first, *counts, len(self.attrs) - len(packed), *cut)

    def numerics(self, family: str, name: str = "") -> int:
        """The row of the arithmetic, each once."""
        row = (self.strings.add(name or family), self.strings.add(family), 0, 0)
        rows = self.rows["numerics"]
        return rows.index(row) if row in rows else self._add("numerics", *row)

    def port(
        self,
        side: str,
        name: str,
        shape: Sequence[int],
        dtype: str = "fp32",
        length: int = 0,
        axis: int = 0,
        streamed: int = 0,
    ) -> int:
        """A port of `side` "inputs" or "outputs" with a space of its own; gives its tensor."""
        space = self.space("port", BITS[dtype] // 8 * int(np.prod(shape)), name)
        tensor = self.tensor(space, shape, dtype, name=name)
        self._add(side, self.strings.add(name), self.strings.add(name), tensor, length, axis, streamed)
        return tensor

    def loop(self, first: int, trips: int, moves: Sequence[int]) -> int:
        """A loop over the steps from `first` on, one for each of `moves`."""
        at = len(self.rows["moves"])
        self.rows["moves"] += [(move,) for move in moves]
        return self._add("loops", first, len(moves), trips, at)

    def block(
        self, offset: int, packed: bytes, size: int, arena: int, arena_offset: int, first: int, steps: int
    ) -> int:
        """Weights that are unpacked to an arena; their packed bytes go behind those of the block before."""
        self.packed += packed
        place = (offset, size, len(self.packed) - len(packed), len(packed))
        return self._add("blocks", *place, arena_offset, arena, self.strings.add("lz4"), first, steps)

    def sections(self) -> dict[str, Any]:
        rows = {
            name: np.array(rows, DTYPES[name]).reshape(-1) for name, rows in self.rows.items() if dtype_is_row(name)
        }
        numbers = {
            name: np.array(self.rows[name], dtype).reshape(-1)
            for name, dtype in DTYPES.items()
            if not dtype_is_row(name)
        }
        strings = self.strings.tobytes()
        attrs = np.frombuffer(self.attrs, np.uint8).copy()
        return {
            **rows,
            **numbers,
            "strings": strings,
            "attrs": attrs,
            "weights": self.weights,
            "packed": self.packed,
            "state": self.state,
        }

    def tobytes(self) -> bytes:
        return _core.plan_write(self.sections())


def copy_plan(shape: Sequence[int] = (3, 4), dtype: str = "fp32") -> PlanBuilder:
    """y = x, by way of the arena."""
    plan = PlanBuilder()
    x = plan.port("inputs", "x", shape, dtype)
    arena = plan.space("arena", max(64, BITS[dtype] // 8 * int(np.prod(shape))))
    middle = plan.tensor(arena, shape, dtype)
    y = plan.port("outputs", "y", shape, dtype)
    plan.step("copy", [x], [middle])
    plan.step("copy", [middle], [y])
    return plan


def counting_plan() -> PlanBuilder:
    """y = where x is not zero, n columns of it; x two by three."""
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (2, 3))
    y = plan.port("outputs", "y", (2, 6), "int64", length=2, axis=1)
    n = plan.port("outputs", "n", (), "int64")
    plan.step("non_zero", [x], [y, n])
    return plan


def many_sided_plan() -> PlanBuilder:
    """y = transpose of x beside a weight; state takes x and comes out as z."""
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (2, 3))
    weights = plan.space("weights", 64)
    plan.weights = np.arange(16, dtype=np.float32).tobytes()
    w = plan.tensor(weights, (3, 2), name="w")
    state = plan.space("state", 128)
    plan.state = np.ones(6, np.float32).tobytes()
    s = plan.tensor(state, (2, 3), name="s")
    arena = plan.space("arena", 64)
    left = plan.tensor(arena, (3, 2), strides=(16, 4))
    right = plan.tensor(arena, (3, 2), offset=8, strides=(16, 4))
    both = plan.tensor(arena, (3, 4))
    turned = plan.tensor(plan.rows["tensors"][x][3], (3, 2), strides=(4, 12))
    y = plan.port("outputs", "y", (3, 4))
    z = plan.port("outputs", "z", (2, 3))
    plan.step("copy", [turned], [left])
    plan.step("copy", [w], [right])
    plan.step("copy", [both], [y])
    plan.step("copy", [s], [z])
    plan.step("copy", [x], [s])
    plan.step("reverse", [x], [plan.tensor(arena, (2, 3))], axes=[1])
    return plan


def repeating(word: bytes, times: int) -> bytes:
    """A block of LZ4: a word of 4 bytes, so often."""
    length = 4 * times - 4 - 19
    return bytes([0x4F, *word, 4, 0, *[255] * (length // 255), length % 255, 0])


def packed_plan(first: int = 0, steps: int = 2, home: int = 64) -> PlanBuilder:
    """y = the weight w beside v, both packed in one block, and z = u, in another, which lies where the first was."""
    plan = PlanBuilder()
    plan.port("inputs", "x", (1,))
    weights, arena = plan.space("weights", 256), plan.space("arena", 256)
    plan.weights = bytes(range(64))
    plan.block(64, repeating(b"\0\0\x80\x3f", 32), 128, arena, home, first, steps)
    plan.block(192, repeating(b"\0\0\0\x40", 16), 64, arena, home, first + steps, 1)
    both = plan.tensor(arena, (2, 8))
    plan.step("copy", [plan.tensor(weights, (8,), offset=64, name="w")], [plan.tensor(arena, (8,))])
    plan.step("copy", [plan.tensor(weights, (8,), offset=160, name="v")], [plan.tensor(arena, (8,), offset=32)])
    plan.step("copy", [plan.tensor(weights, (16,), offset=192, name="u")], [plan.port("outputs", "z", (16,))])
    plan.step("copy", [both], [plan.port("outputs", "y", (2, 8))])
    return plan


def ramp(shape: tuple[int, ...] = (3, 4), dtype: Any = np.float32) -> Any:
    return (np.arange(np.prod(shape)) % 97).astype(dtype).reshape(shape)


def transposing_plan(shape: tuple[int, ...] = BIG) -> PlanBuilder:
    """y is x with its last two axes exchanged, by way of the arena."""
    plan = PlanBuilder()
    a, b, c = shape
    x = plan.port("inputs", "x", shape)
    arena = plan.space("arena", 4 * a * b * c)
    middle = plan.tensor(arena, (a, c, b))
    y = plan.port("outputs", "y", (a, c, b))
    turned = plan.tensor(plan.rows["tensors"][x][3], (a, c, b), strides=(4 * b * c, 4, 4 * c))
    plan.step("copy", [turned], [middle])
    plan.step("copy", [middle], [y])
    return plan
