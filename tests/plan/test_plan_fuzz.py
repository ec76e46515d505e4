"""Damaged plans: thousands of mutants, and not one may crash, hang, or raise anything but Error. What loads is run
once.

Every section is given as an exact-size copy on the heap, so that AddressSanitizer sees a read past its end."""

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error
from plans import DTYPES, PlanBuilder, copy_plan, counting_plan, many_sided_plan, packed_plan

Sections = dict[str, Any]
HEADER_BYTES = 32  # of PlanHeader
MOST_BYTES = 1 << 22  # larger mutants are loaded, but not run
EXTREMES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 63, 64, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63]
DOUBLES = [float("nan"), float("inf"), -1e300, 0.5, 1e300]


def matmul_plan() -> PlanBuilder:
    """y = relu(x @ w + bias) + x, x in the arena."""
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (5, 20))
    weights = plan.space("weights", 4 * (20 * 20 + 32))
    plan.weights = np.ones(20 * 20 + 32, np.float32).tobytes()
    w = plan.tensor(weights, (20, 20))
    bias = plan.tensor(weights, (20,), offset=1600)
    arena = plan.space("arena", 1024)
    inside = plan.tensor(arena, (5, 20), offset=64)
    y = plan.port("outputs", "y", (5, 20))
    plan.step("copy", [x], [inside])
    epilogue = [("relu", 0.0, 0.0, -1), ("add", 0.0, 0.0, 3)]
    plan.step("matmul", [inside, w, bias, x], [y], transpose_x=0, transpose_y=1, epilogue=epilogue)
    return plan


def conv_plan() -> PlanBuilder:
    """y = conv(x), 3x3 with padding, then one that is depthwise."""
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (1, 6, 5, 4))
    weights = plan.space("weights", 4 * (8 * 4 * 9 + 8 * 9 + 8))
    plan.weights = np.ones(8 * 4 * 9 + 8 * 9 + 8, np.float32).tobytes()
    w = plan.tensor(weights, (8, 4, 3, 3))
    depthwise = plan.tensor(weights, (8, 1, 3, 3), offset=4 * 8 * 4 * 9)
    bias = plan.tensor(weights, (8,), offset=4 * (8 * 4 * 9 + 8 * 9))
    arena = plan.space("arena", 4 * 6 * 5 * 8)
    inside = plan.tensor(arena, (1, 6, 5, 8))
    y = plan.port("outputs", "y", (1, 3, 3, 8))
    plan.step(
        "conv", [x, w, bias], [inside], strides=[1, 1], dilations=[1, 1], pads=[1, 1, 1, 1], groups=1, epilogue=[]
    )
    plan.step(
        "conv",
        [inside, depthwise, None],
        [y],
        strides=[2, 2],
        dilations=[1, 1],
        pads=[1, 1, 1, 1],
        groups=8,
        epilogue=[],
    )
    return plan


def cache_plan() -> PlanBuilder:
    """A state of 8 rows, 2 of them written at a position from outside; y is all of it."""
    plan = PlanBuilder()
    x, position = plan.port("inputs", "x", (2, 4)), plan.port("inputs", "position", (), "int32")
    cache = plan.tensor(plan.space("state", 128), (8, 4), name="cache")
    y = plan.port("outputs", "y", (8, 4))
    plan.step("write_slice", [cache, x, position], [cache], axis=0)
    plan.step("copy", [cache], [y])
    return plan


