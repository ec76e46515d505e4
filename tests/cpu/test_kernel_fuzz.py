"""Damaged calls of every op: the plan of each of the catalogue's cases, and of products and convolutions whose weights
are stored in few bits or without zeros, with operands and attributes changed at random.

Kernels have to refuse what they cannot do, and to stay inside their operands in what they accept. All operands lie in
one memory with room between them, filled differently for two runs: an output that differs has read outside its inputs,
a byte that changed outside the outputs was written by mistake."""

import copy
import random
from itertools import product
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays, graph_of
from hexane import _core
from hexane.compression.compress import compress
from hexane.emit.plan import emit_plan
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.ops.spec import Op
from hexane.pipeline import compile_graph
from hexane.targets import load_target
from plans import ABSENT, BITS, DTYPES, in_one

MUTANTS = 60
WORDS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 17, -1, -2, -3, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63)]
DOUBLES = [0.0, 0.5, -1.0, 1e30, float("nan"), float("inf")]
ARENA, WEIGHTS, STATE = (
    [s.kind for s in load_target("host").spaces].index(kind) for kind in ("arena", "weights", "state")
)
EXTENTS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33]


class Call:
    """The rows of a plan of one graph, its ports moved to the state (or, some inputs, to the weights)."""

    def __init__(self, graph: Graph, rng: random.Random) -> None:
        sections: dict[str, Any] = emit_plan(compile_graph(graph, load_target("host")))
        self.strings = sections["strings"]
        self.spaces, self.tensors, self.steps = (sections[name].copy() for name in ("spaces", "tensors", "steps"))
        self.operands, self.numerics = sections["operands"].copy(), sections["numerics"]
        self.attrs = np.frombuffer(bytes(sections["attrs"]), np.int64).copy()
        self.weights = in_one(sections["weights"]).tobytes()
        self.dtypes = {name: self.add_string(name) for name in BITS}
        read_only = {self.tensors["space"][row] for row in sections["inputs"]["tensor"]}
        sizes = dict.fromkeys((0, 1, 2), 0) | {i: int(self.spaces["bytes"][i]) for i in range(3)}
        for space in range(3, len(self.spaces)):
            target = WEIGHTS if space in read_only and rng.random() < 0.3 else STATE
            moved = self.tensors["space"] == space
            room = int(self.spaces["bytes"][space])
            self.tensors["offset"][moved] += sizes[target] + 64
            self.tensors["space"][moved] = target
            sizes[target] += 3 * ((room + 127) // 64 * 64)
        sizes[ARENA] += 4096
        self.spaces = self.spaces[:3]
        for space, size in sizes.items():
            self.spaces["bytes"][space] = size
        everything = np.zeros(1, DTYPES["tensors"])
        everything["name"], everything["dtype"] = self.add_string("everything"), self.dtypes["uint8"]
        everything["space"], everything["rank"] = STATE, 1
        everything["shape"][0, 0], everything["strides"][0, 0] = sizes[STATE], 1
        self.tensors = np.concatenate([self.tensors, everything])
        self.weights += bytes(sizes[WEIGHTS] - len(self.weights))

    def add_string(self, text: str) -> int:
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text) - 1

    def mutate(self, rng: random.Random) -> None:
        tensor = self.tensors[rng.randrange(len(self.tensors) - 1)]
        rank = int(tensor["rank"])
        axis = rng.randrange(max(rank, 1))
        item = max(self.bits(tensor) // 8, 1)
        match rng.randrange(9):
            case 0 | 1 if len(self.attrs):
                old = self.attrs[at := rng.randrange(len(self.attrs))]
                self.attrs[at] = rng.choice([*WORDS, old ^ 1, *np.array(DOUBLES).view(np.int64)])
            case 2:
                tensor["shape"][axis] = rng.choice(EXTENTS) if rank else 0
            case 3:
                old = int(tensor["strides"][axis])
                tensor["strides"][axis] = rng.choice([0, item, 2 * item, 2 * old, old + item, 64]) if rank else 0
            case 4:
                other = rng.randrange(max(rank, 1))
                for field in ("shape", "strides"):
                    tensor[field][[axis, other]] = tensor[field][[other, axis]]
            case 5:
                tensor["rank"] = rng.choice([max(rank - 1, 0), min(rank + 1, 8)])
                tensor["shape"][tensor["rank"] :] = tensor["strides"][tensor["rank"] :] = 0
                tensor["shape"][rank : tensor["rank"]] = 1
            case 6:
                tensor["dtype"] = rng.choice(list(self.dtypes.values()))
            case 7:
                others = [*range(len(self.tensors) - 1), ABSENT]
                self.operands[rng.randrange(len(self.operands))] = rng.choice(others)
            case 8:
                at = rng.randrange(len(self.steps))
                self.change_count(at, rng.choice(["num_inputs", "num_outputs"]), rng.choice([-1, 1]))

    def change_count(self, at: int, side: str, change: int) -> None:
        """Takes the last input or output of a step away, or repeats it."""
        step = self.steps[at]
        end = int(step["operands"] + step["num_inputs"] + (step["num_outputs"] if side == "num_outputs" else 0))
        if step[side] == 0:
            return
        kept = self.operands[:end] if change > 0 else self.operands[: end - 1]
        self.operands = np.concatenate([kept, self.operands[end - 1 if change > 0 else end :]])
        step[side] = int(step[side]) + change
        self.steps["operands"][at + 1 :] += np.array(change).astype(np.uint32)

    def bits(self, tensor: Any) -> int:
        name = self.strings[tensor["dtype"] :].split(b"\0")[0].decode()
        return BITS.get(name, 8)

    def sections(self) -> dict[str, Any]:
        rows = {"spaces": self.spaces, "tensors": self.tensors, "steps": self.steps, "operands": self.operands}
        rows["numerics"] = self.numerics
        exact = {name: array.copy() for name, array in rows.items()}
        return {**exact, "strings": self.strings, "attrs": self.attrs.copy(), "weights": self.weights}

    def footprint(self, rows: set[int]) -> Array:
        """Which bytes of the state belong to elements of these tensors."""
        used = np.zeros(int(self.spaces["bytes"][STATE]), bool)
        for row in rows:
            tensor = self.tensors[row]
            if tensor["space"] != STATE:
                continue
            rank = int(tensor["rank"])
            item = max(self.bits(tensor) // 8, 1)
            shape, strides = (*tensor["shape"][:rank], item), (*tensor["strides"][:rank], 1)
            np.lib.stride_tricks.as_strided(used[tensor["offset"] :], shape, strides)[...] = True
        return used

    def read_and_written(self) -> tuple[set[int], set[int]]:
        read: set[int] = set()
        written: set[int] = set()
        for step in self.steps:
            middle = int(step["operands"] + step["num_inputs"])
            read |= {int(row) for row in self.operands[step["operands"] : middle]} - {ABSENT}
            written |= {int(row) for row in self.operands[middle : middle + int(step["num_outputs"])]}
        return read, written


def filling(call: Call, rng: np.random.Generator) -> Array:
    """Bytes for the state that are ordinary values in the place of every operand."""
    data = rng.integers(0, 256, int(call.spaces["bytes"][STATE])).astype(np.uint8)
    for row in sorted(call.read_and_written()[0]):
        tensor = call.tensors[row]
        if tensor["space"] == STATE:
            values = np.zeros(0, np.uint8)
            name = call.strings[tensor["dtype"] :].split(b"\0")[0].decode()
            kind = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}.get(name)
            count = int(np.prod(tensor["shape"][: tensor["rank"]]))
            if kind:
                values = rng.uniform(-2, 2, count).astype(kind)
            elif name in ("int8", "int16", "int32", "int64", "bool"):
                values = rng.integers(0, 2, count).astype(name)
            place = data[int(tensor["offset"]) :]
            raw = values.view(np.uint8)[: len(place)]
            place[: len(raw)] = raw
    return data


def check(call: Call, seed: int) -> bool:
    """Whether the call is accepted; it has to keep to its operands then."""
    try:
        program = _core.Program(call.sections(), threads=2)
    except Error:
        return False
    read, written = call.read_and_written()
    inputs, outputs = call.footprint(read), call.footprint(written)
    first = filling(call, np.random.default_rng(seed))
    second = np.where(inputs, first, ~first)
    results = []
    for data in (first, second):
        program.write_state("everything", data)
        try:
            program.run([])
        except Error:
            continue
        results.append(program.read_state("everything"))
        assert np.array_equal(results[-1][~outputs], data[~outputs]), "written outside the outputs"
    if len(results) == 2 and not (inputs & outputs).any():  # in place, only some kernels mean anything
        changed = outputs & (results[0] != results[1])
        # Bytes that no run wrote keep their difference: an op may leave elements out only where it is told to.
        assert not (changed & ((results[0] != first) | (results[1] != second))).any(), "read outside the inputs"
    return True


def check_mutants(graph: Graph, seed: str, mutants: int) -> None:
    print(f"seed {seed!r}")
    rng = random.Random(seed)
    call = Call(graph, rng)
    assert check(call, 0)
    accepted = 0
    for mutant in range(1, mutants):
        damaged = copy.deepcopy(call)
        for _ in range(rng.choice((1, 1, 2, 3))):
            damaged.mutate(rng)
        accepted += check(damaged, mutant)
    assert 0 < accepted < mutants - 1


@pytest.mark.parametrize(("op", "index"), CASES, ids=IDS)
def test_a_damaged_call_keeps_to_its_operands(op: Op, index: int):
    check_mutants(graph_of(op, op.cases[index], arrays(op, op.cases[index])), f"{op.name} {index}", MUTANTS)


MODES = ("int8", "palette4", "palette6:g8", "palette8", "palette4:v2", "palette8:v4", "blockwise4:b32")
BUILDS = {
    "product": lambda x, w: hx.linear(hx.reshape(x, shape=(32, 64)), w((64, 64))),
    "by rows": lambda x, w: hx.matmul(hx.linear(hx.reshape(x, shape=(32, 64)), w((64, 64))), w((64, 64))),
    "convolution": lambda x, w: hx.conv(x, w((64, 64, 3, 3)), pad=1),
    "transposed": lambda x, w: hx.conv_transpose(x, w((64, 32, 2, 2)), strides=2),
}
KERNELS = {
    "product": "encoded_matmul",
    "by rows": "encoded_rows_matmul",
    "convolution": "encoded_conv",
    "transposed": "decode",
}


SPARSE_KERNELS = {"product": "sparse_matmul", "convolution": "sparse_conv"}


@pytest.mark.parametrize(("mode", "build"), [*product(MODES, BUILDS), *product(["sparse:0.7"], SPARSE_KERNELS)])
def test_a_damaged_call_with_stored_weights_keeps_to_its_operands(mode: str, build: str):
    def weight(shape: tuple[int, ...]) -> Array:
        return np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    graph = hx.graph(BUILDS[build](hx.input("x", (1, 64, 4, 8)), weight))
    stored = compress(graph, hx.Compression(mode), load_target("host"))
    steps = hx.compile(stored).steps
    kernels = SPARSE_KERNELS if mode.startswith("sparse") else KERNELS
    assert kernels[build] in [step["kernel"] for step in steps]
    check_mutants(stored, f"{mode} {build}", 2 * MUTANTS)