def drawing_plan() -> PlanBuilder:
    """y = the distinct slices of random numbers; the boxes that it selects by them."""
    plan = PlanBuilder()
    stream = plan.port("inputs", "stream", (2,), "int64")
    arena = plan.space("arena", 256)
    boxes = plan.tensor(arena, (1, 3, 4))
    scores = plan.tensor(arena, (1, 1, 3), offset=64)
    y = plan.port("outputs", "y", (1, 3, 4), length=4, axis=1)
    vectors = [plan.tensor(arena, (3,), "int64", offset=128 + 24 * i) for i in range(3)]
    chosen = plan.port("outputs", "chosen", (2, 3), "int64", length=3)
    count = plan.port("outputs", "count", (), "int64")
    length = plan.port("outputs", "length", (), "int64")
    plan.step("random", [stream], [boxes])
    plan.step("random", [stream], [scores])
    plan.step("unique", [boxes], [y, *vectors, length], axis=1, sorted=0)
    options = {"max_output": 2, "iou_threshold": 0.5, "score_threshold": 0.1, "center_point_box": 1}
    plan.step("non_max_suppression", [boxes, scores], [chosen, count], **options)
    return plan


def streaming_plan() -> PlanBuilder:
    """y = tanh(x), row by row through a ring, in a loop in a loop."""
    plan = PlanBuilder()
    x, y = plan.port("inputs", "x", (1, 6, 4)), plan.port("outputs", "y", (1, 6, 4))
    ring = plan.tensor(plan.space("arena", 64), (1, 6, 4), ring=2)
    plan.step("copy", [x], [ring], (1, 0, 1))
    plan.step("tanh", [ring], [y], (1, -1, 0))
    plan.loop(0, 2, [4, 4])
    plan.loop(0, 4, [1, 1])
    return plan


PLANS: dict[str, Callable[[], PlanBuilder]] = {
    "copy": copy_plan,
    "many_sided": many_sided_plan,
    "matmul": matmul_plan,
    "conv": conv_plan,
    "cache": cache_plan,
    "counting": counting_plan,
    "drawing": drawing_plan,
    "streaming": streaming_plan,
    "packed": packed_plan,
}


def exact(data: Any) -> Any:
    return np.frombuffer(bytes(data), np.uint8).copy()


def try_plan(source: Any) -> bool:
    """Loads the plan, and runs it if it loads and is small; True if both succeed."""
    return refusal(source) is None


def refusal(source: Any) -> str | None:
    """The text of the error that loading or running the plan ends with; None if there is none."""
    try:
        program = _core.Program(source, threads=2)
        ports = program.inputs + program.outputs
        size = sum(program.memory.values())
        size += sum(int(np.prod([float(extent) for extent in port["shape"]])) * 8 for port in ports)
        if size <= MOST_BYTES:
            program.run([np.ones(port["shape"], NUMPY[port["dtype"]]) for port in program.inputs])
    except Error as error:
        return str(error)
    return None


def places(refusals: list[str]) -> set[str]:
    """The rows and kernels that errors name: "[plan: steps[0]", "[conv]"."""
    return {found[0] for text in refusals if (found := re.match(r"\[.*?\]( \w+\[\d+\])?", text))}


def bytes_in_sections(file: bytes) -> list[int]:
    """Where the bytes of all sections lie in the file, without the gaps between them."""
    count = int.from_bytes(file[12:16], "little")
    table = np.frombuffer(file, np.dtype("V16, <u8, <u8, <u8"), count, HEADER_BYTES)
    return [at for _, offset, size, _ in table for at in range(int(offset), int(offset + size))]


NUMPY = {
    "bool": "?",
    "fp16": "f2",
    "fp32": "f4",
    "fp64": "f8",
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
}
NUMPY |= {f"u{name}": f"u{dtype[1]}" for name, dtype in NUMPY.items() if name.startswith("int")}


def numbers(sections: Sections) -> Iterator[tuple[Any, int]]:
    """Every number of the rows and attributes, as an array of 32 or 64-bit integers and the place in it."""
    for name, dtype in DTYPES.items():
        rows = sections[name]
        if dtype.names is None:
            yield from ((rows, i) for i in range(len(rows)))
            continue
        for row in range(len(rows)):
            for field in dtype.names:
                values = rows[row : row + 1][field].reshape(-1)
                yield from ((values, i) for i in range(len(values)))
    words = sections["attrs"].view(np.int64)
    yield from ((words, i) for i in range(len(words)))


def values_for(array: Any, index: int, others: list[int]) -> list[int]:
    old = int(array[index])
    bits = 8 * array.itemsize
    values = [*EXTREMES, old + 1, old - 1, old * 2, old // 2, -old, old ^ 1 << 17, *others]
    if bits == 64:
        values += [int(np.float64(value).view(np.int64)) for value in DOUBLES]
    return sorted({value % 2**bits for value in values} - {old % 2**bits})


def put(array: Any, index: int, value: int) -> None:
    array.view(f"u{array.itemsize}")[index] = value


def as_bytes(sections: Sections) -> Sections:
    return {name: exact(rows) for name, rows in sections.items()}


@pytest.mark.parametrize("name", PLANS)
def test_the_plans_that_are_damaged_are_right(name: str):
    assert try_plan(PLANS[name]().sections())
    assert try_plan(exact(PLANS[name]().tobytes()))


@pytest.mark.parametrize("name", PLANS)
def test_every_number_set_to_extremes(name: str):
    sections = PLANS[name]().sections()
    loaded = 0
    for array, index in numbers(sections):
        old = int(array.view(f"u{array.itemsize}")[index])
        for value in values_for(array, index, [20, 48, 80]):
            put(array, index, value)
            loaded += try_plan(as_bytes(sections))
        put(array, index, old)
    assert loaded  # names, sources and costs are free: not every mutant is wrong


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
@pytest.mark.parametrize("name", PLANS)
def test_several_numbers_changed_at_once(name: str, seed: int):
    print(f"seed {seed}")
    rng = random.Random(f"{name} {seed}")
    refusals = []
    for _ in range(300):
        sections = PLANS[name]().sections()
        spots = list(numbers(sections))
        for array, index in rng.choices(spots, k=rng.randint(2, 4)):
            donor, at = rng.choice(spots)
            put(array, index, rng.choice(values_for(array, index, [int(donor[at])])))
        if said := refusal(as_bytes(sections)):
            refusals.append(said)
    assert len(places(refusals)) >= 10  # the damage reaches many rows


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PLANS)
def test_damaged_files_with_their_checksum_made_right(name: str, seed: int):
    """Most of the damage lies in the sections, since the header and the table of sections refuse almost every change."""
    print(f"seed {seed}")
    rng = random.Random(f"{name} {seed}")
    original = PLANS[name]().tobytes()
    contents = bytes_in_sections(original)
    past_table = 0
    for _ in range(400):
        data = bytearray(original)
        spots = contents if rng.random() < 0.9 else range(len(data))
        at = rng.randrange(len(spots))
        match rng.randrange(8):
            case 0:
                del data[rng.randrange(len(data)) :]
            case 1 | 2 | 3 | 4:
                for _ in range(rng.randint(1, 3)):
                    data[rng.choice(spots)] ^= 1 << rng.randrange(8)
            case 5 | 6:
                for spot in spots[at : at + rng.randrange(64)]:
                    data[spot] = rng.randrange(256)
            case 7:
                donor = rng.randrange(len(spots))
                for spot, other in zip(spots[at : at + 64], spots[donor : donor + 64], strict=False):
                    data[spot] = original[other]
        if len(data) >= HEADER_BYTES:
            if rng.random() < 0.9:
                data[16:24] = len(data).to_bytes(8, "little")
            data[24:32] = _core.xxh64(bytes(data[32:])).to_bytes(8, "little")
        said = refusal(exact(data))
        past_table += said is None or not said.startswith(("[plan] header", "[plan: section", "[plan] got"))
    assert past_table >= 200


@pytest.mark.parametrize("seed", range(200))
def test_random_bytes_are_refused(seed: int):
    rng = random.Random(seed)
    data = rng.randbytes(rng.randrange(2000))
    assert not try_plan(exact(data))
    assert not try_plan(exact(b"HEXANE\x1a\n\x04\0\0\0\x10\0\0\0" + data))
